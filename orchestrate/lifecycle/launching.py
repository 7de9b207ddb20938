"""`launch` as a function: from a selection of cells to a closed run, on any backend.

This is where the parts are put together; each of them is told what it needs and looks nothing up by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrate.backends.catalogue import BackendPlace, open_backend, provider_of
from orchestrate.backends.process_table import become_subreaper
from orchestrate.backends.protocol import Backend, Ownership
from orchestrate.cells.cell_set import Selection
from orchestrate.cells.manifest import load_manifest
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import UnsatisfiableError
from orchestrate.lifecycle.attempts import Attempt
from orchestrate.lifecycle.closing import Narrator
from orchestrate.lifecycle.closure import Closed
from orchestrate.lifecycle.corpora import corpora_of
from orchestrate.lifecycle.deadline import Deadline
from orchestrate.lifecycle.journal import Journal, Observer
from orchestrate.lifecycle.plan import Corpus, Plan, make_plan
from orchestrate.lifecycle.recording import ReceiptWriter
from orchestrate.lifecycle.recovery import redactions, self_facts
from orchestrate.lifecycle.run_directory import RunDirectory, RunLock, new_run_id, new_token, prepare_run
from orchestrate.lifecycle.signals import StopSignals
from orchestrate.lifecycle.source import read_source
from orchestrate.lifecycle.supervisor import Supervisor

__all__ = ["Launch", "Launched", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is launched from.

    Attributes:
        runs_dir: the runs directory.
        temp_base: where temporary folders are made.
        home: the home folder, which no receipt may name; None where there is none.
        harness: the folder of the harness package.
        build_record: the file in which a wheel keeps the commit it was built from.
        environ: the environment of this process.
    """

    runs_dir: Path
    temp_base: Path
    home: Path | None
    harness: Path
    build_record: Path
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Launched:
    """What came of a launch; `run`, `plan` and `closed` are None when a signal came before anything was made."""

    run: RunDirectory | None
    plan: Plan | None
    closed: Closed | None
    stopped_by: str | None


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch.

    Attributes:
        backend: the backend's name; `settings` is what was chosen for it (plain JSON, it goes into the plan).
        places: settings of each place to ask, in order, that stand above the others.
        wait_s: how long places that are full are asked again; `first_pause_s` is the pause before the second round.
        payload: local alone: the payload's command line without its evidence arguments; None for the harness.
        reserve_s: how much of the deadline belongs to the teardown; None for what the backend needs.
    """

    selection: Selection
    repeat: int
    deadline_s: float
    owner: str
    place: Place
    narrator: Narrator
    schedule: str = "fixed"
    backend: str = "local"
    settings: Mapping[str, Any] = field(default_factory=dict)
    places: tuple[Mapping[str, Any], ...] = ({},)
    wait_s: float = 0.0
    first_pause_s: float = 15.0
    corpus: Corpus | None = None
    max_gpu_hours: float | None = None
    payload: tuple[str, ...] | None = None
    reserve_s: float | None = None
    observer: Observer | None = None
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic

    def start(self) -> Launched:
        """Run to the closure.

        Raises before anything is made: `NotRunError` for a deadline without room, `RunsDirError`, `UsageError`,
        `UnsatisfiableError` for more GPU hours than allowed.
        """
        waiting: list[Supervisor] = []

        def still_to_do() -> str:
            return waiting[0].still_to_do() if waiting else "getting ready to stop"

        with StopSignals(still_to_do) as signals:
            started = self.clock()
            owned = self._ownership()
            settings = {**self.settings, **self.places[0]}
            reserve_s = self._open_backend(owned, settings).teardown_reserve_s
            reserve_s = reserve_s if self.reserve_s is None else self.reserve_s
            deadline = Deadline.start(self.deadline_s, reserve_s, self.clock, started=started)
            token = owned.token
            plan = self._plan(owned, deadline)
            if signals.first is not None:
                return Launched(None, None, None, signals.first)
            run, lock = prepare_run(
                self.place.runs_dir, plan.run_id, token, plan.data, lambda path: self._begin(path, plan)
            )
            lifeline = os.pipe()
            journal = Journal(run.journal, observer=self.observer, on_disk_full=run.free_reserve, now=self.now)
            try:
                supervisor = self._supervisor(run, plan, token, journal, deadline, signals, lifeline)
                waiting.append(supervisor)
                closed = supervisor.launch()
            finally:
                self._let_go(journal, lock, lifeline)
            return Launched(run, plan, closed, signals.first)

    def _ownership(self) -> Ownership:
        now = self.now()
        run_id = new_run_id(now)
        lasts_s = self.deadline_s + provider_of(self.backend).expiry_slack_s
        expires_at = to_wire(now + timedelta(seconds=lasts_s))
        return Ownership(run_id, new_token(), self.owner, expires_at, self.place.runs_dir / run_id)

    def _open_backend(self, owned: Ownership, settings: Mapping[str, Any]) -> Backend:
        place = BackendPlace(
            temp_base=self.place.temp_base,
            home=self.place.home,
            environ=self.place.environ,
            runs_dir=self.place.runs_dir,
            payload=self.payload,
            adopts_orphans=become_subreaper(),
        )
        return open_backend(self.backend, owned, settings, place)

    def _plan(self, owned: Ownership, deadline: Deadline) -> Plan:
        plan = make_plan(
            run_id=owned.run_id,
            token=owned.token,
            owner=owned.owner,
            backend=self.backend,
            selection=self.selection,
            manifest=load_manifest(),
            repeat=self.repeat,
            schedule=self.schedule,
            deadline=deadline,
            source=read_source(self.place.harness, self.place.build_record, self.place.environ),
            corpora=corpora_of(self.selection.cells, self.corpus),
            max_gpu_hours=self.max_gpu_hours,
            settings=self.settings,
            places=self.places,
            wait_s=self.wait_s,
            expires_at=owned.expires_at,
            now=self.now(),
        )
        if self.max_gpu_hours is not None and plan.gpu_hours_estimate > self.max_gpu_hours:
            raise UnsatisfiableError(
                f"the run may take {plan.gpu_hours_estimate:g} GPU hours, more than --max-gpu-hours allows "
                f"({self.max_gpu_hours:g}); nothing was started",
                remedy="shorten --deadline, select fewer cells, or allow more",
            )
        return plan

    def _begin(self, path: Path, plan: Plan) -> None:
        journal = Journal(path, observer=self.observer, now=self.now)
        try:
            journal.append(
                "planned",
                plan_sha256=plan.sha256,
                token_sha256=plan.tree["token_sha256"],
                supervisor=self_facts(),
            )
        finally:
            journal.close()

    def _supervisor(
        self,
        run: RunDirectory,
        plan: Plan,
        token: str,
        journal: Journal,
        deadline: Deadline,
        signals: StopSignals,
        lifeline: tuple[int, int],
    ) -> Supervisor:
        return Supervisor(
            run=run,
            plan=plan,
            attempt=Attempt.first(plan),
            journal=journal,
            receipts=ReceiptWriter(run, plan, journal, redactions(token, self.place.home)),
            open_backend=lambda each: self._open_backend(each.ownership(plan, run, token), each.settings(plan)),
            corpus=self.corpus,
            deadline=deadline,
            admission_end=deadline.started + self.wait_s,
            first_pause_s=self.first_pause_s,
            signals=signals,
            narrator=self.narrator,
            lifeline_fds=lifeline,
            environ=self.place.environ,
            harness=self.place.harness,
            now=self.now,
            clock=self.clock,
        )

    @staticmethod
    def _let_go(journal: Journal, lock: RunLock, lifeline: tuple[int, int]) -> None:
        with suppress(OSError):
            journal.close()
        for fd in lifeline:
            os.close(fd)
        lock.release()
