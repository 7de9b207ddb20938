"""The recorded watch streams, replayed: what a poll would have seen at each moment of a real cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrate.capacity.seen import Seen

_STREAMS = Path(__file__).parents[2] / "recorded" / "kubernetes"


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded case: its watch events in the order in which the cluster made them."""

    case: str
    entries: tuple[dict[str, Any], ...]

    def job_uids(self) -> dict[str, str]:
        """The Jobs of the case: name to UID."""
        jobs = [entry["object"]["metadata"] for entry in self.entries if entry["stream"] == "jobs"]
        return {job["name"]: job["uid"] for job in jobs}

    def looks(self, job: str) -> Iterator[Seen]:
        """What polls see that read the Job first, then its pods a little later, with the events at any time.

        Every pair of moments (Job, pods) is taken, and for each the events of either moment, none, and all.
        """
        uid = self.job_uids()[job]
        job_views = [self._view("jobs", upto).get(uid) for upto in range(len(self.entries) + 1)]
        pod_views = [tuple(self._view("pods", upto).values()) for upto in range(len(self.entries) + 1)]
        event_views = [tuple(self._view("events", upto).values()) for upto in range(len(self.entries) + 1)]
        first = next(index for index, view in enumerate(job_views) if view is not None)
        last_known = None
        for early in range(first, len(self.entries) + 1):
            view = job_views[early]
            last_known = view or last_known
            for late in range(early, len(self.entries) + 1):
                for events in {0, early, late, len(self.entries)}:
                    yield Seen(last_known, view is None, pod_views[late], event_views[events])

    def moments(self, job: str) -> Iterator[Seen]:
        """What a poll sees that reads everything at one moment, moment by moment, from the Job's creation."""
        uid = self.job_uids()[job]
        known = False
        for upto in range(1, len(self.entries) + 1):
            view = self._view("jobs", upto).get(uid)
            known = known or view is not None
            if known:
                pods = tuple(self._view("pods", upto).values())
                yield Seen(view, view is None, pods, tuple(self._view("events", upto).values()))

    def _view(self, stream: str, upto: int) -> dict[str, dict[str, Any]]:
        view: dict[str, dict[str, Any]] = {}
        for entry in self.entries[:upto]:
            if entry["stream"] == stream:
                uid = entry["object"]["metadata"]["uid"]
                view[uid] = entry["object"]
                if entry["type"] == "DELETED":
                    del view[uid]
        return view


@pytest.fixture(scope="session")
def recording() -> Callable[[str], Recording]:
    """Load a recorded case by name."""

    def load(case: str) -> Recording:
        lines = (_STREAMS / f"{case}.jsonl").read_text("utf-8").splitlines()
        entries = [json.loads(line) for line in lines]
        # One etcd counts all resource versions, so that they are the order in which things happened.
        entries.sort(key=lambda entry: int(entry["object"]["metadata"]["resourceVersion"]))
        return Recording(case, tuple(entries))

    return load
