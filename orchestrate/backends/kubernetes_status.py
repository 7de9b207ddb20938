"""How a Job is doing, as the life cycle asks; and what its pod held."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrate.backends.kubernetes_api import Object, name_of
from orchestrate.backends.kubernetes_watch import Watch, image_id, pod_times
from orchestrate.backends.protocol import Fact, JobState, JobStatus
from orchestrate.capacity.kubernetes_ending import Ending, ending, was_replaced
from orchestrate.capacity.seen import Seen, condition
from orchestrate.clock import from_wire

__all__ = ["Held", "status_of"]

_SETTLE_S = 8.0
_BY_TIMEOUT = 124
_TOLD_TO_STOP = 130  # the node's exit code for it (harness/outcome.py)


@dataclass(frozen=True, slots=True)
class Held:
    """What the pod of a run held: its GPUs are held from the moment that it is scheduled."""

    pod: str | None = None
    node: str | None = None
    image_id: str | None = None
    scheduled_at: str | None = None
    finished_at: str | None = None

    @classmethod
    def of_pod(cls, pod: Object) -> Held:
        """What the API says of a pod now."""
        scheduled, finished = pod_times(pod)
        node = (pod.get("spec") or {}).get("nodeName")
        return cls(name_of(pod), None if node is None else str(node), image_id(pod), scheduled, finished)

    def as_fact(self) -> Fact:
        """For the journal."""
        return {
            "kind": "held",
            "pod": self.pod,
            "node": self.node,
            "image_id": self.image_id,
            "scheduled_at": self.scheduled_at,
            "finished_at": self.finished_at,
        }

    @classmethod
    def of_fact(cls, fact: Fact) -> Held:
        """What `as_fact` wrote."""
        return cls(fact["pod"], fact["node"], fact["image_id"], fact["scheduled_at"], fact["finished_at"])

    def seconds(self, now: datetime) -> float:
        """For how long, until now where it has not ended; 0 for what was never scheduled."""
        if self.scheduled_at is None:
            return 0.0
        end = now if self.finished_at is None else from_wire(self.finished_at)
        return max(0.0, (end - from_wire(self.scheduled_at)).total_seconds())


def status_of(watch: Watch, progress: tuple[Mapping[str, Any], ...], *, told_to_stop: bool) -> JobStatus:
    """The Job's own terminal status, once there is one. `ApiError` when a last look can not be had."""
    seen = watch.seen
    if seen is None:
        return JobStatus(JobState.WAITING)
    if (seen.job or {}).get("spec", {}).get("suspend") and not seen.job_gone:
        told = "the Job was suspended while it ran: its queue took the GPUs back, or somebody held it"
        return JobStatus(JobState.ENDED, progress=progress, fault=told)
    found = ending(seen)
    if found is None and _is_over(seen):
        found = ending(watch.look(watch.api.budget(_SETTLE_S), events=True), settled=True)
    if found is None:
        return JobStatus(JobState.RUNNING, progress=progress)
    return _ended(found, progress, told_to_stop=told_to_stop)


def _is_over(seen: Seen) -> bool:
    terminal = condition(seen.job, "Failed") or condition(seen.job, "Complete")
    return seen.job_gone or was_replaced(seen) or terminal is not None


def _ended(found: Ending, progress: tuple[Mapping[str, Any], ...], *, told_to_stop: bool) -> JobStatus:
    code = found.exit_code
    if found.fault is not None:
        return JobStatus(JobState.ENDED, exit_code=code, progress=progress, fault=found.fault)
    if found.by_cap or code == _BY_TIMEOUT:
        return JobStatus(JobState.ENDED, exit_code=code, progress=progress, by_cap=True)
    if code is not None and 128 < code <= 128 + signal.NSIG and code != _TOLD_TO_STOP:
        name = _signal_name(code - 128)
        told = f"the payload's top process was killed in its container ({name})"
        return JobStatus(JobState.ENDED, signal=name, progress=progress, fault=told)
    told_by_others = code == _TOLD_TO_STOP and not told_to_stop
    fault = "the node was told to stop by somebody outside" if told_by_others else None
    return JobStatus(JobState.ENDED, exit_code=code, progress=progress, fault=fault)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
