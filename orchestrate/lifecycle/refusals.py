"""What was refused in a run, attempt by attempt: told from the journal, and reported as one case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrate.capacity.taxonomy import Availability, Basis, Case, Offer, Reason, Withdrawal, classify
from orchestrate.errors import BackendError, CapacityError, OrchestrateError, UnsatisfiableError, UsageError
from orchestrate.lifecycle.journal import JournalView
from orchestrate.receipts.journal_chain import ATTEMPT_KIND
from orchestrate.verdict import Verdict

__all__ = ["Refusal", "refusal_of", "refusals_in", "report_of", "verdict_of"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One attempt that a backend refused.

    Attributes:
        attempt, place: the attempt's number, and which of the plan's places it asked.
        verdict, cause, remedy: what the refusal means, in words.
        case: everything that is known about it.
    """

    attempt: int
    place: int
    verdict: Verdict
    cause: str
    remedy: str
    case: Case

    def as_facts(self) -> dict[str, Any]:
        """The facts of the journal record of this refusal."""
        return {
            "attempt": self.attempt,
            "place": self.place,
            "verdict": self.verdict.label,
            "cause": self.cause,
            "remedy": self.remedy,
            "case": _case_as_facts(self.case),
        }


def refusal_of(
    error: OrchestrateError, *, attempt: int, place: int, where: str, asked: Mapping[str, Any], at: str
) -> Refusal:
    """The refusal that `error` is. `where` and `asked` tell of a place whose backend made no case of it."""
    verdict = _verdict(error)
    case = error.case if isinstance(error, BackendError) else None
    if not isinstance(case, Case) or not case.offers:
        offer = Offer(where, str(asked.get("accelerators")), _REASONS[verdict], Basis.TEXT, error.cause, at)
        case = Case(asked=dict(asked), offers=(offer,))
    return Refusal(attempt, place, classify(case.offers).verdict, error.cause, error.remedy, case)


def refusals_in(view: JournalView) -> tuple[Refusal, ...]:
    """The refusals that a journal tells of since the last attempt that was granted, or resumed, oldest first.

    What was asked for and proven gone again says so in its case.
    """
    refusals: list[Refusal] = []
    for _, attempt in view.attempts:
        record, began = attempt.last("refused"), attempt.last(ATTEMPT_KIND)
        if attempt.last("acquired") is not None or (began is not None and began.facts["why"] == "resume"):
            refusals = []
        if record is None:
            continue
        facts = record.facts
        case = _case_from_facts(facts["case"])
        refusals.append(
            Refusal(
                attempt=facts["attempt"],
                place=facts["place"],
                verdict=Verdict.from_label(facts["verdict"]),
                cause=facts["cause"],
                remedy=facts["remedy"],
                case=replace(case, withdrawal=_withdrawal(attempt)),
            )
        )
    return tuple(refusals)


def verdict_of(refusals: Sequence[Refusal]) -> Verdict:
    """The verdict of all of them, by every offer together."""
    return classify([offer for refusal in refusals for offer in refusal.case.offers]).verdict


def report_of(refusals: Sequence[Refusal]) -> Case:
    """One case of all refusals: every offer, the newest word on what is free, and whether all was taken back."""
    cases = [refusal.case for refusal in refusals]
    free = {(each.where, each.kind): each for case in cases for each in case.availability}
    advised = [case.retry_after_s for case in cases if case.retry_after_s is not None]
    taken_back = [case.withdrawal for case in cases if case.withdrawal is not None]
    notes = tuple(dict.fromkeys(note for case in cases for note in case.notes))
    return Case(
        asked=cases[-1].asked,
        offers=tuple(offer for case in cases for offer in case.offers),
        availability=tuple(free.values()),
        withdrawal=None if not taken_back else Withdrawal(
            all(each.withdrawn for each in taken_back), all(each.confirmed for each in taken_back), taken_back[-1].how
        ),
        retry_after_s=min(advised, default=None),
        notes=notes,
        ran=any(case.ran for case in cases),
    )  # fmt: skip


def _case_as_facts(case: Case) -> dict[str, Any]:
    return {
        "asked": dict(case.asked),
        "offers": [
            {**asdict(offer), "reason": offer.reason.label, "basis": offer.basis.value} for offer in case.offers
        ],
        "availability": [asdict(each) for each in case.availability],
        "retry_after_s": case.retry_after_s,
        "notes": list(case.notes),
        "ran": case.ran,
    }


_REASONS = {
    Verdict.CAPACITY: Reason.NOTHING_FREE,
    Verdict.UNSATISFIABLE: Reason.MISCONFIGURED,
    Verdict.INFRASTRUCTURE: Reason.PROVIDER_FAULT,
}


def _verdict(error: OrchestrateError) -> Verdict:
    match error:
        case UnsatisfiableError() | UsageError():  # a value that only the backend could check: waiting does not help
            return Verdict.UNSATISFIABLE
        case CapacityError():
            return Verdict.CAPACITY
        case _:
            return Verdict.INFRASTRUCTURE


def _withdrawal(attempt: JournalView) -> Withdrawal:
    if attempt.last("acquiring") is None:
        return Withdrawal(withdrawn=True, confirmed=True, how="nothing had been asked for")
    looks = [look.facts for look in attempt.all("look")]
    confirmed = len(looks) > 1 and not any(look["remaining"] or look["unknown"] for look in looks[-2:])
    released = attempt.last("released") is not None
    how = "two looks found nothing of it" if confirmed else f"{len(looks)} looks could not prove that it is gone"
    return Withdrawal(withdrawn=released, confirmed=confirmed, how=how)


def _case_from_facts(facts: Mapping[str, Any]) -> Case:
    reasons = {reason.label: reason for reason in Reason}
    return Case(
        asked=facts["asked"],
        offers=tuple(
            Offer(**{**offer, "reason": reasons[offer["reason"]], "basis": Basis(offer["basis"])})
            for offer in facts["offers"]
        ),
        availability=tuple(Availability(**each) for each in facts["availability"]),
        retry_after_s=facts["retry_after_s"],
        notes=tuple(facts["notes"]),
        ran=facts["ran"],
    )
