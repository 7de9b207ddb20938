"""What a launch and a resumption have in common: a prepared run is driven to its closure by this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrate.backends.catalogue import BackendPlace, open_backend, provider_of
from orchestrate.backends.process_table import become_subreaper
from orchestrate.backends.protocol import Backend, Ownership
from orchestrate.clock import utc_now
from orchestrate.lifecycle.attempts import Attempt
from orchestrate.lifecycle.closing import Narrator
from orchestrate.lifecycle.closure import Closed
from orchestrate.lifecycle.deadline import Deadline
from orchestrate.lifecycle.journal import Journal, Observer
from orchestrate.lifecycle.plan import Corpus, Plan
from orchestrate.lifecycle.recording import ReceiptWriter
from orchestrate.lifecycle.recovery import redactions
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.lifecycle.signals import StopSignals
from orchestrate.lifecycle.supervisor import Supervisor

__all__ = ["Driver", "Launched", "Place", "still_to_do"]


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
class Driver:
    """Drives one run from this process.

    Attributes:
        corpus: the private corpus, where it lies on this machine.
        payload: local alone: the payload's command line without its evidence arguments; None for the harness.
        first_pause_s: the pause before places that are full are asked a second time.
    """

    place: Place
    narrator: Narrator
    corpus: Corpus | None = None
    payload: tuple[str, ...] | None = None
    first_pause_s: float = 15.0
    observer: Observer | None = None
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic

    def open_backend(self, name: str, owned: Ownership, settings: Mapping[str, Any]) -> Backend:
        """The backend `name`; raises as `orchestrate.backends.catalogue.open_backend` does."""
        place = BackendPlace(
            temp_base=self.place.temp_base,
            home=self.place.home,
            environ=self.place.environ,
            runs_dir=self.place.runs_dir,
            payload=self.payload,
            # A remote run is elsewhere: what daemons of a provider's client leave would stay unreaped, by hundreds.
            adopts_orphans=not provider_of(name).is_remote and become_subreaper(),
        )
        return open_backend(name, owned, settings, place)

    def journal(self, run: RunDirectory) -> Journal:
        """The journal of a run that this process holds."""
        return Journal(run.journal, observer=self.observer, on_disk_full=run.free_reserve, now=self.now)

    def drive(
        self,
        run: RunDirectory,
        plan: Plan,
        attempt: Attempt,
        journal: Journal,
        *,
        token: str,
        deadline: Deadline,
        wait_s: float,
        signals: StopSignals,
        driven: list[Supervisor],
        why: str = "the run ended",
    ) -> Closed:
        """From the beginning of `attempt` to the closure. The caller holds the lock and closes the journal.

        `wait_s` is how long places that are full are asked again; the supervisor is put into `driven`, for whoever must
        say what it is doing.
        """
        lifeline = os.pipe()
        try:
            supervisor = Supervisor(
                run=run,
                plan=plan,
                attempt=attempt,
                journal=journal,
                receipts=ReceiptWriter(run, plan, journal, redactions(token, self.place.home)),
                open_backend=lambda each: self.open_backend(
                    plan.backend, each.ownership(plan, run, token), each.settings(plan)
                ),
                corpus=self.corpus,
                deadline=deadline,
                admission_end=deadline.started + wait_s,
                first_pause_s=self.first_pause_s,
                signals=signals,
                narrator=self.narrator,
                lifeline_fds=lifeline,
                environ=self.place.environ,
                harness=self.place.harness,
                why=why,
                now=self.now,
                clock=self.clock,
            )
            driven.append(supervisor)
            return supervisor.launch()
        finally:
            with suppress(OSError):
                journal.close()
            for fd in lifeline:
                os.close(fd)


def still_to_do(driven: list[Supervisor]) -> str:
    """What is being done now, in words, for a person who sends a second signal."""
    return driven[0].still_to_do() if driven else "getting ready to stop"
