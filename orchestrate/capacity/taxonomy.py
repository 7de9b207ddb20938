"""The words in which a provider's refusal is told, and the verdict that follows from them.

A backend turns what its provider answered into offers: one for each place that was tried. `classify` decides from
their reasons alone. Reasons come from structure (exception types, conditions, events, scheduler codes) wherever there
is any; one that was read out of a message says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from orchestrate.verdict import Verdict

__all__ = ["Availability", "Basis", "Case", "Classification", "Offer", "Reason", "Withdrawal", "classify"]


class Basis(StrEnum):
    """What a reason was decided by."""

    STRUCTURE = "structure"
    TEXT = "text"


class Reason(Enum):
    """Why an offer came to nothing. Each member carries its wire name, the verdict it leads to, and its meaning."""

    NOTHING_FREE = ("nothing-free", Verdict.CAPACITY, "it would fit, but others hold the GPUs now")
    QUOTA_USED = ("quota-used", Verdict.CAPACITY, "the quota would allow it, but others use it up now")
    QUEUED = ("queued", Verdict.CAPACITY, "a queue did not admit it within the waiting time")
    PREEMPTED = ("preempted", Verdict.CAPACITY, "somebody with more priority took the GPUs before anything ran")
    STOCKOUT = ("stockout", Verdict.CAPACITY, "the provider has none left of that kind at the moment")
    NEVER_FITS = ("never-fits", Verdict.UNSATISFIABLE, "no node here is large enough for it, even an empty one")
    UNKNOWN_KIND = ("unknown-kind", Verdict.UNSATISFIABLE, "nobody here offers that kind of GPU")
    QUOTA_TOO_SMALL = ("quota-too-small", Verdict.UNSATISFIABLE, "the quota is smaller than the request")
    MISCONFIGURED = (
        "misconfigured",
        Verdict.UNSATISFIABLE,
        "the request or the set-up is wrong; waiting does not help",
    )
    DENIED = ("denied", Verdict.UNSATISFIABLE, "we have no right to ask for it")
    UNREACHABLE = ("unreachable", Verdict.INFRASTRUCTURE, "the provider did not answer: that is no lack of GPUs")
    NODE_FAULT = ("node-fault", Verdict.INFRASTRUCTURE, "a node was given and did not come up, or it is down")
    PROVIDER_FAULT = ("provider-fault", Verdict.INFRASTRUCTURE, "the provider failed")
    TAKEN_AWAY = ("taken-away", Verdict.INFRASTRUCTURE, "somebody outside cancelled or deleted the request")
    CAN_NOT_TELL = ("can-not-tell", Verdict.CAPACITY, "it did not come in time; we may not see whether it ever can fit")

    @property
    def retry_after_s(self) -> float | None:
        """After how long trying again is worth while; None where waiting changes nothing. A habit, not a promise."""
        return _RETRY_AFTER_S.get(self.label)

    def __init__(self, label: str, verdict: Verdict, meaning: str) -> None:
        self.label = label
        self.verdict = verdict
        self.meaning = meaning

    def __str__(self) -> str:
        return self.label


_RETRY_AFTER_S = {
    "nothing-free": 600.0,
    "quota-used": 600.0,
    "queued": 600.0,
    "preempted": 900.0,
    "stockout": 1800.0,
    "can-not-tell": 900.0,
    "unreachable": 120.0,
    "node-fault": 300.0,
    "provider-fault": 300.0,
    "taken-away": 60.0,
}


@dataclass(frozen=True, slots=True)
class Offer:
    """One place that was tried.

    Attributes:
        where: region, zone, cluster/partition, context/namespace; what the provider calls it.
        asked: what was asked for there, for example `H200:4`.
        reason, basis: why it came to nothing, and what that was decided by.
        detail: the provider's own words, cut to a sentence or two.
        at: when it answered, RFC 3339 UTC.
    """

    where: str
    asked: str
    reason: Reason
    basis: Basis
    detail: str
    at: str


@dataclass(frozen=True, slots=True)
class Availability:
    """GPUs of the kind that was asked for: how many there are and how many are free; None where we may not see it."""

    where: str
    kind: str
    total: int | None
    free: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The request was taken back (`withdrawn`), and the provider confirmed that it is gone (`confirmed`)."""

    withdrawn: bool
    confirmed: bool
    how: str


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that is known about a request that was not granted.

    Attributes:
        asked: what was asked for, as names and plain values.
        offers: each place that was tried.
        availability: how many GPUs there are and are free, as far as anybody told.
        withdrawal: whether the request was taken back; None while that is not known yet.
        retry_after_s: when to try again, None where waiting changes nothing.
        ran: something of the payload did run all the same. A classifier never makes a case of a pod that ran.
        notes: what else a reader should know.
    """

    asked: Mapping[str, Any]
    offers: tuple[Offer, ...]
    availability: tuple[Availability, ...] = ()
    withdrawal: Withdrawal | None = None
    retry_after_s: float | None = None
    ran: bool = False
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Classification:
    """The verdict of a refusal, the reason that decided it, and whether the offers failed for several reasons."""

    verdict: Verdict
    reason: Reason
    mixed: bool
    basis: Basis


def classify(offers: Sequence[Offer]) -> Classification:
    """The verdict of the offers together.

    One that could be granted later makes the whole `capacity`: trying again can help. Without such a one, an outage or
    a fault makes it `infrastructure`: the place may well have what was asked for. `unsatisfiable` needs every offer to
    say so. Raises `ValueError` without offers: nobody was asked, so nothing is known.
    """
    if not offers:
        raise ValueError("no offer was tried, so there is nothing to classify")
    for verdict in (Verdict.CAPACITY, Verdict.INFRASTRUCTURE, Verdict.UNSATISFIABLE):
        decisive = [offer for offer in offers if offer.reason.verdict is verdict]
        if decisive:
            by_structure = [offer for offer in decisive if offer.basis is Basis.STRUCTURE]
            first = (by_structure or decisive)[0]
            mixed = len({offer.reason for offer in offers}) > 1
            return Classification(verdict, first.reason, mixed, first.basis)
    raise AssertionError("every reason has one of the three verdicts")
