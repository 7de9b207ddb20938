"""The caps of a cluster as its provider gives them back after the creation, and what was really allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from orchestrate.backends.skypilot_answers import said
from orchestrate.backends.skypilot_calls import Calls
from orchestrate.backends.skypilot_known import Known
from orchestrate.backends.slurm_login import SlurmJob, SlurmLogin

__all__ = ["ReadBack", "read_caps"]

REQUEST_S = 90.0


@dataclass(frozen=True, slots=True)
class ReadBack:
    """`caps` by name; `allocated` as the provider has it (`gres:gpu:H200:4`); ids of the Slurm jobs behind it."""

    caps: Mapping[str, Any]
    allocated: str | None
    slurm_jobs: tuple[str, ...]


def read_caps(calls: Calls, known: Known, login: SlurmLogin | None) -> ReadBack:
    """Ask SkyPilot and, where this machine has a login, Slurm. What can not be read back is said in its place."""
    caps: dict[str, Any] = {"job_timeout_s": known.job_limit_s}
    record = _or_why(lambda: _record(calls, known.cluster))
    if isinstance(record, str):
        caps["autodown"] = f"not read back: {record}"
    else:
        caps["autodown"] = _autodown(record)
    allocated = None if isinstance(record, str) else _field(record, "accelerators")
    jobs: tuple[SlurmJob, ...] = ()
    if login is not None:
        found = _or_why(lambda: login.jobs_of(known.name_there))
        if isinstance(found, str):
            caps["slurm_time_limit_s"] = f"not read back: {found}"
        elif found:
            jobs = found
            caps["slurm_time_limit_s"] = found[0].limit_s
            allocated = found[0].tres
    return ReadBack(caps, None if allocated is None else str(allocated), tuple(job.id for job in jobs))


def _record(calls: Calls, cluster: str) -> Any:
    found = calls.result("the cluster", lambda: calls.sdk.clusters([cluster], force=False), REQUEST_S)
    if not found:
        raise LookupError("SkyPilot has no record of it")
    return found[0]


def _autodown(record: Any) -> dict[str, Any]:
    """Minutes and whether the cluster is deleted, from the record; `wait_for` from the task that the server keeps."""
    read: dict[str, Any] = {"minutes": _field(record, "autostop"), "down": _field(record, "to_down")}
    try:
        resources = yaml.safe_load(str(_field(record, "last_creation_yaml") or ""))["resources"]
        read["wait_for"] = resources["autostop"]["wait_for"]
    except (yaml.YAMLError, TypeError, KeyError, LookupError):
        read["wait_for"] = None
    return read


def _field(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)


def _or_why(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception as error:  # noqa: BLE001  # a cap that can not be read is told, and no reason to fail
        return said(error)
