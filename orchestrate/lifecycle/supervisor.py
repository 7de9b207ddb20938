"""The launcher's side of a run: plan, admit, acquire, run; then, however that went, to the closure.

The supervisor knows a provider only through the backend protocol. Whatever happens on the way forward (a refusal, a
fault, a signal, the deadline) becomes an `Ending`, and `Closing` does the rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrate.backends.local_node import check_corpora
from orchestrate.backends.protocol import Backend, JobState, JobStatus, Request
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import CapacityError, NotRunError, OrchestrateError, UnsatisfiableError, UsageError
from orchestrate.lifecycle.closing import Closing, Narrator
from orchestrate.lifecycle.closure import Closed
from orchestrate.lifecycle.deadline import LEAST_RUN_S, Deadline
from orchestrate.lifecycle.journal import Journal
from orchestrate.lifecycle.outcome import Ended, Ending
from orchestrate.lifecycle.plan import Plan
from orchestrate.lifecycle.recording import ReceiptWriter
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.lifecycle.signals import StopSignals
from orchestrate.lifecycle.source import pin_files
from orchestrate.lifecycle.warden_keeper import WardenKeeper, readable
from orchestrate.receipts.statement import Stage
from orchestrate.verdict import Verdict

__all__ = ["Supervisor"]

WARDEN_PATIENCE_S = 30.0
FULL_BYTES = 64 << 10
"""Less free room than this on the runs directory's disk is a full disk: the evidence can not be written."""


class _StoppedError(Exception):
    """A stop signal came before the payload ran."""


