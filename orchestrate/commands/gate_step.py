"""What the steps of the gate have in common: their options, GitHub's files, and how they answer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from orchestrate.commands.saying import say
from orchestrate.errors import UsageError
from orchestrate.gate.change import Change, owner_of, read_change
from orchestrate.gate.github_files import append_outputs
from orchestrate.gate.policy import GatePolicy, parse_policy

__all__ = ["POLICY_OPTION", "RECORDS_OPTION", "answer", "change_here", "git", "owner_here", "policy_in"]

RECORDS_OPTION = click.option(
    "--records",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder that the steps share.",
)
POLICY_OPTION = click.option(
    "--policy", type=click.Path(path_type=Path), default=Path(".github/gpu-gate.yml"), show_default=True,
    metavar="FILE", help="Which paths need GPUs, and what a pass must have.",
)  # fmt: skip


def change_here() -> Change:
    """The change that this workflow run is about."""
    path = os.environ.get("GITHUB_EVENT_PATH", "")
    try:
        event = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the event in GITHUB_EVENT_PATH ({path or 'not set'}) can not be read",
            remedy="run this as a step of a GitHub workflow",
        ) from error
    if not isinstance(event, dict):
        raise UsageError("the event is no object", remedy="run this as a step of a GitHub workflow")
    return read_change(os.environ, event)


def owner_here() -> str:
    """The owner of everything that this attempt of this workflow run asks for; it needs no file."""
    repository = os.environ.get("GITHUB_REPOSITORY", "")
    run, attempt = os.environ.get("GITHUB_RUN_ID", ""), os.environ.get("GITHUB_RUN_ATTEMPT", "")
    if not repository or not run.isdecimal() or not attempt.isdecimal():
        raise UsageError(
            "GITHUB_REPOSITORY, GITHUB_RUN_ID or GITHUB_RUN_ATTEMPT is not set",
            remedy="run this as a step of a GitHub workflow",
        )
    return owner_of(repository, int(run), int(attempt))


def policy_in(path: Path, base: str | None) -> GatePolicy:
    """The repository's policy: as the base has it, so that no change judges itself; else the file that is there."""
    data = None if base is None else _in_commit(base, path)
    if data is None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"the gate's policy {path} can not be read: {error.strerror}",
                remedy="write one (docs/gate.md), or name it with --policy",
            ) from error
    return parse_policy(data, str(path))


def git(*arguments: str) -> bytes:
    """What git answers about the repository here; `OSError` or `SubprocessError` where it does not."""
    done = subprocess.run(["git", *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    return done.stdout


def answer(outputs: Mapping[str, str], as_json: Mapping[str, Any] | None) -> None:
    """Hand the outputs to GitHub where it asks for them; with `as_json` print that one object."""
    path = os.environ.get("GITHUB_OUTPUT")
    if path:
        append_outputs(Path(path), outputs)
    if as_json is not None:
        say(json.dumps(as_json, sort_keys=True))


def _in_commit(commit: str, path: Path) -> bytes | None:
    if path.is_absolute():
        return None
    try:
        return git("show", f"{commit}:./{path.as_posix()}")
    except (OSError, subprocess.SubprocessError):
        return None
