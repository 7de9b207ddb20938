"""Every resource of ours that is still alive: found, listed as a plan, and reaped exactly as planned.

A run whose lock nobody holds has no owner any more and is reaped at once. What is found only by the marks it carries,
without a run directory to ask, is reaped when it has expired, or when its run or owner is named. What has a living
owner is never touched.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrate.backends.local_audit import Owned, find_owned, reap_owned
from orchestrate.clock import from_wire
from orchestrate.errors import OrchestrateError
from orchestrate.lifecycle.closure import Closed
from orchestrate.lifecycle.recovery import Recovery
from orchestrate.lifecycle.run_directory import BEING_MADE, RunDirectory, RunLock
from orchestrate.lifecycle.runs import RunHead, RunState, head_of, husks, list_runs

__all__ = ["Action", "AuditPlan", "Filter", "Finding", "apply", "plan_audit"]


class Action(StrEnum):
    """What a reap does about a finding."""

    NONE = "none"
    CLOSE = "close"
    LOOK_AGAIN = "look-again"
    END = "end"
    REMOVE_HUSK = "remove-husk"


@dataclass(frozen=True, slots=True)
class Filter:
    """Which findings are meant. A named run or owner also says that what has not expired may be reaped."""

    run_id: str | None = None
    owner: str | None = None
    older_than_s: float | None = None

    @property
    def names_somebody(self) -> bool:
        """Whether a run or an owner is named."""
        return self.run_id is not None or self.owner is not None

    def wants(self, finding: Finding) -> bool:
        """Whether this finding is meant."""
        return (
            (self.run_id is None or finding.run_id == self.run_id)
            and (self.owner is None or finding.owner == self.owner)
            and (self.older_than_s is None or finding.age_s >= self.older_than_s)
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """Something of ours. `outcome` is empty until a reap acted; `left` is what it could not remove."""

    run_id: str
    owner: str
    age_s: float
    expires_at: str | None
    live: bool
    items: tuple[str, ...]
    action: Action
    because: str
    run: RunDirectory | None = None
    owned: Owned | None = None
    outcome: str = ""
    left: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The finding as an element of `audit --json`."""
        return {
            "run_id": self.run_id,
            "owner": self.owner,
            "age_s": round(self.age_s, 1),
            "expires_at": self.expires_at,
            "live": self.live,
            "items": list(self.items),
            "action": self.action.value,
            "because": self.because,
            "outcome": self.outcome or None,
            "left": list(self.left),
        }


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """What was found, with what would be done about each; `unknown` is what could not be looked at."""

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]


def plan_audit(runs_dir: Path, temp_base: Path, wanted: Filter, now: datetime) -> AuditPlan:
    """Look everywhere and decide about each finding, without changing anything."""
    unknown: list[str] = []
    try:
        owned = list(find_owned(temp_base, now.timestamp))
    except OSError as error:
        owned = []
        unknown.append(f"the processes and folders of this machine can not be looked at: {error}")
    if runs_dir.exists() and not runs_dir.is_dir():
        unknown.append(f"the runs directory {runs_dir} is not a directory")
    by_run = {item.run_id: item for item in owned}
    findings = []
    for head in list_runs(runs_dir):
        finding = _about_run(head, by_run.get(head.run.run_id), now)
        if finding is not None:
            findings.append(finding)
            owned = [item for item in owned if item.run_id != head.run.run_id]
    findings.extend(_about_owned(item, wanted, now) for item in owned)
    findings.extend(
        Finding(husk.run_id.removeprefix(BEING_MADE), "unknown", 0.0, None, live=False, items=(f"folder {husk.path}",),
                action=Action.REMOVE_HUSK, because="its maker is gone and nothing was ever asked for", run=husk)
        for husk in husks(runs_dir)
    )  # fmt: skip
    return AuditPlan(tuple(finding for finding in findings if wanted.wants(finding)), tuple(unknown))


def apply(plan: AuditPlan, recovery: Recovery, clock: Callable[[], float] = time.monotonic) -> Iterator[Finding]:
    """Do exactly what `plan` says; each finding comes back with its outcome and what is left of it."""
    for finding in plan.findings:
        started = clock()
        try:
            done = _apply_one(finding, recovery)
        except (OSError, OrchestrateError) as error:
            cause = error.cause if isinstance(error, OrchestrateError) else str(error)
            done = replace(finding, outcome=f"failed: {cause}", left=finding.items or (cause,))
        took = f" ({clock() - started:.1f}s)" if done.action is not Action.NONE else ""
        yield replace(done, outcome=f"{done.outcome}{took}" if done.outcome else "")


