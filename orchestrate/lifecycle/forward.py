"""One attempt on its way forward: admit, acquire, run. Whatever comes of it is an `Ending`, or an exception."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrate.backends.catalogue import provider_of
from orchestrate.backends.local_node import check_corpora
from orchestrate.backends.protocol import Acquisition, Backend, JobState, JobStatus, Preflight, Request
from orchestrate.clock import to_wire
from orchestrate.errors import BackendError, NotRunError, UsageError
from orchestrate.lifecycle.attempts import Attempt
from orchestrate.lifecycle.closing import Narrator
from orchestrate.lifecycle.deadline import LEAST_RUN_S, Deadline
from orchestrate.lifecycle.journal import Journal
from orchestrate.lifecycle.outcome import Ended, Ending
from orchestrate.lifecycle.patience import call_with_patience
from orchestrate.lifecycle.plan import Plan
from orchestrate.lifecycle.recording import ReceiptWriter
from orchestrate.lifecycle.refusals import Refusal, refusal_of
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.lifecycle.watch import Watch
from orchestrate.receipts.statement import Stage
from orchestrate.verdict import Verdict

__all__ = ["Forward", "RefusedError"]

FULL_BYTES = 64 << 10
"""Less free room than this on the runs directory's disk is a full disk: the evidence can not be written."""


