"""Every resource of ours that is still alive: found, listed as a plan, and reaped exactly as planned.

A run whose lock nobody holds has no owner any more and is reaped at once. What is found only by the marks it carries,
without a run directory to ask, is reaped when it has expired, or when its run or owner is named. What has a living
owner is never touched. Nothing that was not in the plan is.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

from orchestrate.backends.protocol import Look
from orchestrate.backends.survey import Surveyor
from orchestrate.clock import from_wire
from orchestrate.errors import OrchestrateError
from orchestrate.lifecycle.closure import Closed
from orchestrate.lifecycle.findings import Action, Filter, Finding, Held
from orchestrate.lifecycle.recovery import Recovery
from orchestrate.lifecycle.run_directory import BEING_MADE, RunDirectory, RunLock
from orchestrate.lifecycle.runs import ALWAYS_WHOLE, RunHead, RunState, checked_heads, head_of, husks, list_runs

__all__ = ["AuditPlan", "apply", "plan_audit"]


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """What was found, with what would be done about each.

    `looked` is where was looked, `unknown` what could not be looked at, and `known_runs` how many of the runs that the
    filter names are known anywhere, alive or not.
    """

    findings: tuple[Finding, ...]
    looked: tuple[str, ...]
    unknown: tuple[str, ...]
    known_runs: int


def plan_audit(
    surveyors: Sequence[Surveyor],
    runs_dir: Path,
    wanted: Filter,
    now: datetime,
    *,
    local_runs: bool,
    look: Callable[[RunDirectory], Look],
) -> AuditPlan:
    """Look everywhere and decide about each finding, without changing anything.

    With `local_runs` every run of `runs_dir` is looked at; without, only those that a surveyor found something of. A
    closed run that is named gets a `look` with all that its journal knows: marks as weak as a pid in a file's name are
    known there alone.
    """
    held: dict[str, list[Held]] = defaultdict(list)
    looked: list[str] = []
    unknown: list[str] = []
    for surveyor in surveyors:
        survey = surveyor.survey()
        looked.extend(f"{surveyor.name}: {text}" for text in survey.looked)
        unknown.extend(f"{surveyor.name}: {text}" for text in survey.unknown)
        for resources in survey.owned:
            held[resources.run_id].append(Held(surveyor, resources))
    findings: list[Finding] = []
    known = {run_id for run_id in held if run_id == wanted.run_id}
    heads, problem = _heads(runs_dir, held, all_of_them=local_runs)
    if problem:
        unknown.append(problem)
    count = 0
    for head in checked_heads(heads):
        count += 1
        if head.run.run_id == wanted.run_id:
            known.add(head.run.run_id)
        seen, untold = _looked_at(head, look) if head.run.run_id == wanted.run_id else ((), ())
        unknown.extend(untold)
        ours, strange = _by_token(head.run, held.pop(head.run.run_id, []))
        findings.extend(filter(wanted.wants, (_about_stranger(each, now) for each in strange)))
        if head.state is RunState.MISNAMED and head.stage != "closure":
            unknown.append(f"{head.run.path}: {head.problem}")
        finding = _about_run(head, ours, seen, now)
        if finding is not None and wanted.wants(finding):
            findings.append(finding)
            if head.state is RunState.DAMAGED:
                unknown.append(f"run {finding.run_id}: {head.problem}; what it may own can not be told from it")
    if local_runs:
        some = f", the journals of the newest {ALWAYS_WHOLE} from end to end" if count > ALWAYS_WHOLE else ""
        looked.append(f"local: {count} run{'' if count == 1 else 's'} in {runs_dir}{some}")
        findings.extend(filter(wanted.wants, map(_husk, husks(runs_dir))))
    for item in chain.from_iterable(held.values()):
        finding = _about_held(item, wanted, now)
        if wanted.wants(finding):
            findings.append(finding)
    return AuditPlan(tuple(findings), tuple(looked), tuple(unknown), len(known))


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


def _heads(
    runs_dir: Path, held: Mapping[str, Sequence[Held]], *, all_of_them: bool
) -> tuple[Iterable[RunHead], str | None]:
    if not all_of_them:
        known = (RunDirectory(runs_dir / run_id) for run_id in held if _is_name(run_id))
        return [head for run in known if (head := head_of(run)) is not None], None
    if runs_dir.exists() and not runs_dir.is_dir():
        return (), f"local: the runs directory {runs_dir} is not a directory"
    return list_runs(runs_dir), None


def _is_name(run_id: str) -> bool:
    """Whether a run id, which comes from a label that anybody may write, is one name in a folder."""
    return run_id not in {"", ".", ".."} and "/" not in run_id and "\0" not in run_id


def _looked_at(head: RunHead, look: Callable[[RunDirectory], Look]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is left of a closed run by the knowledge of its own journal, and what could not be asked."""
    if head.state is not RunState.CLOSED:
        return (), ()
    try:
        found = look(head.run)
    except (OSError, OrchestrateError) as error:
        cause = error.cause if isinstance(error, OrchestrateError) else str(error)
        return (), (f"run {head.run.run_id} can not be looked at: {cause}",)
    return (
        tuple(f"{resource.kind} {resource.id}" for resource in found.remaining),
        tuple(f"run {head.run.run_id}: {text}" for text in found.unknown),
    )


