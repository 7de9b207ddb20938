"""Everything of ours that SkyPilot's server, or a Slurm cluster, holds: found by its marks alone, and taken away."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from orchestrate.backends.protocol import Outcome
from orchestrate.backends.skypilot_answers import said
from orchestrate.backends.skypilot_calls import Calls
from orchestrate.backends.skypilot_census import Census
from orchestrate.backends.skypilot_marks import Marks, is_marked, marks_of_comment, marks_of_name
from orchestrate.backends.skypilot_teardown import Teardown
from orchestrate.backends.slurm_login import SlurmJob, SlurmLogin
from orchestrate.backends.survey import OwnedResources, Survey
from orchestrate.clock import utc_now

__all__ = ["SkySurveyor"]

LIST_S = 180.0
_HASH_LENGTH = len("-0123abcd")


@dataclass(slots=True)
class _Found:
    marks: Marks
    items: list[str] = field(default_factory=list)
    age_s: float = 0.0
    gpus: int | None = None
    login: SlurmLogin | None = None
    on_slurm: str | None = None


@dataclass(frozen=True, slots=True)
class SkySurveyor:
    """SkyPilot's server and the Slurm clusters at the end of `logins`, asked without local state."""

    calls: Calls
    logins: tuple[SlurmLogin, ...]
    where: str
    now: Callable[[], datetime] = utc_now
    pause: Callable[[float], None] = time.sleep
    name: str = "sky"

    def survey(self) -> Survey:
        """See `Surveyor`. What Slurm shows is told even where the server can not be asked, and the other way round."""
        found: dict[str, _Found] = {}
        looked: list[str] = []
        unknown: list[str] = []
        self._ask("SkyPilot's server", looked, unknown, lambda: self._at_server(found))
        self._ask("requests in the queue of SkyPilot's server", looked, unknown, lambda: self._in_queue(found))
        for login in self.logins:
            question = partial(self._on_slurm, login, found)
            self._ask(f"Slurm cluster {login.cluster}", looked, unknown, question)
        return Survey(
            tuple(self._owned(cluster, each) for cluster, each in sorted(found.items())), tuple(looked), tuple(unknown)
        )

    def reap(self, owned: OwnedResources) -> tuple[str, ...]:
        """See `Surveyor`. Only the cluster of exactly that name goes: its name is its mark, and is never used twice."""
        cluster = str(owned.handle["cluster"])
        if marks_of_name(cluster) is None:
            return (f"{cluster} is no name of ours",)
        login = next((each for each in self.logins if each.cluster == owned.handle.get("slurm")), None)
        on_slurm = str(owned.handle.get("on_slurm") or cluster)
        steps = Teardown(self.calls, cluster, (), login, on_slurm, pause=self.pause).release()
        look = Census(self.calls, cluster, login, on_slurm).look()
        if look.is_clean:
            return ()
        failed = [f"{step.step}: {step.detail}" for step in steps if step.outcome is Outcome.FAILED]
        return (
            *(f"{item.kind} {item.id}" for item in look.remaining),
            *(f"unknown: {each}" for each in look.unknown),
            *failed,
        )

    @staticmethod
    def _ask(what: str, looked: list[str], unknown: list[str], question: Callable[[], None]) -> None:
        try:
            question()
        except Exception as error:  # noqa: BLE001  # whatever it is, the question has no answer
            unknown.append(f"{what} could not be asked: {said(error)}")
        else:
            looked.append(what)

    def _at_server(self, found: dict[str, _Found]) -> None:
        records = self.calls.result("every cluster", lambda: self.calls.sdk.clusters(None, force=False), LIST_S)
        for record in records or ():
            name = str(_field(record, "name"))
            marks = marks_of_name(name)
            if marks is None:
                continue
            each = found.setdefault(name, _Found(_with_labels(marks, _field(record, "labels"))))
            status = _field(record, "status")
            each.items.append(
                f"SkyPilot cluster {name} {getattr(status, 'value', status)} on {_field(record, 'cloud')}"
            )
            each.age_s = max(each.age_s, self.now().timestamp() - float(_field(record, "launched_at") or 0.0))
            login = self._login_of(record)
            each.login = each.login or login

    def _in_queue(self, found: dict[str, _Found]) -> None:
        """A launch that has made no cluster yet still may: whoever asked for it can be gone."""
        for request in self.calls.call("every request", self.calls.sdk.requests, LIST_S):
            marks = None if request.cluster is None else marks_of_name(request.cluster)
            if marks is not None and request.may_create and not request.is_over:
                each = found.setdefault(str(request.cluster), _Found(marks))
                each.items.append(f"SkyPilot request {request.id} {request.name} {request.status}")

    def _on_slurm(self, login: SlurmLogin, found: dict[str, _Found]) -> None:
        for job in login.jobs():
            cluster = job.name[:-_HASH_LENGTH] if marks_of_name(job.name) is None else job.name
            told = marks_of_comment(job.comment)
            if not job.is_there or told is None or not is_marked(job.name, job.comment):
                continue
            each = found.setdefault(cluster, _Found(told))
            each.marks = told
            each.login, each.on_slurm = login, job.name
            each.items.append(f"Slurm job {job.id} {job.state} on {login.cluster}")
            each.gpus = (each.gpus or 0) + (job.gpus or 0) if job.state != "PENDING" else each.gpus
            each.age_s = max(each.age_s, self._age_s(job))

    def _age_s(self, job: SlurmJob) -> float:
        try:  # Slurm writes its own local time; a clock that is elsewhere must not make an age negative
            return max(0.0, (self.now() - datetime.fromisoformat(job.started_at).astimezone()).total_seconds())
        except ValueError:
            return 0.0

    def _login_of(self, record: Any) -> SlurmLogin | None:
        region = str(_field(record, "region"))
        on_slurm = str(_field(record, "cloud")).lower() == "slurm"
        return next((login for login in self.logins if on_slurm and login.cluster == region), None)

    def _owned(self, cluster: str, each: _Found) -> OwnedResources:
        return OwnedResources(
            backend=self.name,
            where=self.where if each.login is None else f"slurm/{each.login.cluster}",
            run_id=each.marks.run_id or "unknown",
            owner=each.marks.owner or "unknown",
            expires_at=each.marks.expires_at,
            age_s=each.age_s,
            items=tuple(each.items),
            handle={
                "cluster": cluster,
                "slurm": None if each.login is None else each.login.cluster,
                "on_slurm": each.on_slurm,
            },
            gpus=each.gpus,
        )


def _with_labels(marks: Marks, labels: Any) -> Marks:
    """`marks` with what the labels of the task tell besides."""
    known = labels if isinstance(labels, dict) else {}
    return Marks(
        marks.token_digest,
        marks.expires_at,
        run_id=str(known.get("orchestrate-run-id") or ""),
        owner=str(known.get("orchestrate-owner") or ""),
    )


def _field(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, dict) else getattr(record, name, None)