class RefusedError(Exception):
    """The backend refused the attempt; it is in the journal and in a receipt already."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.cause)
        self.refusal = refusal


@dataclass(slots=True)
class Forward:
    """Runs one attempt until its payload ended, or until it can not go on.

    Args:
        budget_s: how long this attempt may wait for what it asks for.
        wait_for_warden: returns when a warden stands by; nothing is asked for before that.
        lifeline_fd: the read end of the node's lifeline.
        observe: writes down what the backend observed.
        doing: told what is being done, in words.
    """

    run: RunDirectory
    plan: Plan
    attempt: Attempt
    journal: Journal
    receipts: ReceiptWriter
    backend: Backend
    request: Request
    deadline: Deadline
    budget_s: float
    watch: Watch
    narrator: Narrator
    wait_for_warden: Callable[[], None]
    lifeline_fd: int
    observe: Callable[[], None]
    doing: Callable[[str], None]
    now: Callable[[], datetime]

    def go(self) -> Ending:
        """Admit, acquire, run. Raises `RefusedError`, `StoppedError`, `NotRunError`, and whatever goes wrong."""
        self._admit()
        self._acquire()
        return self._run()

    def _admit(self) -> None:
        started = self._enter(Stage.ADMIT)
        self.doing("admission")
        facts: dict[str, Any] = {
            "backend": self.backend.name,
            "attempt": self.attempt.number,
            "place": dict(self.plan.places[self.attempt.place]),
            "accelerators": self.plan.accelerators,
            "gpu_hours_estimate": self.plan.gpu_hours_estimate,
            "owner": self.plan.tree["owner"],
            "token_sha256": self.plan.tree["token_sha256"],
        }
        try:
            found = self.backend.preflight(self.request)
            check_corpora(self.request.corpora_not_given)
        except (BackendError, UsageError) as error:
            raise self._refused(Stage.ADMIT, error, started, facts) from error
        facts.update(_admitted(found, self.plan))
        self.receipts.write(Stage.ADMIT, started_at=started, ended_at=self._time(), facts=facts)
        self.watch.checkpoint()
        self.wait_for_warden()

    def _acquire(self) -> None:
        if self.deadline.budget_s() < LEAST_RUN_S:
            raise NotRunError(
                "the admission deadline passed before anything was asked for",
                remedy="launch again; the machine may have been suspended meanwhile",
            )
        started = self._enter(Stage.ACQUIRE)
        self.doing("acquiring")
        self.journal.append("acquiring", intent=dict(self.backend.intent(self.request)))
        try:
            acquired = self._call_acquire(self._patience_s())
        except (BackendError, UsageError) as error:
            raise self._refused(Stage.ACQUIRE, error, started, {"accelerators": self.plan.accelerators}) from error
        resources = [{"kind": item.kind, "id": item.id} for item in acquired.resources]
        self.journal.append("acquired", resources=resources)
        facts = self._granted(acquired, resources)
        self.receipts.write(Stage.ACQUIRE, started_at=started, ended_at=self._time(), facts=facts)

    def _call_acquire(self, budget_s: float) -> Acquisition:
        if not provider_of(self.plan.backend).is_remote:
            return self.backend.acquire(self.request, budget_s=budget_s, pause=self._wait_and_tell)
        return call_with_patience(
            lambda pause: self.backend.acquire(self.request, budget_s=budget_s, pause=pause),
            pause=self._wait_and_tell,
            watch=self.watch,
            budget_s=budget_s,
        )

    def _patience_s(self) -> float:
        return max(0.0, min(self.budget_s, self.deadline.budget_s() - LEAST_RUN_S))

    def _granted(self, acquired: Acquisition, resources: list[dict[str, str]]) -> dict[str, Any]:
        return {
            "resources": resources,
            "requested": {"accelerators": self.plan.accelerators, **acquired.requested},
            "node": self.receipts.facts(Stage.ADMIT).get("fingerprint"),
            "manifest_sha256": acquired.manifest_sha256,
            "caps_read": dict(acquired.caps_read),
        }

    def _refused(
        self, stage: Stage, error: BackendError | UsageError, started: str, facts: dict[str, Any]
    ) -> RefusedError:
        """Write the refusal down, first of all: what was asked for is taken back by whoever is left to do it."""
        place = self.attempt.place
        made = self.attempt.settings(self.plan)
        where = str(made.get("infra") or made.get("context") or self.backend.name)
        asked = {"accelerators": self.plan.accelerators, "device": self.plan.device}
        refusal = refusal_of(error, attempt=self.attempt.number, place=place, where=where, asked=asked, at=self._time())
        self.journal.append("refused", **refusal.as_facts())
        self.observe()
        facts = {**facts, "refused": refusal.as_facts()}
        self.receipts.write(stage, started_at=started, ended_at=self._time(), facts=facts)
        return RefusedError(refusal)

    def _run(self) -> Ending:
        self._enter(Stage.RUN)
        self.doing("running the cells")
        budget_s = self.deadline.budget_s()
        if budget_s < LEAST_RUN_S:
            return Ending(Ended.DEADLINE, detail="the time was over before the cells could start")
        self.journal.append("submitting", budget_s=round(budget_s, 3))
        began = self.watch.clock()
        submitted = self.backend.submit(self.request, budget_s=budget_s, lifeline_fd=self.lifeline_fd)
        self.journal.append("submitted", job=f"{submitted.job.kind} {submitted.job.id}", cap_s=submitted.cap_s)
        while True:
            status = self.backend.poll()
            self._tell(status)
            ending = self._ending(status, self.watch.clock() - began)
            if ending is not None:
                return ending
            self.narrator.tick()
            fd = self.backend.wake_fd()
            self.watch.wait(min(self.backend.poll_interval_s, max(0.0, self.deadline.budget_s())), fd)

    def _ending(self, status: JobStatus, wall_s: float) -> Ending | None:
        """Why the payload must not, or does not, go on; None while it does."""
        full = self._disk_is_full()
        first = self.watch.signals.first
        if status.state is JobState.ENDED:
            return Ending(
                Ended.DEADLINE if status.by_cap else Ended.BY_ITSELF,
                detail="the cap of the job ended it" if status.by_cap else "",
                exit_code=status.exit_code,
                signal=status.signal,
                fault=status.fault or (full if status.exit_code != 0 else None),
                wall_s=wall_s,
            )
        if first is not None:
            return Ending(Ended.SIGNAL, detail=f"stopped by {first}", wall_s=wall_s)
        if self.deadline.budget_s() <= 0:
            spent = f"{self.attempt.deadline_s:g}s, of which {self.deadline.reserve_s:g}s are for the teardown"
            return Ending(Ended.DEADLINE, detail=spent, wall_s=wall_s)
        if full is not None:
            return Ending(Ended.FAULT, detail=full, verdict=Verdict.INFRASTRUCTURE, fault=full, wall_s=wall_s)
        return None

    def _tell(self, status: JobStatus) -> None:
        self.observe()
        for event in status.progress:
            self.narrator.event(event)
            if event.get("event") in {"cell-started", "cell-ended", "node-started", "node-ended"}:
                kept = {name: event[name] for name in ("event", "cell", "status", "reason") if name in event}
                self.journal.append("cell" if "cell" in kept else "node", **kept)

    def _disk_is_full(self) -> str | None:
        disk = os.statvfs(self.run.path)
        free = (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
        return f"disk-full: {free} bytes are free where the runs directory lies" if free < FULL_BYTES else None

    def _enter(self, stage: Stage) -> str:
        self.watch.checkpoint()
        self.journal.append("stage", stage=stage.value)
        self.narrator.stage(stage.value)
        self.watch.checkpoint()
        return self._time()

    def _wait_and_tell(self, seconds: float) -> None:
        """Write down what the backend observed, then wait; raises when the run is told to stop."""
        self.observe()
        self.narrator.tick()
        self.watch.pause_or_stop(seconds)

    def _time(self) -> str:
        return to_wire(self.now())


def _admitted(found: Preflight, plan: Plan) -> dict[str, Any]:
    return {
        "device": found.device,
        "preflight": found.facts,
        "fingerprint": found.fingerprint,
        "caps": {**found.caps, **plan.tree["caps"]},
    }
