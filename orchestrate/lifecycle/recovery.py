"""Ending a run whose owner is gone, and looking again at one that was closed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrate.backends.catalogue import BackendPlace, open_backend, provider_of
from orchestrate.backends.process_table import boot_id, identity_of
from orchestrate.backends.protocol import Backend, Fact, Look
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import JournalDamagedError
from orchestrate.lifecycle.attempts import Attempt, attempt_of
from orchestrate.lifecycle.census import take_census
from orchestrate.lifecycle.closing import Closing, Narrator
from orchestrate.lifecycle.closure import Closed, announce
from orchestrate.lifecycle.journal import Journal, JournalView, Observer, read_journal
from orchestrate.lifecycle.outcome import Ended, Ending
from orchestrate.lifecycle.plan import Plan, read_plan
from orchestrate.lifecycle.recording import ReceiptWriter
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.lifecycle.source import pin_files
from orchestrate.receipts.statement import Stage
from orchestrate.verdict import Verdict

__all__ = ["Recovery", "facts_of", "redactions", "self_facts"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """Ends and re-examines runs on behalf of a launcher that is gone.

    Args:
        by: who does it, for the journal: `warden`, `teardown`, `audit`.
        temp_base: where temporary folders are made.
        environ: the environment of this process, for the backend of a run.
        harness: the folder of the harness package that the run was launched with; None where that is not known, and
            then nothing is said about whether its files changed.
        home: the home folder, which no receipt may name.
        narrator: who is told.
    """

    by: str
    temp_base: Path
    environ: Mapping[str, str]
    harness: Path | None
    home: Path | None
    narrator: Narrator
    observer: Observer | None = None
    pause: Callable[[float], None] = time.sleep

    def end(self, run: RunDirectory, why: str) -> Closed | None:
        """Close a run that its owner left open; None when it is closed already. The caller holds its lock.

        Where the journal is damaged, whatever carries the run's token is ended and removed all the same, and then
        `JournalDamagedError` is raised: nothing more can be stated about such a run.
        """
        plan = read_plan(run)
        try:
            journal = Journal(run.journal, observer=self.observer, on_disk_full=run.free_reserve)
        except JournalDamagedError:
            for place in range(len(plan.places)):  # which of them was asked last can not be known any more
                backend = self._open_backend(run, plan, replace(Attempt.first(plan), place=place))
                backend.stop()
                backend.release()
            raise
        try:
            return self._end(run, plan, journal, why)
        finally:
            journal.close()

    def look_again(self, run: RunDirectory, why: str) -> Closed | None:
        """Look at a closed run; when what is there is not what its newest closure says, remove it and close again.

        None when nothing differs. The caller holds the lock.
        """
        plan = read_plan(run)
        journal = Journal(run.journal, observer=self.observer, on_disk_full=run.free_reserve)
        try:
            closing = self._closing(run, plan, journal, why)
            before = closing.receipts.facts(Stage.CLOSURE)
            asked_for_something = journal.view.current.last("acquiring") is not None
            proven_then = before.get("verdict") != "teardown-unconfirmed"
            if proven_then and (not asked_for_something or self._is_gone(plan, closing.backend)):
                return None
            journal.append("takeover", by=self.by, because=why, **self_facts())
            return closing.close_again(before)
        finally:
            journal.close()

    def look(self, run: RunDirectory) -> Look:
        """Look once for everything that the newest attempt may own, with all that its journal knows; changes nothing.

        Nothing is asked about a run that asked for nothing.
        """
        plan, view = read_plan(run), read_journal(run.journal)
        if view.current.last("acquiring") is None:
            return Look(to_wire(utc_now()), (), (), ())
        backend = self._open_backend(run, plan, attempt_of(plan, view))
        backend.recall(facts_of(view.current))
        return backend.census()

    def _open_backend(self, run: RunDirectory, plan: Plan, attempt: Attempt) -> Backend:
        place = BackendPlace(self.temp_base, self.home, self.environ, run.path.parent)
        owned = attempt.ownership(plan, run, run.read_token())
        return open_backend(plan.backend, owned, attempt.settings(plan), place)

    def _is_gone(self, plan: Plan, backend: Backend) -> bool:
        provider = provider_of(plan.backend)
        return take_census(
            backend, pause=self.pause, patience_s=provider.census_patience_s, gap_s=provider.census_gap_s
        ).confirmed

    def _end(self, run: RunDirectory, plan: Plan, journal: Journal, why: str) -> Closed | None:
        view = journal.view
        closing = self._closing(run, plan, journal, why)
        if view.last("closure") is not None and view.records[-1].kind in {"closure", "note"}:
            return None
        newest = closing.receipts.written[-1] if closing.receipts.written else None
        announced = {record.facts["closure_sha256"] for record in view.all("closure")}
        if newest is not None and newest.stage is Stage.CLOSURE and newest.sha256 not in announced:
            announce(newest, plan=plan, journal=journal)  # its writer died between the receipt and its record
            return None
        journal.append("takeover", by=self.by, because=why, **self_facts())
        return closing.close(_ending(view.current), lambda: _cancelled(view.current))

    def _closing(self, run: RunDirectory, plan: Plan, journal: Journal, why: str) -> Closing:
        harness = self.harness
        attempt = attempt_of(plan, journal.view)
        backend = self._open_backend(run, plan, attempt)
        backend.recall(facts_of(journal.view.current))
        receipts = ReceiptWriter(run, plan, journal, redactions(run.read_token(), self.home))
        receipts.begin_attempt(attempt.number)
        return Closing(
            run=run,
            plan=plan,
            journal=journal,
            receipts=receipts,
            backend=backend,
            request=attempt.request(plan, run),
            pins=lambda: None if harness is None else pin_files(harness),
            pause=self.pause,
            narrator=self.narrator,
            why=why,
        )


def facts_of(view: JournalView) -> list[Fact]:
    """What the processes before this one knew: the names that they chose, and what they observed."""
    facts: list[Fact] = [record.facts["intent"] for record in view.all("acquiring")]
    for record in view.all("observed"):
        facts.extend(record.facts["facts"])
    return facts


def redactions(token: str, home: Path | None) -> dict[str, str]:
    """What no receipt may hold, with what stands in its place."""
    redact = {token: "<token>"}
    if home is not None and home != Path("/"):
        redact[str(home)] = "~"
    return redact


def self_facts() -> dict[str, Any]:
    """Who this process is, for the journal."""
    identity = identity_of(os.getpid())
    return {
        "pid": os.getpid(),
        "start_ticks": None if identity is None else identity.start_ticks,
        "boot": boot_id(),
    }


def _ending(view: JournalView) -> Ending:
    ended = view.last("run-ended")
    if ended is None:
        return Ending(Ended.LAUNCHER_LOST)
    facts = ended.facts
    return Ending(
        Ended(facts["ended"]),
        detail=facts["detail"],
        verdict=None if facts["verdict"] is None else Verdict.from_label(facts["verdict"]),
        exit_code=facts["exit_code"],
        signal=facts["signal"],
        fault=facts["fault"],
        wall_s=facts["wall_s"],
    )


def _cancelled(view: JournalView) -> str:
    signalled = view.last("signal")
    if signalled is None:
        return "launcher-lost"
    return f"stopped by {signalled.facts['signal']}, then launcher-lost"
