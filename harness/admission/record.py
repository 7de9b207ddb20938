"""What is written down of a release that was needed, whether it was made or denied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.admission.ballot import Ballot
from harness.admission.ledger import Budget

__all__ = ["RecoveryRecord", "as_json"]


@dataclass(frozen=True, slots=True)
class RecoveryRecord:
    """One release that was needed: by whom, made or denied, and what admission did next.

    `entry` is the entry point and `call` the number of the admission; `outcomes` is what each rank's search had found
    and `asked` the ranks that could not run the smallest wave unsplit. `denied` says why no release was made ("budget"
    or "device"), None for one that was. `votes` are the ranks' votes after the release, none for a denied one, and this
    rank's own where the vote itself failed; on ranks that did not release, the bytes are zero. `then` is how the
    admission ended ("unsplit", "split", "oversized", "refused", "error"), with the width and the parts that were
    admitted.
    """

    entry: str
    call: int
    outcomes: tuple[str, ...]
    asked: tuple[int, ...]
    denied: str | None
    votes: tuple[Ballot, ...]
    before: Budget
    after: Budget
    then: str = "error"
    width: int = 0
    parts: int = 0

    @property
    def came_back_bytes(self) -> int:
        """What came back on all ranks together."""
        return sum(vote.came_back_bytes for vote in self.votes)

    @property
    def elapsed_ns(self) -> int:
        """What it cost, summed over all ranks."""
        return sum(vote.release_ns for vote in self.votes)

    def ending(self, then: str, width: int = 0, parts: int = 0) -> RecoveryRecord:
        """The record with what admission did next."""
        return replace(self, then=then, width=width, parts=parts)


def as_json(record: RecoveryRecord) -> dict[str, object]:
    """`record` for evidence and reports; lists have one entry a rank, the budgets are sums over the world."""
    votes = record.votes
    return {
        "entry": record.entry,
        "call": record.call,
        "outcomes": list(record.outcomes),
        "asked": list(record.asked),
        "released": record.denied is None,
        "denied": record.denied,
        "free_before_bytes": _column(votes, "free_before_bytes"),
        "free_after_bytes": _column(votes, "free_after_bytes"),
        "reserved_before_bytes": _column(votes, "reserved_before_bytes"),
        "reserved_after_bytes": _column(votes, "reserved_after_bytes"),
        "came_back_bytes": _column(votes, "came_back_bytes"),
        "elapsed_ms": [vote.release_ns / 1e6 for vote in votes],
        "alloc_retries_before": _column(votes, "retries_before"),
        "alloc_retries_after": _column(votes, "retries_after"),
        "budget_before": record.before.as_json(),
        "budget_after": record.after.as_json(),
        "then": {"action": record.then, "width": record.width, "parts": record.parts},
    }


def _column(votes: Sequence[Ballot], name: str) -> list[int]:
    return [getattr(vote, name) for vote in votes]
