"""How the payload is doing: SkyPilot's own status of the job, the node's progress lines, and the allocation itself."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrate.backends.protocol import JobState, JobStatus
from orchestrate.backends.skypilot_answers import failed, said
from orchestrate.backends.skypilot_calls import Calls, RequestLostError
from orchestrate.backends.skypilot_files import Files
from orchestrate.backends.skypilot_known import Known
from orchestrate.backends.slurm_login import SlurmLogin
from orchestrate.errors import BackendError

__all__ = ["Watch"]

ASK_EVERY_S = 30.0
"""A job's status costs the server a connection to the node, which takes it seconds."""

ASK_BARE_S = 5.0
TROUBLE_S = 300.0
"""For so long the server may be unwell before the run is given up: the job goes on without it, inside its caps."""

REQUEST_S = 240.0
_ENDED = frozenset({"SUCCEEDED", "FAILED", "FAILED_SETUP", "FAILED_DRIVER", "CANCELLED"})
_TIMEOUT_CODE = 124


@dataclass(slots=True)
class Watch:
    """Polls one job. Nothing blocks for the server's answer: it is a request there, and each poll looks at it.

    `ended` says that the job's own status was a terminal one.
    """

    calls: Calls
    known: Known
    files: Files
    login: SlurmLogin | None
    clock: Callable[[], float] = time.monotonic
    ended: bool = False
    _offset: int = 0
    _torn: bytes = b""
    _request: str | None = None
    _requested_at: float = 0.0
    _asked_at: float | None = None
    _node_ended: bool = False
    _trouble: tuple[float, Exception] | None = field(default=None)
    _running_since: float | None = None

    def poll(self) -> JobStatus:
        """One look. Raises `BackendError` when the job could not be asked about for too long."""
        progress = self._progress()
        gone = self._gone()
        if gone is not None:
            return JobStatus(JobState.ENDED, progress=progress, fault=gone[0], by_cap=gone[1])
        status = self._status()
        if status in _ENDED:
            self.ended = True
            return self._ended(str(status), (*progress, *self._progress()))
        running = status == "RUNNING" or self._offset > 0
        if running and self._running_since is None:
            self._running_since = self.clock()
        return JobStatus(JobState.RUNNING if running else JobState.WAITING, progress=progress)

    def _progress(self) -> tuple[Mapping[str, Any], ...]:
        try:
            new = self.files.progress(self._offset)
        except BackendError:
            return ()  # whether that matters is for the job's status to say
        if not new:
            return ()
        self._offset += len(new)
        *whole, self._torn = (self._torn + new).split(b"\n")
        events = tuple(event for event in map(_parsed, whole) if event is not None)
        self._node_ended = self._node_ended or any(event.get("event") == "node-ended" for event in events)
        return events

    def _gone(self) -> tuple[str, bool] | None:
        """What became of the allocation where it is not there any more, and whether a cap ended it."""
        if self.login is None:
            return None
        try:
            jobs = [
                job for job in self.login.jobs() if self.known.on_cloud is not None and job.name == self.known.on_cloud
            ]
        except BackendError:
            return None
        if any(job.is_there for job in jobs):
            return None
        state = jobs[-1].state if jobs else "gone from the queue"
        if state in {"TIMEOUT", "DEADLINE"}:
            return "the time limit of the Slurm allocation ended it", True
        return f"the Slurm allocation was ended by somebody outside, or by the cluster: it is {state}", False

    def _status(self) -> str | None:
        """The job's status when an answer has come, None while none has."""
        try:
            return self._ask()
        except Exception as error:  # SkyPilot's exceptions have no common base
            self._request = None
            now = self.clock()
            self._trouble = self._trouble or (now, error)
            if now - self._trouble[0] > TROUBLE_S:
                raise failed("asking for the job's status", error) from error
        return None

    def _ask(self) -> str | None:
        sdk, job, now = self.calls.sdk, self.known.job, self.clock()
        if job is None:
            raise RequestLostError("no job is known", remedy="launch again")
        if self._request is None:
            wait_s = ASK_BARE_S if self.login is None or self._node_ended else ASK_EVERY_S
            if self._asked_at is not None and now - self._asked_at < wait_s and self._trouble is None:
                return None
            self._asked_at = self._requested_at = now
            self._request = self.calls.call("the job's status", lambda: sdk.job_status(self.known.cluster, job))
        request = self._request
        if not self.calls.is_over("the job's status", request):
            if now - self._requested_at > REQUEST_S:
                self._request = None  # ask anew; the old one has no side effect
            return None
        self._request = None
        answer = self.calls.call("the job's status", lambda: sdk.result(request))
        self._trouble = None
        status = answer.get(job, answer.get(str(job))) if isinstance(answer, Mapping) else None
        if status is None:
            raise RequestLostError(f"the cluster does not know job {job}", remedy="see `sky queue`")
        return str(getattr(status, "value", status)).rpartition(".")[2]

    def _ended(self, status: str, progress: tuple[Mapping[str, Any], ...]) -> JobStatus:
        match status:
            case "SUCCEEDED":
                return JobStatus(JobState.ENDED, exit_code=0, progress=progress)
            case "FAILED_SETUP":
                fault = "the task's setup failed on the node: see logs/node"
            case "CANCELLED":
                fault = "the job was cancelled by somebody outside"
            case "FAILED_DRIVER":
                fault = "SkyPilot's own program on the node failed: out of memory, or killed"
            case _:
                return self._failed(progress)
        return JobStatus(JobState.ENDED, progress=progress, fault=fault)

    def _failed(self, progress: tuple[Mapping[str, Any], ...]) -> JobStatus:
        """The payload ended with another exit code than 0."""
        try:
            code = self.files.exit_code()
        except BackendError as error:
            return JobStatus(JobState.ENDED, progress=progress, fault=f"its exit code can not be read: {said(error)}")
        spent_s = 0.0 if self._running_since is None else self.clock() - self._running_since
        if code == _TIMEOUT_CODE or (code == 128 + signal.SIGKILL and spent_s >= self.known.job_limit_s):
            return JobStatus(JobState.ENDED, exit_code=code, progress=progress, by_cap=True)
        if code is not None and 128 < code <= 128 + signal.NSIG:
            name = _signal_name(code - 128)
            fault = f"the payload's top process was killed from outside ({name})"
            return JobStatus(JobState.ENDED, signal=name, progress=progress, fault=fault)
        fault_of_start = f"`timeout` could not start the payload (exit {code})" if code in {125, 126, 127} else None
        return JobStatus(JobState.ENDED, exit_code=code, progress=progress, fault=fault_of_start)


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