def _about_run(head: RunHead, owned: Owned | None, now: datetime) -> Finding | None:
    items = () if owned is None else owned.items()
    action, because = Action.NONE, ""
    match head.state:
        case RunState.LIVE:
            because = f"it has a living owner (stage {head.stage}); `orchestrate teardown` asks that owner to end it"
        case RunState.OPEN:
            action, because = Action.CLOSE, f"its owner is gone (stage {head.stage}) and it was never closed"
        case RunState.DAMAGED:
            action, because = Action.CLOSE, head.problem
        case RunState.CLOSED:
            if not items and head.verdict != "teardown-unconfirmed":
                return None
            action = Action.LOOK_AGAIN
            because = "it is closed, but something of it is there" if items else "its teardown was never confirmed"
    return Finding(
        run_id=head.run.run_id,
        owner=head.owner,
        age_s=_age_s(head.created_at, now),
        expires_at=head.expires_at,
        live=head.state is RunState.LIVE,
        items=items,
        action=action,
        because=because,
        run=head.run,
    )


def _about_owned(owned: Owned, wanted: Filter, now: datetime) -> Finding:
    run = RunDirectory(owned.run_dir)
    live, action, because = False, Action.NONE, ""
    state = _state_elsewhere(run)
    if state is RunState.LIVE:
        live, because = True, "it has a living owner"
    elif state is RunState.CLOSED:
        action, because = Action.LOOK_AGAIN, "its run is closed, but something of it is there"
    elif state is not None:
        action, because = Action.CLOSE, "its owner is gone and it was never closed"
    elif _expired(owned.expires_at, now):
        action, because = Action.END, f"it expired at {owned.expires_at or 'an unknown time'}"
    elif wanted.names_somebody:
        action, because = Action.END, "its run or owner was named"
    else:
        because = (
            f"it expires at {owned.expires_at}, and its run directory is not there to ask whether its owner lives; "
            "--run or --owner says that it may be ended"
        )
    return Finding(
        run_id=owned.run_id,
        owner=owned.owner,
        age_s=owned.age_s,
        expires_at=owned.expires_at or None,
        live=live,
        items=owned.items(),
        action=action,
        because=because,
        run=None if state is None else run,
        owned=owned,
    )


def _state_elsewhere(run: RunDirectory) -> RunState | None:
    """The state of a run outside of the runs directory; None where its directory can not be asked."""
    try:
        if not run.lock.is_file():
            return None
        if run.has_owner():
            return RunState.LIVE
        head = head_of(run)
    except OSError:
        return None
    return None if head is None else head.state


def _expired(expires_at: str, now: datetime) -> bool:
    try:
        return from_wire(expires_at) <= now
    except ValueError:
        return False  # without a readable expiry only a person can say that it may go


def _age_s(created_at: str, now: datetime) -> float:
    try:
        return max(0.0, (now - from_wire(created_at)).total_seconds())
    except ValueError:
        return 0.0


def _apply_one(finding: Finding, recovery: Recovery) -> Finding:
    if finding.action is Action.NONE:
        return replace(finding, left=finding.items or (f"run {finding.run_id}",))
    if finding.action is Action.END and finding.owned is not None:
        left = reap_owned(finding.owned)
        return replace(finding, outcome="ended" if not left else "not all could be ended", left=left)
    if finding.run is None:
        return replace(finding, outcome="failed: nothing to act on", left=finding.items)
    lock = RunLock.try_take(finding.run)
    if lock is None:
        return replace(finding, live=True, outcome="left alone: it has a living owner by now", left=finding.items)
    try:
        if finding.action is Action.REMOVE_HUSK:
            shutil.rmtree(finding.run.path)
            return replace(finding, outcome="removed")
        why = f"reaped by {recovery.by}: {finding.because}"
        closed = recovery.end(finding.run, why) if finding.action is Action.CLOSE else None
        closed = closed or recovery.look_again(finding.run, why)
    finally:
        lock.release()
    return replace(finding, outcome=_outcome(closed), left=_left(closed))


def _outcome(closed: Closed | None) -> str:
    if closed is None:
        return "nothing to do: it is closed, and nothing of it is there"
    return f"closed as {closed.decision.verdict}" if closed.closure_sha256 else "failed: no closure could be written"


def _left(closed: Closed | None) -> tuple[str, ...]:
    if closed is None:
        return ()
    return (*closed.remaining, *closed.unknown) if closed.closure_sha256 else ("a run without a closure",)
