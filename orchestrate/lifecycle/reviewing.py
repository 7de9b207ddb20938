"""Adding a review to a closed run: one more record in its journal, one more closure over the newest."""

from __future__ import annotations

from datetime import datetime

from orchestrate.errors import ReceiptError, RunIsLiveError, UsageError
from orchestrate.lifecycle.closure import announce, closure_facts_after
from orchestrate.lifecycle.journal import Journal
from orchestrate.lifecycle.plan import read_plan
from orchestrate.lifecycle.recording import ReceiptWriter
from orchestrate.lifecycle.run_directory import RunDirectory, RunLock
from orchestrate.receipts.reviews import Review, ReviewKind, holders, reviews_in
from orchestrate.receipts.statement import Receipt, Stage
from orchestrate.receipts.store import newest_closure

__all__ = ["add_review"]


def add_review(run: RunDirectory, review: Review, redact: dict[str, str], now: datetime, when: str) -> Receipt:
    """Write the closure that states `review`, and return it.

    Raises:
        RunIsLiveError: the run has a living owner, or somebody else is at it now.
        ReceiptError: it was never closed.
        UsageError: it releases what nobody of that name holds.
    """
    lock = RunLock.try_take(run)
    if lock is None:
        raise RunIsLiveError(f"the run {run.run_id} has a living owner", remedy="wait until it is closed")
    try:
        plan = read_plan(run)
        journal = Journal(run.journal, on_disk_full=run.free_reserve, now=lambda: now)
        try:
            receipts = ReceiptWriter(run, plan, journal, redact)
            before = newest_closure(receipts.written)
            if before is None:
                raise ReceiptError(
                    f"the run {run.run_id} was never closed", remedy="close it first: `orchestrate teardown`"
                )
            held_by = holders(reviews_in(receipts.written))
            if review.kind is ReviewKind.RELEASE and review.by not in held_by:
                who = ", ".join(held_by) or "nobody"
                raise UsageError(
                    f"{review.by} does not hold the run {run.run_id}: {who} does",
                    remedy="who held it releases it, by the name that made the hold",
                )
            journal.append("review", review=review.as_facts())
            facts = closure_facts_after(before, review, receipts=receipts, journal=journal)
            receipts.write(Stage.CLOSURE, started_at=when, ended_at=when, facts=facts)
            announce(receipts.written[-1], plan=plan, journal=journal)
            return receipts.written[-1]
        finally:
            journal.close()
    finally:
        lock.release()
