"""The launch of a cluster through SkyPilot: one request, watched by its id, for no longer than was agreed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrate.backends.skypilot_answers import failed
from orchestrate.backends.skypilot_calls import Calls, CallTimeoutError, Pause
from orchestrate.backends.skypilot_known import Known
from orchestrate.backends.skypilot_marks import is_marked
from orchestrate.backends.skypilot_refusals import Asked, Waited, refused, too_late
from orchestrate.backends.slurm_login import SlurmLogin
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import BackendError

__all__ = ["Launching"]

LAUNCH_CALL_S = 120.0
"""Until the server has taken the request: harness and corpus are uploaded to a remote one first."""

UPLOAD_BYTES_PER_S = 4 << 20
"""A source that travels is given time for no more than this beside."""

SETUP_S = 900.0
"""From the grant to a node that runs SkyPilot's runtime."""

EVERY_S = 2.0
TROUBLE_S = 90.0


@dataclass(slots=True)
class Launching:
    """One launch. `launch` returns SkyPilot's number of the job and the handle of the cluster."""

    calls: Calls
    known: Known
    login: SlurmLogin | None
    asked: Asked
    clock: Callable[[], float] = time.monotonic
    _trouble_since: float | None = field(default=None)
    _looked: bool = field(default=False)
    _waits_for: str | None = field(default=None)

    def launch(
        self, tree: Mapping[str, Any], *, wait_s: float, budget_s: float, pause: Pause, upload_bytes: int = 0
    ) -> tuple[int, Any]:
        """Get the cluster: `wait_s` is how long the GPUs may be waited for, `budget_s` how long all may take.

        `upload_bytes` is the size of a source that travels.

        Raises the refusal, as `CapacityError`, `UnsatisfiableError` or `BackendError` with its case.
        """
        began = self.clock()
        sdk, cluster = self.calls.sdk, self.known.cluster
        call_s = LAUNCH_CALL_S + upload_bytes / UPLOAD_BYTES_PER_S
        try:
            task = self.calls.call("parsing the task", lambda: sdk.parse(tree))
            request = self.calls.call("launching", lambda: sdk.launch(task, cluster), call_s)
        except BackendError:
            raise
        except Exception as error:
            raise refused(error, self.asked) from error
        self.known.learn_request(request)
        pause(0)  # whoever must go on without this process can cancel the request now
        while not self._is_over(request):
            self._look_for_grant()
            self._check_time(self.clock() - began, wait_s, budget_s)
            pause(EVERY_S)
        try:
            job, handle = self.calls.call("the launch", lambda: sdk.result(request))
        except BackendError:
            raise
        except Exception as error:
            raise refused(error, self.asked, self._waited()) from error
        if job is None:
            raise BackendError("SkyPilot started a cluster without a job", remedy="see `sky api logs`")
        self._grant()
        self.known.learn(
            job=int(job), on_cloud=getattr(handle, "cluster_name_on_cloud", None), usd_per_hour=_price(handle)
        )
        pause(0)
        return int(job), handle

    def _is_over(self, request: str) -> bool:
        """Whether the request has ended. A server that does not answer for a while is not the end of the launch."""
        try:
            over = self.calls.is_over("the launch", request)
        except CallTimeoutError as error:
            self._bear(error)
        except BackendError:
            raise
        except Exception as error:  # noqa: BLE001  # SkyPilot's exceptions have no common base
            self._bear(error)
        else:
            self._trouble_since = None
            return over
        return False

    def _bear(self, error: Exception) -> None:
        now = self.clock()
        self._trouble_since = now if self._trouble_since is None else self._trouble_since
        if now - self._trouble_since > TROUBLE_S:
            raise failed("watching the launch", error) from error

    def _look_for_grant(self) -> None:
        if self.login is None or self.known.granted_at is not None:
            return
        try:
            jobs = self.login.jobs_of(self.known.name_there)
        except BackendError:
            return  # the launch is SkyPilot's; this is only to know sooner
        self._looked = True
        if (ours := next((job.name for job in jobs if is_marked(job.name, job.comment)), None)) is not None:
            self.known.learn(on_cloud=ours)
            jobs = tuple(job for job in jobs if job.name == ours)
        self._waits_for = next((job.reason for job in jobs if job.state == "PENDING"), self._waits_for)
        if any(job.state == "RUNNING" for job in jobs):
            self._grant()

    def _grant(self) -> None:
        if self.known.granted_at is None:
            self.known.learn(granted_at=to_wire(utc_now()))

    def _check_time(self, spent_s: float, wait_s: float, budget_s: float) -> None:
        granted = self.known.granted_at is not None
        # Without a look at the queue the wait and the set-up of the node can not be told apart.
        limit_s = min(budget_s, wait_s + (SETUP_S if granted or self.login is None else 0.0))
        if spent_s <= limit_s:
            return
        if granted:
            raise BackendError(
                f"the GPUs were granted, but the node was not ready after {spent_s:.0f}s",
                remedy="see `sky api logs` and the provision log that it names",
            )
        raise too_late(spent_s, self._waits_for, self.asked)

    def _waited(self) -> Waited | None:
        return Waited(self._waits_for) if self._looked and self.known.granted_at is None else None


def _price(handle: Any) -> float | None:
    """Dollars an hour; None where SkyPilot knows none (on Slurm and Kubernetes that reads as 0)."""
    try:
        price = float(handle.launched_resources.get_cost(3600))
    except Exception:  # noqa: BLE001  # a missing price is no reason to fail
        return None
    return price if price > 0 else None
