"""One look for everything that a run may own through SkyPilot: jobs, clusters, requests, folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrate.backends.protocol import Answer, Look, Resource
from orchestrate.backends.skypilot_answers import said
from orchestrate.backends.skypilot_calls import Calls
from orchestrate.backends.slurm_login import SlurmLogin
from orchestrate.clock import to_wire, utc_now

__all__ = ["Census"]

REFRESH_S = 240.0
Question = Callable[[], list[Resource]]


@dataclass(frozen=True, slots=True)
class Census:
    """Looks for the cluster named `cluster`, in Slurm's queue `on_slurm` (see `Teardown`).

    `more` are questions that another place can answer (Kubernetes).
    """

    calls: Calls
    cluster: str
    login: SlurmLogin | None
    on_slurm: str
    more: tuple[tuple[str, Question], ...] = ()

    def look(self) -> Look:
        """Ask every question once; never raises for what it finds. The server is asked first: it may yet create."""
        findings = _Findings()
        # The refresh also starts a local server that is down; one that is down lists no requests.
        findings.ask(f"SkyPilot clusters named {self.cluster} (forced refresh)", self.records)
        findings.ask(f"SkyPilot requests that may create {self.cluster}", self.live_requests)
        if self.login is not None:
            where = self.login.cluster
            findings.ask(f"Slurm jobs of {self.cluster} on {where} (squeue over its login)", self.jobs)
            findings.ask(f"folders of {self.cluster} on {where}", self.folders)
        for what, question in self.more:
            findings.ask(what, question)
        return Look(to_wire(utc_now()), tuple(findings.asked), tuple(findings.remaining), tuple(findings.unknown))

    def records(self) -> list[Resource]:
        """The cluster, if the server still has it after asking the infra."""
        found = self.calls.result(
            "a forced refresh", lambda: self.calls.sdk.clusters([self.cluster], force=True), REFRESH_S
        )
        return [Resource("sky-cluster", f"{self.cluster} ({_status(each)})") for each in found or ()]

    def live_requests(self) -> list[Resource]:
        """Requests of ours that have not ended."""
        return [
            Resource("sky-request", f"{each.id} {each.name} {each.status}")
            for each in self.calls.requests_of(self.cluster)
            if each.may_create and not each.is_over
        ]

    def jobs(self) -> list[Resource]:
        """Allocations, also those that are only now ending."""
        if self.login is None:
            return []
        return [Resource("slurm-job", f"{job.id} {job.state}") for job in self.login.jobs_of(self.on_slurm)]

    def folders(self) -> list[Resource]:
        """What SkyPilot made for the cluster on the Slurm cluster's shared disk."""
        if self.login is None:
            return []
        return [Resource("folder", folder) for folder in self.login.folders_of(self.on_slurm)]


@dataclass(slots=True)
class _Findings:
    asked: list[Answer] = field(default_factory=list)
    remaining: list[Resource] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def ask(self, what: str, question: Question) -> None:
        try:
            found = question()
        except Exception as error:  # noqa: BLE001  # whatever it is, the question has no answer
            self.asked.append(Answer(what, f"could not be asked: {said(error)}"))
            self.unknown.append(what)
            return
        self.asked.append(Answer(what, f"{len(found)} still there" if found else "not there"))
        self.remaining.extend(found)


def _status(record: Any) -> str:
    status = record.get("status") if isinstance(record, dict) else getattr(record, "status", None)
    return str(getattr(status, "value", status))
