"""`launch` as a function: from a selection of cells to a closed run, on any backend.

This is where the parts are put together; each of them is told what it needs and looks nothing up by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrate.backends.catalogue import provider_of
from orchestrate.backends.protocol import Ownership
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import UnsatisfiableError
from orchestrate.lifecycle.attempts import Attempt
from orchestrate.lifecycle.closing import Narrator
from orchestrate.lifecycle.deadline import Deadline
from orchestrate.lifecycle.driving import Driver, Launched, Place, still_to_do
from orchestrate.lifecycle.journal import Journal, Observer
from orchestrate.lifecycle.payload import Payload
from orchestrate.lifecycle.plan import Corpus, Plan, make_plan
from orchestrate.lifecycle.recovery import self_facts
from orchestrate.lifecycle.run_directory import new_run_id, new_token, prepare_run
from orchestrate.lifecycle.signals import StopSignals
from orchestrate.lifecycle.source import read_source
from orchestrate.lifecycle.supervisor import Supervisor

__all__ = ["Launch", "Launched", "Place"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch.

    Attributes:
        runs: what is run.
        backend: the backend's name; `settings` is what was chosen for it (plain JSON, it goes into the plan).
        places: settings of each place to ask, in order, that stand above the others.
        wait_s: how long places that are full are asked again; `first_pause_s` is the pause before the second round.
        payload: local alone: the payload's command line without its evidence arguments; None for the harness.
        reserve_s: how much of the deadline belongs to the teardown; None for what the backend needs.
    """

    runs: Payload
    deadline_s: float
    owner: str
    place: Place
    narrator: Narrator
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
        driven: list[Supervisor] = []
        driver = self._driver()
        with StopSignals(lambda: still_to_do(driven)) as signals:
            started = self.clock()
            owned = self._ownership()
            settings = {**self.settings, **self.places[0]}
            needed_s = driver.open_backend(self.backend, owned, settings).teardown_reserve_s
            reserve_s = needed_s if self.reserve_s is None else self.reserve_s
            deadline = Deadline.start(self.deadline_s, reserve_s, self.clock, started=started)
            plan = self._plan(owned, deadline)
            if signals.first is not None:
                return Launched(None, None, None, signals.first)
            run, lock = prepare_run(
                self.place.runs_dir, plan.run_id, owned.token, plan.data, lambda path: self._begin(path, plan)
            )
            try:
                closed = driver.drive(
                    run,
                    plan,
                    Attempt.first(plan),
                    driver.journal(run),
                    token=owned.token,
                    deadline=deadline,
                    wait_s=self.wait_s,
                    signals=signals,
                    driven=driven,
                )
            finally:
                lock.release()
            return Launched(run, plan, closed, signals.first)

    def _driver(self) -> Driver:
        return Driver(
            place=self.place,
            narrator=self.narrator,
            corpus=self.corpus,
            payload=self.payload,
            first_pause_s=self.first_pause_s,
            observer=self.observer,
            now=self.now,
            clock=self.clock,
        )

    def _ownership(self) -> Ownership:
        now = self.now()
        run_id = new_run_id(now)
        lasts_s = self.deadline_s + provider_of(self.backend).expiry_slack_s
        expires_at = to_wire(now + timedelta(seconds=lasts_s))
        return Ownership(run_id, new_token(), self.owner, expires_at, self.place.runs_dir / run_id)

    def _plan(self, owned: Ownership, deadline: Deadline) -> Plan:
        plan = make_plan(
            run_id=owned.run_id,
            token=owned.token,
            owner=owned.owner,
            backend=self.backend,
            payload=self.runs,
            deadline=deadline,
            source=read_source(self.place.harness, self.place.build_record, self.place.environ),
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
        """Fill the directory of the run while it has no name yet; `path` is that of its journal."""
        self.runs.write_files(path.parent, plan.run_id)
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
