"""What the steps of the gate have in common: their options, GitHub's files, and how they answer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from orchestrate.commands.saying import say
from orchestrate.errors import UsageError
from orchestrate.gate.change import Change, Checkout, read_change
from orchestrate.gate.github_files import append_outputs
from orchestrate.gate.policy import GatePolicy, parse_policy
from orchestrate.markup import brief

__all__ = [
    "POLICY_OPTION",
    "RECORDS_OPTION",
    "answer",
    "change_here",
    "checkout_here",
    "git",
    "in_commit",
    "policy_in",
    "workflow_run_here",
]

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
    """The change that this workflow run is about.

    A commit that was pushed to a branch, or a run started on one, goes on top of the default branch: of the commit
    before it its own author could have loosened the policy.
    """
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
    change = read_change(os.environ, event)
    repository = event.get("repository")
    default = repository.get("default_branch") if isinstance(repository, dict) else None
    if change.base_is_named or not isinstance(default, str) or not default:
        return change
    if change.branch == default:
        return change if change.base is None or _is_here(change.base) else replace(change, base=None)
    base = _merge_base(default, change.tested)
    return replace(change, base=None if base == change.tested else base)


def _merge_base(default: str, commit: str) -> str:
    for name in (f"refs/remotes/origin/{default}", f"refs/heads/{default}"):
        try:
            return git("merge-base", name, commit).decode().strip()
        except (OSError, subprocess.SubprocessError):
            continue
    raise UsageError(
        f"git can not tell where {commit[:12]} left the default branch {brief(default, 100)}",
        remedy="check out the whole history (fetch-depth: 0)",
    )


def _is_here(commit: str) -> bool:
    try:
        git("cat-file", "-e", f"{commit}^{{commit}}")
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def workflow_run_here() -> tuple[str, int, int]:
    """Repository, number of the workflow run and of its attempt; it needs no file."""
    repository = os.environ.get("GITHUB_REPOSITORY", "")
    run, attempt = os.environ.get("GITHUB_RUN_ID", ""), os.environ.get("GITHUB_RUN_ATTEMPT", "")
    if not repository or not run.isdecimal() or not attempt.isdecimal():
        raise UsageError(
            "GITHUB_REPOSITORY, GITHUB_RUN_ID or GITHUB_RUN_ATTEMPT is not set",
            remedy="run this as a step of a GitHub workflow",
        )
    return repository, int(run), int(attempt)


def checkout_here() -> Checkout:
    """What git says of the files that are here."""
    try:
        commit, *parents = git("rev-list", "--parents", "-n", "1", "HEAD").decode().split()
        tree = git("rev-parse", "HEAD^{tree}").decode().strip()
        return Checkout(commit, tuple(parents), tree, dirty=bool(git("status", "--porcelain", "--untracked-files=no")))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UsageError(
            "git can not say what is checked out here", remedy="check the repository out first, with its history"
        ) from error


def policy_in(path: Path, base: str | None) -> GatePolicy:
    """The repository's policy: as the base has it, so that no change judges itself; else the file that is there."""
    if base is not None and not _is_here(base):
        raise UsageError(
            f"the base {base[:12]} is not here, so its policy can not be read",
            remedy="check out the whole history (fetch-depth: 0)",
        )
    data = None if base is None else in_commit(base, path)
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


def in_commit(commit: str, path: Path) -> bytes | None:
    """A file as a commit has it; None where it has none of that name."""
    if path.is_absolute():
        return None
    try:
        return git("show", f"{commit}:./{path.as_posix()}")
    except (OSError, subprocess.SubprocessError):
        return None