def _about_run(head: RunHead, held: tuple[Held, ...], seen: tuple[str, ...], now: datetime) -> Finding | None:
    action, because = Action.NONE, ""
    match head.state:
        case RunState.LIVE:
            because = f"it has a living owner (stage {head.stage}); `orchestrate teardown` asks that owner to end it"
        case RunState.OPEN:
            action, because = Action.CLOSE, f"its owner is gone (stage {head.stage}) and it was never closed"
        case RunState.DAMAGED:
            action, because = Action.CLOSE, head.problem
        case RunState.MISNAMED:
            return None
        case RunState.CLOSED:
            if not held and not seen and head.verdict != "teardown-unconfirmed":
                return None
            action = Action.LOOK_AGAIN
            there = bool(held or seen)
            because = "it is closed, but something of it is there" if there else "its teardown was never confirmed"
    return Finding(
        run_id=head.run.run_id,
        owner=head.owner,
        age_s=max([_age_s(head.created_at, now), *(each.resources.age_s for each in held)]),
        expires_at=head.expires_at,
        live=head.state is RunState.LIVE,
        action=action,
        because=because,
        run=head.run,
        held=held,
        seen=tuple(text for text in seen if text not in chain.from_iterable(each.resources.items for each in held)),
    )


def _by_token(run: RunDirectory, held: Sequence[Held]) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
    """What is the run's, and what only bears its name: a label is anybody's to write, the token is the run's."""
    if not held:
        return (), ()
    try:
        token = run.read_token()
    except OSError:  # it can not be told
        return tuple(held), ()
    ours = tuple(each for each in held if each.resources.token in {None, token})
    return ours, tuple(each for each in held if each not in ours)


def _about_stranger(held: Held, now: datetime) -> Finding:
    resources = held.resources
    expired = _expired(resources.expires_at, now)
    because = "it bears the name of a run that is here, but not its token: somebody else made it"
    return Finding(
        run_id=resources.run_id,
        owner=resources.owner,
        age_s=resources.age_s,
        expires_at=resources.expires_at or None,
        live=False,
        action=Action.END if expired else Action.NONE,
        because=f"{because}; it expired at {resources.expires_at}" if expired else because,
        held=(held,),
    )


def _about_held(held: Held, wanted: Filter, now: datetime) -> Finding:
    resources = held.resources
    run = RunDirectory(Path(resources.run_dir)) if resources.run_dir else None
    live, action, because = False, Action.NONE, ""
    state = None if run is None else _state_elsewhere(run)
    if state is RunState.LIVE:
        live, because = True, "it has a living owner"
    elif state is RunState.CLOSED:
        action, because = Action.LOOK_AGAIN, "its run is closed, but something of it is there"
    elif state is not None:
        action, because = Action.CLOSE, "its owner is gone and it was never closed"
    elif _expired(resources.expires_at, now):
        action, because = Action.END, f"it expired at {resources.expires_at}"
    elif wanted.names_somebody:
        action, because = Action.END, "its run or owner was named"
    else:
        when = f"it expires at {resources.expires_at}" if resources.expires_at else "it does not say when it expires"
        because = (
            f"{when}, and its run directory is not there to ask whether its owner lives; "
            "--run or --owner says that it may be ended"
        )
    return Finding(
        run_id=resources.run_id,
        owner=resources.owner,
        age_s=resources.age_s,
        expires_at=resources.expires_at or None,
        live=live,
        action=action,
        because=because,
        run=None if state is None else run,
        held=(held,),
    )


def _husk(run: RunDirectory) -> Finding:
    return Finding(
        run_id=run.run_id.removeprefix(BEING_MADE),
        owner="unknown",
        age_s=0.0,
        expires_at=None,
        live=False,
        action=Action.REMOVE_HUSK,
        because="its maker is gone and nothing was ever asked for",
        run=run,
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
    if finding.action is Action.END:
        left = tuple(chain.from_iterable(each.surveyor.reap(each.resources) for each in finding.held))
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
