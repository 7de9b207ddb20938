"""What people and second audits say of a closed run: further closures over the one before, which none of them edits.

A review can take a pass away, never give one: what was not passed when it was closed stays what it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from orchestrate.clock import to_wire
from orchestrate.receipts.signing import SIGNATURES
from orchestrate.receipts.statement import Receipt, Stage
from orchestrate.verdict import Verdict

__all__ = [
    "Review",
    "ReviewKind",
    "WrittenReview",
    "holders",
    "measured_verdict",
    "own_reason",
    "review_of",
    "reviewed",
    "reviews_in",
    "standing",
    "written_reviews",
]


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


@dataclass(frozen=True, slots=True)
class WrittenReview:
    """A review of a run, in the closure that states it.

    `counts` says that it is the newest word of whoever said it, of a run that could lose a pass by it. `signed` is
    None where a signature lies beside it, and is not of a key that was to be checked.
    """

    review: Review
    at: datetime
    closure_sha256: str
    counts: bool
    signed: bool | None

    @property
    def finding(self) -> str:
        """What an auditor or reviewer found, in a word; a hold and a release say it by their kind."""
        if self.review.kind not in {ReviewKind.AUDIT, ReviewKind.REVIEW}:
            return ""
        return "holds" if self.review.holds else "fails"

    @property
    def signature(self) -> str:
        """Whether it is signed, in words."""
        return {True: "signed", False: "not signed", None: "signature not checked"}[self.signed]

    def as_json(self) -> dict[str, Any]:
        """An element of `reviews` in the answer of `verify --json`."""
        return {
            **self.review.as_facts(),
            "at": to_wire(self.at),
            "closure_sha256": self.closure_sha256,
            "counts": self.counts,
            "signed": self.signed,
        }


def reviews_in(receipts: Iterable[Receipt]) -> tuple[Review, ...]:
    """The reviews among the receipts, in order. A closure whose review is not one counts as a failing one."""
    return tuple(review for receipt in receipts if (review := review_of(receipt)) is not None)


def review_of(receipt: Receipt) -> Review | None:
    """The review that a receipt states; None where it is no closure, or one without a review."""
    facts = receipt.facts.get("review") if receipt.stage is Stage.CLOSURE else None
    return None if facts is None else _parse(facts)


def standing(reviews: Sequence[Review]) -> tuple[int, ...]:
    """Which of the reviews still count: the newest word of each auditor or reviewer, and of each who held it."""
    newest: dict[tuple[bool, str], int] = {}
    for number, review in enumerate(reviews):
        is_hold = review.kind in {ReviewKind.HOLD, ReviewKind.RELEASE}
        newest[is_hold, review.by.strip()] = number
    return tuple(newest.values())


def holders(reviews: Sequence[Review]) -> tuple[str, ...]:
    """Who holds the run, and has not released it."""
    words = (reviews[number] for number in standing(reviews))
    return tuple(review.by.strip() for review in words if review.kind is ReviewKind.HOLD)


def written_reviews(
    closures: Sequence[Receipt], files: Iterable[str], signed: Collection[str]
) -> tuple[WrittenReview, ...]:
    """Every review among the closures of a run, in order; `files` are those of the run directory.

    `signed` are the closures whose signature was checked. Where the run did not pass by itself, no review counts.
    """
    written = [(closure, review) for closure in closures if (review := review_of(closure)) is not None]
    passed = bool(closures) and measured_verdict(closures[-1].facts) is Verdict.PASSED
    counting = standing([review for _, review in written]) if passed else ()
    beside = {name.partition("/")[2].partition("-")[0] for name in files if name.startswith(f"{SIGNATURES}/")}
    return tuple(
        WrittenReview(
            review=review,
            at=closure.ended_at,
            closure_sha256=closure.sha256,
            counts=number in counting,
            signed=True if closure.sha256 in signed else None if closure.sha256 in beside else False,
        )
        for number, (closure, review) in enumerate(written)
    )


def own_reason(receipts: Iterable[Receipt]) -> str:
    """The reason of the run itself: of its newest closure whose reason is not that of a review."""
    said, reviews = "", list[Review]()
    for receipt in receipts:
        review = review_of(receipt)
        if review is not None:
            reviews.append(review)
        elif receipt.stage is Stage.CLOSURE and not reviewed(measured_verdict(receipt.facts), reviews)[1]:
            reason = receipt.facts.get("reason")
            said = reason if isinstance(reason, str) else ""
    return said


def reviewed(measured: Verdict, reviews: Sequence[Review]) -> tuple[Verdict, str]:
    """The verdict after the reviews, and what changed it (empty where nothing did).

    A pass that somebody holds, and has not released, is `incomplete`; one that the newest word of an auditor or
    reviewer fails is `failed`.
    """
    if measured is not Verdict.PASSED:
        return measured, ""
    newest = [reviews[number] for number in standing(reviews)]
    failing = [review for review in newest if _fails(review)]
    if failing:
        return Verdict.FAILED, f"the {failing[0].kind} by {failing[0].by} fails: {failing[0].why}"
    held = [review for review in newest if review.kind is ReviewKind.HOLD]
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
