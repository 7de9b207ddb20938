"""Giving back what a run got through SkyPilot: the request first, then the cluster, then whatever is left of either."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrate.backends.protocol import Outcome, Step
from orchestrate.backends.skypilot_answers import is_gone, said
from orchestrate.backends.skypilot_calls import Calls
from orchestrate.backends.skypilot_census import Census
from orchestrate.backends.slurm_login import SlurmLogin
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import BackendError

__all__ = ["Teardown"]

SERVER_S = 120.0
CANCEL_S = 60.0
DOWN_S = 300.0
DOWN_BLIND_S = 30.0
ALLOCATION_S = 60.0
EVERY_S = 1.0


@dataclass(slots=True)
class Teardown:
    """Removes the cluster named `cluster`, and nothing else. Every step is tried, whatever became of those before.

    `requests` are the ids of the requests that are known to have been made for it, `on_slurm` is its name in Slurm's
    queue; where the end of that (SkyPilot's hash of the user) is not known, the cluster's own name stands for any end.
    """

    calls: Calls
    cluster: str
    requests: tuple[str, ...]
    login: SlurmLogin | None
    on_slurm: str
    pause: Callable[[float], None] = time.sleep
    _steps: list[Step] = field(default_factory=list)

    def release(self) -> tuple[Step, ...]:
        """Cancel, delete, end what is left of the allocation, remove what lies about. Idempotent."""
        self._try("cancel-request", self._cancel_requests)
        self._try("down", self._down)
        if self.login is not None:
            self._try("cancel-allocation", lambda: self._cancel_allocation(self.login))
            self._try("remove-folders", lambda: self._remove_folders(self.login))
        self._try("forget-cluster", self._forget)
        return tuple(self._steps)

    def _try(self, step: str, action: Callable[[], tuple[Outcome, str]]) -> None:
        try:
            outcome, detail = action()
        except Exception as error:  # noqa: BLE001  # the next step must be tried, whatever this one met
            gone = is_gone(error)
            outcome, detail = (Outcome.NOTHING_THERE if gone else Outcome.FAILED), said(error)
        self._steps.append(Step(step, self.cluster, outcome, to_wire(utc_now()), detail))

    def _cancel_requests(self) -> tuple[Outcome, str]:
        """A launch that is still on its way would create the cluster again behind our back."""
        # A local server that is down lists no requests, and takes up again what it was doing when it is started.
        self.calls.call("the server", self.calls.sdk.server, SERVER_S)
        live = self._live()
        if not live:
            return Outcome.NOTHING_THERE, "no request of this run is on its way"
        self.calls.result("cancelling the requests", lambda: self.calls.sdk.cancel_requests(live), CANCEL_S)
        end = time.monotonic() + CANCEL_S
        while (left := self._live()) and time.monotonic() < end:
            self.pause(EVERY_S)
        if left:
            return Outcome.FAILED, f"still on its way: {', '.join(left)}"
        return Outcome.DONE, ", ".join(live)

    def _live(self) -> list[str]:
        found = {each.id: each for each in self.calls.requests_of(self.cluster) if each.may_create}
        known = [each for each in self.requests if each not in found]
        if known:  # a server that lists by cluster knows them; an older one is asked by id
            found.update(
                {each.id: each for each in self.calls.call("the requests", lambda: self.calls.sdk.requests(known))}
            )
        return [each.id for each in found.values() if not each.is_over]

    def _down(self) -> tuple[Outcome, str]:
        if not self._record():
            return Outcome.NOTHING_THERE, "SkyPilot has no such cluster"
        limit_s = DOWN_S if self._scheduler_answers() else DOWN_BLIND_S
        self.calls.result("deleting the cluster", lambda: self.calls.sdk.down(self.cluster, purge=False), limit_s)
        return Outcome.DONE, "deleted by SkyPilot"

    def _scheduler_answers(self) -> bool:
        """Whether waiting for SkyPilot is worth while: it asks the same scheduler, again and again."""
        try:
            return self.login is None or self.login.jobs() is not None
        except BackendError:
            return False

    def _record(self) -> bool:
        found = self.calls.result("the cluster", lambda: self.calls.sdk.clusters([self.cluster], force=False), CANCEL_S)
        return bool(found)

    def _cancel_allocation(self, login: SlurmLogin | None) -> tuple[Outcome, str]:
        """What SkyPilot did not end: it forgot the cluster, or its server is not there."""
        if login is None or not (jobs := login.jobs_of(self.on_slurm)):
            return Outcome.NOTHING_THERE, "no job in the queue"
        ids = ", ".join(job.id for job in jobs)
        login.cancel(jobs)
        end = time.monotonic() + ALLOCATION_S
        while (left := login.jobs_of(self.on_slurm)) and time.monotonic() < end:
            self.pause(EVERY_S)
        if left:
            return Outcome.FAILED, f"still there: {', '.join(f'{job.id} {job.state}' for job in left)}"
        return Outcome.DONE, f"jobs {ids}"

    def _remove_folders(self, login: SlurmLogin | None) -> tuple[Outcome, str]:
        if login is None or not (folders := login.folders_of(self.on_slurm)):
            return Outcome.NOTHING_THERE, ""
        if login.jobs_of(self.on_slurm):
            return Outcome.FAILED, "the allocation still uses them"
        login.remove(folders)
        return Outcome.DONE, ", ".join(folders)

    def _forget(self) -> tuple[Outcome, str]:
        """Drop the record of a cluster that is proven gone; where that is not proven it must stay, to be found by."""
        left = Census(self.calls, self.cluster, self.login, self.on_slurm)
        if left.jobs():
            return Outcome.FAILED, "the allocation is still there"
        if not left.records():
            return Outcome.NOTHING_THERE, "SkyPilot has no record of it"
        if self.login is None:
            return Outcome.FAILED, "SkyPilot still has it, and nothing else can tell whether it is gone"
        self.calls.result("dropping the record", lambda: self.calls.sdk.down(self.cluster, purge=True), DOWN_S)
        return Outcome.DONE, "the allocation is gone, so the record went too"
