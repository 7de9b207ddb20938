"""What people and second audits say of a closed run: further closures over the one before, which none of them edits.

A review can take a pass away, never give one: what was not passed when it was closed stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from orchestrate.receipts.statement import Receipt, Stage
from orchestrate.verdict import Verdict

__all__ = ["Review", "ReviewKind", "measured_verdict", "reviewed", "reviews_in"]


class ReviewKind(StrEnum):
    """Who speaks: a second, independent audit; a person who holds the run, or lets it go; a reviewer."""

    AUDIT = "audit"
    HOLD = "hold"
    RELEASE = "release"
    REVIEW = "review"


@dataclass(frozen=True, slots=True)
class Review:
    """One statement. `holds` is what an audit or a reviewer found; a hold and a release say it by their kind."""

    kind: ReviewKind
    by: str
    holds: bool
    why: str

    def as_facts(self) -> dict[str, Any]:
        """The member `review` of a closure."""
        return {**asdict(self), "kind": self.kind.value}


def reviews_in(receipts: Iterable[Receipt]) -> tuple[Review, ...]:
    """The reviews among the receipts, in order. A closure whose review is not one counts as a failing one."""
    found = []
    for receipt in receipts:
        facts = receipt.facts.get("review") if receipt.stage is Stage.CLOSURE else None
        if facts is not None:
            found.append(_parse(facts))
    return tuple(found)


def reviewed(measured: Verdict, reviews: Sequence[Review]) -> tuple[Verdict, str]:
    """The verdict after the reviews, and what changed it (empty where nothing did).

    A pass that somebody holds, and has not released, is `incomplete`; one that the newest word of an auditor or
    reviewer fails is `failed`.
    """
    if measured is not Verdict.PASSED:
        return measured, ""
    newest: dict[tuple[bool, str], Review] = {}
    for review in reviews:
        is_hold = review.kind in {ReviewKind.HOLD, ReviewKind.RELEASE}
        newest[is_hold, review.by] = review
    failing = [review for review in newest.values() if _fails(review)]
    if failing:
        return Verdict.FAILED, f"the {failing[0].kind} by {failing[0].by} fails: {failing[0].why}"
    held = [review for review in newest.values() if review.kind is ReviewKind.HOLD]
    if held:
        return Verdict.INCOMPLETE, f"held by {held[0].by}: {held[0].why}"
    return measured, ""


def measured_verdict(closure: Mapping[str, Any]) -> Verdict:
    """The verdict of a closure without its reviews, from what it says of result and teardown."""
    teardown = closure.get("teardown")
    confirmed = isinstance(teardown, Mapping) and teardown.get("confirmed") is True
    try:
        result = Verdict.from_label(str(closure.get("result")))
    except ValueError:
        return Verdict.INCOMPLETE
    return result if confirmed else Verdict.TEARDOWN_UNCONFIRMED


def _fails(review: Review) -> bool:
    return review.kind in {ReviewKind.AUDIT, ReviewKind.REVIEW} and not review.holds


def _parse(facts: Any) -> Review:
    try:
        kind, by, holds, why = ReviewKind(facts["kind"]), facts["by"], facts["holds"], facts["why"]
    except (KeyError, TypeError, ValueError):
        return Review(ReviewKind.REVIEW, "somebody", holds=False, why="its review can not be read")
    if not isinstance(by, str) or not by or type(holds) is not bool or not isinstance(why, str):
        return Review(ReviewKind.REVIEW, "somebody", holds=False, why="its review can not be read")
    return Review(kind, by, holds, why)
