"""The launcher's side of a run: plan, then attempt after attempt until one is granted; then to the closure.

The supervisor knows a provider only through the backend protocol. Whatever happens on the way forward (a refusal, a
fault, a signal, the deadline) becomes an `Ending`, and `Closing` does the rest. An attempt that was refused is given
back, and proven gone, before the next one begins.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from orchestrate.backends.protocol import Backend
from orchestrate.clock import utc_now
from orchestrate.errors import NotRunError, OrchestrateError
from orchestrate.lifecycle.attempts import LEAST_TRY_S, Attempt, NextTry, Tried, next_try
from orchestrate.lifecycle.closing import Closing, Narrator
from orchestrate.lifecycle.closure import Closed
from orchestrate.lifecycle.deadline import Deadline
from orchestrate.lifecycle.forward import Forward, RefusedError
from orchestrate.lifecycle.journal import Journal
from orchestrate.lifecycle.outcome import Ended, Ending
from orchestrate.lifecycle.plan import Corpus, Plan
from orchestrate.lifecycle.recording import ReceiptWriter
from orchestrate.lifecycle.refusals import Refusal, refusals_in, verdict_of
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.lifecycle.signals import StopSignals
from orchestrate.lifecycle.source import pin_files
from orchestrate.lifecycle.warden_keeper import WardenKeeper
from orchestrate.lifecycle.watch import StoppedError, Watch
from orchestrate.receipts.journal_chain import ATTEMPT_KIND
from orchestrate.receipts.statement import Stage
from orchestrate.verdict import Verdict

__all__ = ["Supervisor"]

WARDEN_PATIENCE_S = 30.0


@dataclass(slots=True)
class Supervisor:
    """Runs one planned run to its closure. Single-threaded; the caller holds the run's lock and closes the journal.

    Args:
        attempt: the attempt to begin with; `deadline` is its deadline.
        open_backend: the backend of an attempt.
        corpus: the private corpus, where it lies on this machine.
        admission_end: until when (by `clock`) refused places are asked again.
        first_pause_s: the pause before the second round of asking.
        why: what the closure says about its reason for being.
        lifeline_fds: read and write end of the node's lifeline. The node gets the read end; the write end is held by
            this process and the warden alone.
        harness: the folder of the harness package, whose files are pinned.
    """

    run: RunDirectory
    plan: Plan
    attempt: Attempt
    journal: Journal
    receipts: ReceiptWriter
    open_backend: Callable[[Attempt], Backend]
    corpus: Corpus | None
    deadline: Deadline
    admission_end: float
    signals: StopSignals
    narrator: Narrator
    lifeline_fds: tuple[int, int]
    environ: Mapping[str, str]
    harness: Path
    first_pause_s: float = 15.0
    why: str = "the run ended"
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic
    doing: str = "nothing yet"
    _backend: Backend | None = None
    _closing: Closing | None = None
    _watch: Watch | None = None
    _tried: list[Tried] = field(default_factory=list)

    def launch(self) -> Closed:
        """Everything from the plan receipt to the closure. Raises nothing that the run itself can bring about."""
        watch = self._watch = Watch(self.journal, self.signals, self.narrator.note, self.clock)
        backend = self._backend = self.open_backend(self.attempt)
        closing = self._closing = Closing(
            run=self.run,
            plan=self.plan,
            journal=self.journal,
            receipts=self.receipts,
            backend=backend,
            request=self.attempt.request(self.plan, self.run, self.corpus),
            pins=lambda: pin_files(self.harness),
            pause=watch.pause,
            narrator=self.narrator,
            why=self.why,
            now=self.now,
        )
        self.receipts.begin_attempt(self.attempt.number)
        ending = self._all_attempts(watch, closing)
        self.doing = "closing"
        with suppress(OSError):
            self._record_ending(ending, watch)
        closed = closing.close(ending, watch.cancelled)
        if watch.keeper is not None and closed.closure_sha256 is not None:
            watch.keeper.dismiss()
        return closed

    def still_to_do(self) -> str:
        """What is being done now, in words."""
        return self.doing if self._closing is None or self.doing != "closing" else self._closing.doing

    def _all_attempts(self, watch: Watch, closing: Closing) -> Ending:
        """Attempt after attempt, until one was granted or nothing more is to be tried."""
        ended = self._guarded(lambda: self._prepare(watch, closing))
        while ended is None:
            ending = self._guarded(lambda: self._forward(watch, closing).go())
            assert ending is not None  # noqa: S101  # `go` returns one, and `_guarded` makes one of every exception
            if ending.ended is not Ended.REFUSED:
                return ending
            ended = self._guarded(partial(self._again, watch, closing, ending))
        return ended

    def _guarded(self, act: Callable[[], Ending | None]) -> Ending | None:
        """What `act` returns, or the ending that its exception is."""
        try:
            return act()
        except StoppedError:
            return Ending(Ended.SIGNAL, detail=f"stopped by {self.signals.first}")
        except RefusedError as error:
            refusal = error.refusal
            return Ending(Ended.REFUSED, detail=refusal.cause, verdict=refusal.verdict, remedy=refusal.remedy)
        except NotRunError as error:
            return Ending(Ended.REFUSED, detail=error.cause, verdict=Verdict.NOT_RUN, remedy=error.remedy)
        except OrchestrateError as error:
            return Ending(Ended.FAULT, detail=error.cause, verdict=Verdict.INFRASTRUCTURE, remedy=error.remedy)
        except Exception as error:  # noqa: BLE001  # whatever it is, the teardown must follow
            detail = f"{type(error).__name__}: {error}"
            return Ending(Ended.FAULT, detail=detail, verdict=Verdict.INFRASTRUCTURE)

    def _prepare(self, watch: Watch, closing: Closing) -> None:
        watch.keeper = WardenKeeper(
            self.run,
            self.harness,
            self.lifeline_fds[1],
            journal=watch.record,
            spare=self._spare,
            environ=self.environ,
        )
        watch.keeper.start()
        self.doing = "planning"
        self.narrator.stage(Stage.PLAN.value)
        self.narrator.deadline(self.attempt.deadline_at)
        closing.state_plan()

    def _spare(self, pid: int) -> None:
        if self._backend is not None:
            self._backend.spare(pid)

    def _forward(self, watch: Watch, closing: Closing) -> Forward:
        return Forward(
            run=self.run,
            plan=self.plan,
            attempt=self.attempt,
            journal=self.journal,
            receipts=self.receipts,
            backend=closing.backend,
            request=closing.request,
            deadline=self.deadline,
            budget_s=max(LEAST_TRY_S, self._admission_left_s()) if self.attempt.why == "again" else math.inf,
            watch=watch,
            narrator=self.narrator,
            wait_for_warden=lambda: self._wait_for_warden(watch),
            lifeline_fd=self.lifeline_fds[0],
            observe=closing.observe,
            doing=self._say_doing,
            now=self.now,
        )

    def _say_doing(self, what: str) -> None:
        self.doing = what

    def _wait_for_warden(self, watch: Watch) -> None:
        """Nothing is asked for before somebody stands by to give it back."""
        if watch.keeper is not None:
            watch.keeper.wait_ready(watch.wait_or_stop, timeout_s=WARDEN_PATIENCE_S, clock=self.clock)

    def _again(self, watch: Watch, closing: Closing, ending: Ending) -> Ending | None:
        """Give back what was refused and begin the next attempt; the ending where there is none."""
        refusals = refusals_in(self.journal.view)
        if not refusals:
            return ending  # the admission deadline passed before anything was asked for
        if ending.verdict is Verdict.NOT_RUN:
            return _all_refused(refusals)
        newest = refusals[-1]
        self._tried.append(Tried(newest.place, newest.verdict))
        closing.tell_capacity()
        following = next_try(
            self._tried,
            len(self.plan.places),
            left_s=self._admission_left_s(),
            retry_after_s=newest.case.retry_after_s,
            first_pause_s=self.first_pause_s,
        )
        if following is None:
            return _all_refused(refusals)
        self.narrator.note(f"attempt {self.attempt.number} was refused ({newest.verdict}): {newest.cause}")
        self.doing = "giving back what was refused"
        if not closing.give_back(ending):
            return ending
        self.doing = f"waiting {following.after_s:.0f}s before the next attempt"
        watch.pause_or_stop(following.after_s)
        self._begin(following, watch, closing)
        return None

    def _begin(self, following: NextTry, watch: Watch, closing: Closing) -> None:
        self.attempt = Attempt.later(
            self.plan,
            self.receipts.next_attempt,
            following.why,
            following.place,
            self.attempt.cells,
            self.deadline.total_s,
            self.now(),
        )
        self.deadline = replace(self.deadline, started=self.clock())
        self.journal.append(ATTEMPT_KIND, **self.attempt.as_facts())
        self.receipts.begin_attempt(self.attempt.number)
        self.narrator.deadline(self.attempt.deadline_at)
        self._backend = self.open_backend(self.attempt)
        if watch.keeper is not None and watch.keeper.pid is not None:
            self._backend.spare(watch.keeper.pid)
        closing.begin(self._backend, self.attempt.request(self.plan, self.run, self.corpus))

    def _admission_left_s(self) -> float:
        return self.admission_end - self.clock()

    def _record_ending(self, ending: Ending, watch: Watch) -> None:
        watch.cancelled()
        self.journal.append(
            "run-ended",
            ended=ending.ended.value,
            detail=ending.detail,
            exit_code=ending.exit_code,
            signal=ending.signal,
            fault=ending.fault,
            verdict=None if ending.verdict is None else ending.verdict.label,
            wall_s=round(ending.wall_s, 3),
        )
        if ending.detail:
            self.narrator.note(ending.detail)


def _all_refused(refusals: tuple[Refusal, ...]) -> Ending:
    """The ending of a run of which every attempt was refused."""
    if len(refusals) == 1:
        only = refusals[0]
        return Ending(Ended.REFUSED, detail=only.cause, verdict=only.verdict, remedy=only.remedy)
    verdict = verdict_of(refusals)
    mixed = "" if len({each.verdict for each in refusals}) == 1 else "for different reasons; "
    said = "; ".join(f"attempt {each.attempt}: {each.verdict}: {each.cause}" for each in refusals[-4:])
    remedy = next((each.remedy for each in reversed(refusals) if each.verdict is verdict), refusals[-1].remedy)
    detail = f"all {len(refusals)} attempts were refused, {mixed}{said}"
    return Ending(Ended.REFUSED, detail=detail, verdict=verdict, remedy=remedy)
