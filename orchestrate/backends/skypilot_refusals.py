"""Why SkyPilot gave no cluster, as an error with its case: what was asked for, each place tried, what is free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from orchestrate.backends.skypilot_answers import names_of, said
from orchestrate.capacity import skypilot as classifier
from orchestrate.capacity.taxonomy import Availability, Basis, Case, Offer, Reason, classify
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import BackendError, CapacityError, UnsatisfiableError
from orchestrate.verdict import Verdict

__all__ = ["Asked", "Waited", "described", "never", "refused", "too_late"]

_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for (`H200:4`) and where. `availability` looks what is free, and never raises."""

    accelerators: str
    where: str
    availability: Callable[[], tuple[Availability, ...]]

    def as_facts(self) -> dict[str, Any]:
        """As a case has it."""
        return {"accelerators": self.accelerators, "infra": self.where}


@dataclass(frozen=True, slots=True)
class Waited:
    """What the scheduler's queue showed of a launch: the last reason for waiting, None where no job of it waited."""

    reason: str | None


def refused(error: BaseException, asked: Asked, waited: Waited | None = None) -> BackendError:
    """`error`, with which a launch ended, as `CapacityError`, `UnsatisfiableError` or `BackendError`.

    `waited` is what was seen of the launch in the scheduler's own queue meanwhile, None where that was not looked at.
    SkyPilot says the same when `sbatch` itself refused the job as when others hold the GPUs.
    """
    case = classifier.refusal(
        described(error),
        asked=asked.as_facts(),
        where=asked.where,
        at=to_wire(utc_now()),
        availability=asked.availability(),
    )
    if waited is not None:
        case = replace(case, offers=tuple(_seen(offer, waited, case, asked) for offer in case.offers))
        case = replace(case, retry_after_s=classify(case.offers).reason.retry_after_s)
    return _as_error(case, asked, f"{type(error).__name__}: {said(error)}", str(error)[:4000])


def too_late(spent_s: float, reason: str | None, asked: Asked) -> BackendError:
    """The GPUs did not come within `spent_s`; `reason` is what the scheduler says about the waiting job."""
    detail = f"not granted within {spent_s:.0f}s" + ("" if reason is None else f"; the scheduler says: {reason}")
    return _as_error(_case(_BY_SCHEDULER.get(reason or "", Reason.CAN_NOT_TELL), detail, asked), asked, detail)


def never(reason: Reason, detail: str, asked: Asked) -> BackendError:
    """What was asked for can not come true at this place, as was seen before anything was asked for."""
    return _as_error(_case(reason, detail, asked), asked, detail)


def described(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """An exception as plain data, with its whole failover history, for `orchestrate.capacity.skypilot`."""
    tree: dict[str, Any] = {"types": list(names_of(error)), "message": said(error)}
    for name in ("returncode", "error_type"):
        value = getattr(error, name, None)
        if isinstance(value, int | str):
            tree[name] = value
    errors = getattr(error, "errors", None)
    if isinstance(errors, list | tuple):
        tree["errors"] = [each for each in errors if isinstance(each, dict)]
    if depth < _MAX_DEPTH:
        history = getattr(error, "failover_history", None) or ()
        tree["failover_history"] = [described(each, depth + 1) for each in history if isinstance(each, BaseException)]
        cause = error.__cause__
        if cause is not None:
            tree["cause"] = described(cause, depth + 1)
    return tree


_BY_SCHEDULER = {
    "Resources": Reason.NOTHING_FREE,
    "Priority": Reason.NOTHING_FREE,
    "QOSMaxGRESPerUser": Reason.QUOTA_USED,
    "QOSGrpGRES": Reason.QUOTA_USED,
    "AssocGrpGRES": Reason.QUOTA_USED,
    "AssocMaxGRESPerJob": Reason.QUOTA_TOO_SMALL,
    "QOSMaxGRESPerJob": Reason.QUOTA_TOO_SMALL,
    "PartitionNodeLimit": Reason.NEVER_FITS,
    "BadConstraints": Reason.NEVER_FITS,
    "PartitionTimeLimit": Reason.MISCONFIGURED,
    "InvalidQOS": Reason.MISCONFIGURED,
    "InvalidAccount": Reason.MISCONFIGURED,
    "PartitionDown": Reason.PROVIDER_FAULT,
}
"""Slurm's own codes (`squeue --format=%r`) for why a job waits."""


def _seen(offer: Offer, waited: Waited, case: Case, asked: Asked) -> Offer:
    """`offer` in the light of the scheduler's queue."""
    if offer.reason is not Reason.NOTHING_FREE:
        return offer
    if waited.reason is not None:
        reason = _BY_SCHEDULER.get(waited.reason, Reason.CAN_NOT_TELL)
        told = f"{offer.detail}; the scheduler said: {waited.reason}"
        return replace(offer, reason=reason, basis=Basis.STRUCTURE, detail=told)
    wanted = int(asked.accelerators.rpartition(":")[2])
    free = [each.free for each in case.availability if each.free is not None]
    if free and max(free) >= wanted:
        told = f"{offer.detail}; no job of this run ever waited, and {max(free)} GPUs are free: it failed otherwise"
        return replace(offer, reason=Reason.PROVIDER_FAULT, basis=Basis.STRUCTURE, detail=told)
    return offer


def _case(reason: Reason, detail: str, asked: Asked) -> Case:
    at = to_wire(utc_now())
    offer = Offer(asked.where, asked.accelerators, reason, Basis.STRUCTURE, detail, at)
    return Case(asked.as_facts(), (offer,), asked.availability(), retry_after_s=reason.retry_after_s)


def _as_error(case: Case, asked: Asked, detail: str, answer: str | None = None) -> BackendError:
    decided = classify(case.offers)
    cause = f"{asked.accelerators} on {asked.where}: {decided.reason.meaning} ({detail})"
    if decided.verdict is Verdict.CAPACITY:
        return CapacityError(cause, remedy="try again later, or with --wait", answer=answer, case=case)
    if decided.verdict is Verdict.UNSATISFIABLE:
        remedy = "ask for what `sky show-gpus` lists, or for another --infra"
        return UnsatisfiableError(cause, remedy=remedy, answer=answer, case=case)
    return BackendError(cause, remedy="see `sky check` and `sky api logs`", answer=answer, case=case)
