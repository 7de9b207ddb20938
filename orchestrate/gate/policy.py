"""The gate's policy: which paths need GPUs, and what a pass must have. A file of the repository, reviewed like code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pathspec import GitIgnoreSpec

from orchestrate.cells.documents import parse_yaml

__all__ = ["GatePolicy", "needs_gpus", "parse_policy"]

_SCHEMA = "orchestrate.gate-policy/1"


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What a repository asks of its gate.

    Attributes:
        gpu_paths: patterns as in .gitignore; a change of a path that matches needs GPUs.
        device: the device that the evidence must come from.
        via_server: why a census that only SkyPilot's server answered is accepted; None where it is not.
        pinned_image: whether the container image must be named by digest, where there is one.
        groups: command groups of a qualification that must be among those that passed: the file of groups is the
            change's own, and could leave some out.
        signed_by: public keys (ed25519, PEM) that must all have signed the run of a green check.
    """

    gpu_paths: tuple[str, ...]
    device: str
    via_server: str | None
    pinned_image: bool
    groups: tuple[str, ...] = ()
    signed_by: tuple[str, ...] = ()


def parse_policy(data: bytes, file: str) -> GatePolicy:
    """The policy in a YAML file; `UsageError` names what is wrong with it and where."""
    top = parse_yaml(data, file).fields(
        ("schema", "gpu_paths"), ("device", "accept_via_server", "pinned_image", "groups", "signed_by")
    )
    top["schema"].schema(_SCHEMA)
    patterns = tuple(item.text() for item in top["gpu_paths"].items())
    if not patterns:
        raise top["gpu_paths"].error("names no path: then no change would ever be tested")
    try:
        GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise top["gpu_paths"].error(f"is no list of patterns: {error}") from error
    device = top["device"].text() if "device" in top else "h200"
    if device not in {"h200", "cpu"}:
        raise top["device"].error(f"must be h200 or cpu, is {device!r}")
    via_server = None
    if "accept_via_server" in top:
        via_server = top["accept_via_server"].fields(("reason",))["reason"].text()
    pinned = top["pinned_image"].value if "pinned_image" in top else True
    if not isinstance(pinned, bool):
        raise top["pinned_image"].error("must be true or false")
    groups = tuple(item.text() for item in top["groups"].items()) if "groups" in top else ()
    signed_by = tuple(item.text() for item in top["signed_by"].items()) if "signed_by" in top else ()
    return GatePolicy(patterns, device, via_server, pinned, groups, signed_by)


def needs_gpus(policy: GatePolicy, changed: Iterable[str]) -> tuple[str, ...]:
    """Those of the changed paths that need GPUs."""
    spec = GitIgnoreSpec.from_lines(policy.gpu_paths)
    return tuple(path for path in changed if spec.match_file(path))
