"""The change that a workflow run is about, and the policy that judges it: never one that its author chose."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrate.commands.gate_step import git
from orchestrate.errors import UsageError
from orchestrate.gate.change import Change, read_change
from orchestrate.gate.policy import GatePolicy, parse_policy, stricter
from orchestrate.markup import brief

__all__ = ["change_here", "in_commit", "judged_here", "rules_commit"]

_REMEDY = "check out the whole history (fetch-depth: 0)"


def change_here() -> Change:
    """The change as GitHub's event tells it."""
    return read_change(os.environ, _event())


def judged_here(path: Path) -> tuple[Change, GatePolicy]:
    """The change on top of what it goes on, and the policy in the file `path` that judges it.

    - Of a pull request or a merge group it is the policy of its base. Into another branch than the default one, which
      its author may have made, it is held to the default branch's policy too.
    - A commit that was pushed to a branch or a tag, or a run started on one, goes on top of where it left the default
      branch, and is judged by the default branch's policy as it is now: the author chose where to leave it.
    - On the default branch itself it is that of the commit before.

    Where none of them has such a file, the one that is here judges: that change brings it.

    Raises:
        UsageError: there is no event, or git has not the commits that it names, or there is no policy.
    """
    event = _event()
    change = read_change(os.environ, event)
    default = _default_branch(event)
    if change.base_is_named:
        policy = _policy(path, change.base)
        newer = _newer_base(change) if policy.newer_base else None
        if newer is not None:
            change, policy = replace(change, base=newer), _policy(path, newer)
        if default is not None and _base_branch(event) not in {None, default}:
            policy = stricter(policy, _policy(path, _tip(default)))
        return change, policy
    if default is None:
        return change, _policy(path, change.base)
    if _is_on(default, change):
        before = change.base if change.base is not None and _is_here(change.base) else None
        return replace(change, base=before), _policy(path, before)
    tip = _tip(default)
    left_at = _merge_base(tip, change.tested)
    return replace(change, base=None if left_at == change.tested else left_at), _policy(path, tip)


def rules_commit(change: Change) -> str | None:
    """The commit whose files say what is demanded of this change; None where there is none but its own."""
    default = _default_branch(_event())
    if change.base_is_named or default is None or change.base is None:
        return change.base
    return change.base if _is_on(default, change) else _tip(default)


def in_commit(commit: str, path: Path) -> bytes | None:
    """A file as a commit has it; None where it has none of that name."""
    if path.is_absolute():
        return None
    try:
        return git("show", f"{commit}:./{path.as_posix()}")
    except (OSError, subprocess.SubprocessError):
        return None


def _event() -> dict[str, Any]:
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
    return event


def _policy(path: Path, commit: str | None) -> GatePolicy:
    if commit is not None and not _is_here(commit):
        raise UsageError(f"the base {commit[:12]} is not here, so its policy can not be read", remedy=_REMEDY)
    data = None if commit is None else in_commit(commit, path)
    if data is None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"the gate's policy {path} can not be read: {error.strerror}",
                remedy="write one (docs/gate.md), or name it with --policy",
            ) from error
    return parse_policy(data, str(path))


def _is_on(default: str, change: Change) -> bool:
    """Whether the default branch itself is tested, and not a tag of its name."""
    return os.environ.get("GITHUB_REF", f"refs/heads/{change.branch}") == f"refs/heads/{default}"


def _default_branch(event: Mapping[str, Any]) -> str | None:
    name = _text(event, "repository", "default_branch")
    return name or None


def _base_branch(event: Mapping[str, Any]) -> str | None:
    """The branch that a pull request or a merge group goes into; None where the event does not say."""
    name = _text(event, "pull_request", "base", "ref") or _text(event, "merge_group", "base_ref")
    return None if name is None else name.removeprefix("refs/heads/")


def _text(event: Mapping[str, Any], *path: str) -> str | None:
    value: Any = event
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _newer_base(change: Change) -> str | None:
    """The first parent of the merge that is tested, where that is a later commit of the base; None where it is not."""
    try:
        _, *parents = git("rev-list", "--parents", "-n", "1", change.tested).decode().split()
        if len(parents) != 2 or parents[1] != change.head or parents[0] == change.base:
            return None
        git("merge-base", "--is-ancestor", str(change.base), parents[0])
    except (OSError, subprocess.SubprocessError):
        return None
    return parents[0]


def _tip(default: str) -> str:
    for name in (f"refs/remotes/origin/{default}", f"refs/heads/{default}"):
        try:
            return git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
        except (OSError, subprocess.SubprocessError):
            continue
    raise UsageError(f"the default branch {brief(default, 100)} is not here", remedy=_REMEDY)


def _merge_base(tip: str, commit: str) -> str:
    try:
        return git("merge-base", tip, commit).decode().strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"git can not tell where {commit[:12]} left the default branch", remedy=_REMEDY) from error


def _is_here(commit: str) -> bool:
    try:
        git("cat-file", "-e", f"{commit}^{{commit}}")
    except (OSError, subprocess.SubprocessError):
        return False
    return True
