"""The gate's policy: which paths need GPUs, and what a pass must have. A file of the repository, reviewed like code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pathspec import GitIgnoreSpec

from orchestrate.cells.documents import Place, parse_yaml

__all__ = ["GatePolicy", "needs_gpus", "parse_policy", "stricter"]

_SCHEMA = "orchestrate.gate-policy/1"


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What a repository asks of its gate.

    Attributes:
        gpu_paths: lists of patterns as in .gitignore; a change of a path that one of the lists matches needs GPUs.
        device: the device that the evidence must come from.
        via_server: why a census that only SkyPilot's server answered is accepted; None where it is not.
        pinned_image: whether the container image must be named by digest, where there is one.
        groups: command groups of a qualification that must be among those that passed: the file of groups is the
            change's own, and could leave some out.
        signed_by: public keys (ed25519, PEM) that must all have signed the run of a green check.
        newer_base: whether a merge into a later commit of the base branch than the event names is the change's too.
    """

    gpu_paths: tuple[tuple[str, ...], ...]
    device: str
    via_server: str | None
    pinned_image: bool
    groups: tuple[str, ...] = ()
    signed_by: tuple[str, ...] = ()
    newer_base: bool = False


def parse_policy(data: bytes, file: str) -> GatePolicy:
    """The policy in a YAML file; `UsageError` names what is wrong with it and where."""
    top = parse_yaml(data, file).fields(
        ("schema", "gpu_paths"),
        ("device", "accept_via_server", "pinned_image", "groups", "signed_by", "newer_base"),
    )
    top["schema"].schema(_SCHEMA)
    patterns = tuple(item.text() for item in top["gpu_paths"].items())
    if not patterns:
        raise top["gpu_paths"].error("names no path: then no change would ever be tested")
    for pattern in patterns:
        if "[:" in pattern:
            raise top["gpu_paths"].error(f"has a class of characters, {pattern!r}, which is not read: write it out")
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
    pinned, newer_base = (_flag(top, name, default=name == "pinned_image") for name in ("pinned_image", "newer_base"))
    groups = tuple(item.text() for item in top["groups"].items()) if "groups" in top else ()
    signed_by = tuple(item.text() for item in top["signed_by"].items()) if "signed_by" in top else ()
    return GatePolicy((patterns,), device, via_server, pinned, groups, signed_by, newer_base)


def stricter(one: GatePolicy, other: GatePolicy) -> GatePolicy:
    """What two policies ask together: nothing that one of them asks is left out, nothing is accepted by one alone."""
    return GatePolicy(
        gpu_paths=(*one.gpu_paths, *other.gpu_paths),
        device="h200" if "h200" in {one.device, other.device} else one.device,
        via_server=one.via_server and other.via_server,
        pinned_image=one.pinned_image or other.pinned_image,
        groups=tuple(dict.fromkeys((*one.groups, *other.groups))),
        signed_by=tuple(dict.fromkeys((*one.signed_by, *other.signed_by))),
        newer_base=one.newer_base and other.newer_base,
    )


def needs_gpus(policy: GatePolicy, changed: Iterable[str]) -> tuple[str, ...]:
    """Those of the changed paths that need GPUs; one whose name breaks a line, which patterns do not reach, does."""
    specs = [GitIgnoreSpec.from_lines(patterns) for patterns in policy.gpu_paths]
    return tuple(path for path in changed if "\n" in path or any(spec.match_file(path) for spec in specs))


def _flag(top: Mapping[str, Place], name: str, *, default: bool) -> bool:
    value = top[name].value if name in top else default
    if not isinstance(value, bool):
        raise top[name].error("must be true or false")
    return value
