"""`launch --resume`: a closed run is measured on, in a further attempt of the same plan and commit.

Only what is missing is measured. What earlier attempts left stays as their receipts bind it, and the closure that
follows supersedes the one before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from orchestrate.clock import utc_now
from orchestrate.errors import ReceiptError, RunIsLiveError, RunsDirError, UnsatisfiableError, UsageError
from orchestrate.lifecycle.attempts import Attempt
from orchestrate.lifecycle.closing import Narrator
from orchestrate.lifecycle.deadline import Deadline
from orchestrate.lifecycle.driving import Driver, Launched, Place, still_to_do
from orchestrate.lifecycle.journal import Journal, Observer
from orchestrate.lifecycle.plan import Corpus, Plan, gpu_count, read_plan
from orchestrate.lifecycle.recording import ReceiptWriter
from orchestrate.lifecycle.recovery import self_facts
from orchestrate.lifecycle.run_directory import RunDirectory, RunLock
from orchestrate.lifecycle.runs import RunState, head_of
from orchestrate.lifecycle.signals import StopSignals
from orchestrate.lifecycle.source import read_source
from orchestrate.lifecycle.supervisor import Supervisor
from orchestrate.receipts.journal_chain import ATTEMPT_KIND
from orchestrate.receipts.record import RunRecord, load_record
from orchestrate.receipts.verify import verify_record
from orchestrate.verdict import Verdict

__all__ = ["Resume", "missing_cells"]


@dataclass(frozen=True, slots=True)
class Resume:
    """One resumption of a closed run.

    Attributes:
        deadline_s: how long it may take; None for as long as the plan allows an attempt.
        corpus: the private corpus, where it lies on this machine; it must be the one of the plan.
        wait_s: how long places that are full are asked again.
        max_gpu_hours: refuse an attempt that may take more.
        payload, reserve_s, first_pause_s: as a launch has them.
    """

    run: RunDirectory
    place: Place
    narrator: Narrator
    deadline_s: float | None = None
    corpus: Corpus | None = None
    wait_s: float = 0.0
    max_gpu_hours: float | None = None
    payload: tuple[str, ...] | None = None
    reserve_s: float | None = None
    first_pause_s: float = 15.0
    observer: Observer | None = None
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic

    def start(self) -> Launched:
        """Run to a further closure.

        Raises before anything is made: `RunIsLiveError`; `ReceiptError` for a run that is not closed, or whose receipts
        do not hold; `UsageError` where nothing is missing, the sources or the corpus are other ones, or the teardown
        of what went before is not settled; `NotRunError`, `RunsDirError` and `UnsatisfiableError` as a launch does.
        """
        driven: list[Supervisor] = []
        driver = self._driver()
        with StopSignals(lambda: still_to_do(driven)) as signals:
            started = self.clock()
            self._refuse_open()
            lock = RunLock.try_take(self.run)
            if lock is None:
                raise _live(self.run)
            try:
                plan, missing = self._examine()
                deadline = self._deadline(plan, started)
                if signals.first is not None:
                    return Launched(None, None, None, signals.first)
                self._keep_reserve()
                journal = driver.journal(self.run)
                attempt = self._begin(plan, missing, deadline, journal)
                closed = driver.drive(
                    self.run,
                    plan,
                    attempt,
                    journal,
                    token=self.run.read_token(),
                    deadline=deadline,
                    wait_s=self.wait_s,
                    signals=signals,
                    driven=driven,
                    why=f"attempt {attempt.number} measured what was missing",
                )
            finally:
                lock.release()
            return Launched(self.run, plan, closed, signals.first)

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

    def _refuse_open(self) -> None:
        head = head_of(self.run)
        if head is not None and head.state is RunState.LIVE:
            raise _live(self.run)
        if head is None or head.state is not RunState.CLOSED:
            raise ReceiptError(
                f"run {self.run.run_id} is not closed" + (f": {head.problem}" if head and head.problem else ""),
                remedy=f"`orchestrate teardown {self.run.run_id}` closes it",
            )

    def _examine(self) -> tuple[Plan, tuple[str, ...]]:
        """The plan and the keys of the missing cells, where the run may be measured on."""
        plan = read_plan(self.run)
        record = load_record(self.run.path)
        verification = verify_record(record)
        if not verification.holds:
            raise ReceiptError(
                f"the receipts of run {plan.run_id} do not hold: {verification.problems[0]}",
                remedy=f"see `orchestrate verify {plan.run_id}`; a run that can not be trusted is not measured on",
            )
        if verification.verdict is Verdict.TEARDOWN_UNCONFIRMED:
            raise UsageError(
                f"something of run {plan.run_id} may still exist: {record.closure and record.closure.facts['reason']}",
                remedy=f"`orchestrate teardown {plan.run_id}` settles that first",
            )
        missing = missing_cells(record)
        if not missing:
            raise UsageError(
                f"nothing is missing in run {plan.run_id}: every expected cell is complete",
                remedy="launch a new run to measure again",
            )
        self._refuse_other_sources(plan)
        if self.corpus is not None and self.corpus.sha256 not in {each["sha256"] for each in plan.tree["corpora"]}:
            raise UsageError(
                "the corpus is not the one of the plan", remedy="give the file whose SHA-256 plan.json has"
            )
        return plan, missing

    def _refuse_other_sources(self, plan: Plan) -> None:
        now = read_source(self.place.harness, self.place.build_record, self.place.environ).as_json()
        planned = plan.tree["source"]
        for name, what in (("commit", "commit"), ("pins_sha256", "source files of the harness")):
            if now[name] != planned[name]:
                raise UsageError(
                    f"run {plan.run_id} was launched from another {what} ({str(planned[name])[:12]}) "
                    f"than the one here ({str(now[name])[:12]})",
                    remedy="check that commit out, or launch a new run",
                )

    def _deadline(self, plan: Plan, started: float) -> Deadline:
        deadline_s = float(plan.tree["deadline_s"]) if self.deadline_s is None else self.deadline_s
        reserve_s = float(plan.tree["teardown_reserve_s"]) if self.reserve_s is None else self.reserve_s
        hours = gpu_count(plan.accelerators) * deadline_s / 3600
        if self.max_gpu_hours is not None and hours > self.max_gpu_hours:
            raise UnsatisfiableError(
                f"the attempt may take {hours:g} GPU hours, more than --max-gpu-hours allows "
                f"({self.max_gpu_hours:g}); nothing was started",
                remedy="shorten --deadline, or allow more",
            )
        return Deadline.start(deadline_s, reserve_s, self.clock, started=started)

    def _keep_reserve(self) -> None:
        try:
            self.run.keep_reserve()
        except OSError as error:
            with suppress(OSError):
                self.run.free_reserve()
            raise RunsDirError(
                f"the run directory {self.run.path} can not be written: {error.strerror or error}; nothing was started",
                remedy="make room, or rights, on the disk of the runs directory",
            ) from error

    def _begin(self, plan: Plan, missing: tuple[str, ...], deadline: Deadline, journal: Journal) -> Attempt:
        number = ReceiptWriter(self.run, plan, journal, {}).next_attempt
        attempt = Attempt.later(plan, number, "resume", 0, missing, deadline.total_s, self.now())
        journal.append(ATTEMPT_KIND, **attempt.as_facts(), supervisor=self_facts())
        return attempt


def missing_cells(record: RunRecord) -> tuple[str, ...]:
    """The keys of the expected cells that no attempt has completed."""
    return tuple(cell.key for cell in record.cells if not cell.complete)


def _live(run: RunDirectory) -> RunIsLiveError:
    return RunIsLiveError(
        f"run {run.run_id} has a living owner", remedy=f"`orchestrate teardown {run.run_id}` asks that owner to end it"
    )
