"""The runs of a runs directory at a glance: one read from the end of the journal for each that is closed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrate.clock import from_wire
from orchestrate.errors import JournalDamagedError, OrchestrateError
from orchestrate.lifecycle.journal import JournalRecord, JournalView, is_chained, last_record, read_journal
from orchestrate.lifecycle.plan import read_plan
from orchestrate.lifecycle.run_directory import BEING_MADE, RunDirectory
from orchestrate.receipts.journal_chain import ATTEMPT_KIND

__all__ = ["ALWAYS_WHOLE", "RunHead", "RunState", "checked_heads", "head_of", "husks", "list_runs"]

ALWAYS_WHOLE, _AT_MOST_WHOLE = 1000, 2000
"""Of so many of the newest runs the whole journal is checked; of an older one when it was touched since its closure."""
_CLOSING_S = 60.0


class RunState(StrEnum):
    """Where a run is: its owner lives, it is closed, its owner is gone before that, or its journal is damaged.

    A copy, or a run that was renamed, is `misnamed`: its plan says another run id than its folder's name.
    """

    LIVE = "live"
    CLOSED = "closed"
    OPEN = "open"
    DAMAGED = "damaged"
    MISNAMED = "misnamed"


@dataclass(frozen=True, slots=True)
class RunHead:
    """One run. `stage` is the last one it entered; `facts` are those of its newest closure, empty without one."""

    run: RunDirectory
    state: RunState
    stage: str
    owner: str
    created_at: str
    expires_at: str | None
    cell_set: str
    problem: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str | None:
        """The verdict of the newest closure."""
        verdict = self.facts.get("verdict")
        return None if verdict is None else str(verdict)

    def as_json(self) -> dict[str, Any]:
        """The run as an element of `status --json`."""
        return {
            "run_id": self.run.run_id,
            "state": self.state.value,
            "stage": self.stage,
            "verdict": self.verdict,
            "test_verdict": self.facts.get("test_verdict"),
            "reason": self.facts.get("reason"),
            "cell_set": self.cell_set,
            "device": self.facts.get("device"),
            "cells": self.facts.get("cells"),
            "teardown": self.facts.get("teardown"),
            "closure_sha256": self.facts.get("closure_sha256"),
            "gpu_hours_actual": self.facts.get("gpu_hours_actual"),
            "owner": self.owner,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "problem": self.problem or None,
            "run_dir": str(self.run.path),
        }


def list_runs(runs_dir: Path) -> Iterator[RunHead]:
    """The runs of a directory, newest first (their names begin with their time); none where there is no directory."""
    for name in sorted(_names(runs_dir), reverse=True):
        if not name.startswith("."):
            head = head_of(RunDirectory(runs_dir / name))
            if head is not None:
                yield head


def checked_heads(heads: Iterable[RunHead]) -> Iterator[RunHead]:
    """`heads`, with the closed runs as damaged whose journal is: its end can be whole and the rest of it not."""
    whole = 0
    for count, head in enumerate(heads, 1):
        if head.state is not RunState.CLOSED or whole >= _AT_MOST_WHOLE:
            yield head
            continue
        try:
            if count > ALWAYS_WHOLE and not _touched_since_closed(head):
                yield head
                continue
            whole += 1
            damage = "" if is_chained(head.run.journal) else "its journal is damaged before its last record"
        except OSError as error:
            damage = f"its journal can not be read: {error.strerror}"
        yield replace(head, state=RunState.DAMAGED, problem=damage) if damage else head


def husks(runs_dir: Path) -> list[RunDirectory]:
    """Directories of runs that were never finished being made, and whose maker is gone: nothing was ever asked for.

    One without a lock file may be a second old and about to get it; it counts after a minute.
    """
    made = [RunDirectory(runs_dir / name) for name in _names(runs_dir) if name.startswith(BEING_MADE)]
    return [run for run in made if not run.has_owner() and (run.lock.exists() or _age_s(run.path) > 60)]


def head_of(run: RunDirectory) -> RunHead | None:
    """One run; None where the directory holds no journal and so is not a run."""
    try:
        last = last_record(run.journal)
        if last is not None and last.kind == "closure":
            return _closed(run, last)
        view = read_journal(run.journal)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except JournalDamagedError as error:
        return _unclosed(run, RunState.DAMAGED, "", error.cause, {})
    except OSError as error:
        return _unclosed(run, RunState.DAMAGED, "", f"the journal can not be read: {error.strerror}", {})
    closure = view.last("closure")
    if closure is not None and all(record.kind == "note" for record in view.records[closure.seq :]):
        return _closed(run, closure)
    state = RunState.LIVE if run.has_owner() else RunState.OPEN
    head = _unclosed(run, state, _stage(view.current), "", {} if closure is None else closure.facts)
    attempt = view.last(ATTEMPT_KIND)
    return head if attempt is None else replace(head, expires_at=str(attempt.facts["expires_at"]))


def _touched_since_closed(head: RunHead) -> bool:
    last = last_record(head.run.journal)
    try:
        closed_s = from_wire("" if last is None else last.at).timestamp()
    except ValueError:
        return True
    return head.run.journal.stat().st_mtime > closed_s + _CLOSING_S


def _names(runs_dir: Path) -> list[str]:
    try:
        with os.scandir(runs_dir) as entries:
            return [entry.name for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _closed(run: RunDirectory, closure: JournalRecord) -> RunHead:
    facts = closure.facts
    if facts.get("run_id", run.run_id) != run.run_id:
        problem = f"it is the closed run {facts['run_id']} under another name"
        return _unclosed(run, RunState.MISNAMED, "closure", problem, {})
    return RunHead(
        run=run,
        state=RunState.CLOSED,
        stage="closure",
        owner=str(facts.get("owner")),
        created_at=str(facts.get("created_at")),
        expires_at=None,
        cell_set=str(facts.get("cell_set")),
        facts=facts,
    )


def _unclosed(run: RunDirectory, state: RunState, stage: str, problem: str, facts: Mapping[str, Any]) -> RunHead:
    try:
        tree = read_plan(run).tree
    except OrchestrateError as error:
        tree, problem = {}, problem or error.cause
    if state is RunState.OPEN and tree.get("run_id", run.run_id) != run.run_id:
        state, problem = RunState.MISNAMED, f"it is the run {tree['run_id']} under another name, and was never closed"
    return RunHead(
        run=run,
        state=state,
        stage=stage,
        owner=str(tree.get("owner", "unknown")),
        created_at=str(tree.get("created_at", "")),
        expires_at=tree.get("expires_at"),
        cell_set=str(tree.get("cell_set", "")),
        problem=problem,
        facts=facts,
    )


def _stage(view: JournalView) -> str:
    entered = view.last("stage")
    return "plan" if entered is None else str(entered.facts.get("stage"))