@dataclass(slots=True)
class Supervisor:
    """Runs one planned run to its closure. Single-threaded; the caller holds the run's lock and closes the journal.

    Args:
        lifeline_fds: read and write end of the node's lifeline. The node gets the read end; the write end is held by
            this process and the warden alone.
        harness: the folder of the harness package, whose files are pinned.
    """

    run: RunDirectory
    plan: Plan
    journal: Journal
    receipts: ReceiptWriter
    backend: Backend
    request: Request
    deadline: Deadline
    signals: StopSignals
    narrator: Narrator
    lifeline_fds: tuple[int, int]
    environ: Mapping[str, str]
    harness: Path
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic
    doing: str = "nothing yet"
    _keeper: WardenKeeper | None = None
    _closing: Closing | None = None
    _told: str | None = None

    def launch(self) -> Closed:
        """Everything from the plan receipt to the closure. Raises nothing that the run itself can bring about."""
        self._closing = Closing(
            run=self.run,
            plan=self.plan,
            journal=self.journal,
            receipts=self.receipts,
            backend=self.backend,
            request=self.request,
            pins=lambda: pin_files(self.harness),
            pause=self.pause,
            narrator=self.narrator,
            now=self.now,
        )
        ending = self._forward(self._closing)
        with suppress(OSError):
            self._record_ending(ending)
        closed = self._closing.close(ending, self._cancelled)
        if self._keeper is not None and closed.closure_sha256 is not None:
            self._keeper.dismiss()
        return closed

    def still_to_do(self) -> str:
        """What is being done now, in words."""
        return self.doing if self._closing is None or self.doing != "closing" else self._closing.doing

    def pause(self, seconds: float) -> None:
        """Wait at least that long, minding the warden."""
        end = self.clock() + seconds
        while (left := end - self.clock()) > 0:
            self._wait(left)

    def _forward(self, closing: Closing) -> Ending:
        try:
            self._start_warden()
            self._plan(closing)
            self._admit()
            self._acquire()
            return self._run()
        except _StoppedError:
            return Ending(Ended.SIGNAL, detail=f"stopped by {self.signals.first}")
        except UnsatisfiableError as error:
            return Ending(Ended.REFUSED, detail=error.cause, verdict=Verdict.UNSATISFIABLE, remedy=error.remedy)
        except CapacityError as error:
            return Ending(Ended.REFUSED, detail=error.cause, verdict=Verdict.CAPACITY, remedy=error.remedy)
        except UsageError as error:  # a value that only the backend could check: waiting does not help
            return Ending(Ended.REFUSED, detail=error.cause, verdict=Verdict.UNSATISFIABLE, remedy=error.remedy)
        except NotRunError as error:
            return Ending(Ended.REFUSED, detail=error.cause, verdict=Verdict.NOT_RUN, remedy=error.remedy)
        except OrchestrateError as error:
            return Ending(Ended.FAULT, detail=error.cause, verdict=Verdict.INFRASTRUCTURE, remedy=error.remedy)
        except Exception as error:  # noqa: BLE001  # whatever it is, the teardown must follow
            detail = f"{type(error).__name__}: {error}"
            return Ending(Ended.FAULT, detail=detail, verdict=Verdict.INFRASTRUCTURE)
        finally:
            self.doing = "closing"

    def _plan(self, closing: Closing) -> None:
        self.doing = "planning"
        self.narrator.stage(Stage.PLAN.value)
        self.narrator.deadline(self.plan.deadline_at)
        closing.state_plan()

    def _start_warden(self) -> None:
        self._keeper = WardenKeeper(
            self.run,
            self.harness,
            self.lifeline_fds[1],
            journal=self._quiet_record,
            spare=self.backend.spare,
            environ=self.environ,
        )
        self._keeper.start()

    def _admit(self) -> None:
        started = self._enter(Stage.ADMIT)
        self.doing = "admission"
        found = self.backend.preflight(self.request)
        check_corpora(self.request.corpora_not_given)
        self.receipts.write(
            Stage.ADMIT,
            started_at=started,
            ended_at=self._time(),
            facts={
                "backend": self.backend.name,
                "device": found.device,
                "accelerators": self.plan.accelerators,
                "preflight": found.facts,
                "fingerprint": found.fingerprint,
                "caps": {**found.caps, **self.plan.tree["caps"]},
                "gpu_hours_estimate": self.plan.gpu_hours_estimate,
                "owner": self.plan.tree["owner"],
                "token_sha256": self.plan.tree["token_sha256"],
            },
        )
        self._checkpoint()
        if self._keeper is not None:  # nothing is asked for before somebody stands by to give it back
            self._keeper.wait_ready(self._wait_or_stop, timeout_s=WARDEN_PATIENCE_S, clock=self.clock)

    def _acquire(self) -> None:
        started = self._enter(Stage.ACQUIRE)
        self.doing = "acquiring"
        self.journal.append("acquiring", intent=dict(self.backend.intent(self.request)))
        acquired = self.backend.acquire(
            self.request, budget_s=max(0.0, self.deadline.budget_s() - LEAST_RUN_S), pause=self._wait_and_tell
        )
        resources = [{"kind": item.kind, "id": item.id} for item in acquired.resources]
        self.journal.append("acquired", resources=resources)
        node = self.receipts.facts(Stage.ADMIT).get("fingerprint")
        facts = {
            "resources": resources,
            "requested": {"accelerators": self.plan.accelerators, **acquired.requested},
            "node": node,
            "manifest_sha256": acquired.manifest_sha256,
            "caps_read": dict(acquired.caps_read),
        }
        self.receipts.write(Stage.ACQUIRE, started_at=started, ended_at=self._time(), facts=facts)

    def _run(self) -> Ending:
        self._enter(Stage.RUN)
        self.doing = "running the cells"
        budget_s = self.deadline.budget_s()
        if budget_s < LEAST_RUN_S:
            return Ending(Ended.DEADLINE, detail="the time was over before the cells could start")
        self.journal.append("submitting", budget_s=round(budget_s, 3))
        began = self.clock()
        submitted = self.backend.submit(self.request, budget_s=budget_s, lifeline_fd=self.lifeline_fds[0])
        self.journal.append("submitted", job=f"{submitted.job.kind} {submitted.job.id}", cap_s=submitted.cap_s)
        while True:
            status = self.backend.poll()
            self._tell(status)
            ending = self._ending(status, self.clock() - began)
            if ending is not None:
                return ending
            self.narrator.tick()
            fd = self.backend.wake_fd()
            self._wait(min(self.backend.poll_interval_s, max(0.0, self.deadline.budget_s())), fd)

    def _ending(self, status: JobStatus, wall_s: float) -> Ending | None:
        """Why the payload must not, or does not, go on; None while it does."""
        full = self._disk_is_full()
        if status.state is JobState.ENDED:
            return Ending(
                Ended.DEADLINE if status.by_cap else Ended.BY_ITSELF,
                detail="the cap of the job ended it" if status.by_cap else "",
                exit_code=status.exit_code,
                signal=status.signal,
                fault=status.fault or (full if status.exit_code != 0 else None),
                wall_s=wall_s,
            )
        if self.signals.first is not None:
            return Ending(Ended.SIGNAL, detail=f"stopped by {self.signals.first}", wall_s=wall_s)
        if self.deadline.budget_s() <= 0:
            spent = f"{self.plan.tree['deadline_s']:g}s, of which {self.deadline.reserve_s:g}s are for the teardown"
            return Ending(Ended.DEADLINE, detail=spent, wall_s=wall_s)
        if full is not None:
            return Ending(Ended.FAULT, detail=full, verdict=Verdict.INFRASTRUCTURE, fault=full, wall_s=wall_s)
        return None

    def _tell(self, status: JobStatus) -> None:
        if self._closing is not None:
            self._closing.observe()
        for event in status.progress:
            self.narrator.event(event)
            if event.get("event") in {"cell-started", "cell-ended", "node-started", "node-ended"}:
                kept = {name: event[name] for name in ("event", "cell", "status", "reason") if name in event}
                self.journal.append("cell" if "cell" in kept else "node", **kept)

    def _record_ending(self, ending: Ending) -> None:
        if self.signals.first is not None:
            self._cancelled()
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

    def _cancelled(self) -> str | None:
        """What the stop signals mean for the run; the first one is recorded."""
        first = self.signals.first
        if first is None:
            return None
        if self._told != first:
            self._told = first
            self._quiet_record("signal", signal=first)
        return f"stopped by {first}"

    def _disk_is_full(self) -> str | None:
        disk = os.statvfs(self.run.path)
        free = (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
        return f"disk-full: {free} bytes are free where the runs directory lies" if free < FULL_BYTES else None

    def _enter(self, stage: Stage) -> str:
        self._checkpoint()
        self.journal.append("stage", stage=stage.value)
        self.narrator.stage(stage.value)
        self._checkpoint()
        return self._time()

    def _checkpoint(self) -> None:
        if self._keeper is not None:
            self._keeper.service()
        if self.signals.first is not None:
            raise _StoppedError

    def _wait_or_stop(self, seconds: float) -> None:
        self._wait(seconds)
        self._checkpoint()

    def _wait_and_tell(self, seconds: float) -> None:
        """Write down what the backend observed, then wait; raises when the run is told to stop."""
        if self._closing is not None:
            self._closing.observe()
        self._wait_or_stop(seconds)

    def _wait(self, seconds: float, fd: int | None = None) -> None:
        """Wait until something happens: time is up, a first signal, the warden reports, or `fd` becomes readable."""
        fds = () if self._keeper is None else self._keeper.fds()
        if self.signals.first is None:
            fds = (*fds, self.signals.wake_fd)
        elif self._told is None:
            self._cancelled()
        readable(fds if fd is None else (*fds, fd), seconds)
        if self._keeper is not None:
            self._keeper.service()

    def _quiet_record(self, kind: str, **facts: Any) -> None:
        try:
            self.journal.append(kind, **facts)
        except OSError as error:
            self.narrator.note(f"the journal refused a record of kind {kind}: {error.strerror}")

    def _time(self) -> str:
        return to_wire(self.now())
