"""The closure of a run: the receipt that lists all the others and says the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from orchestrate.capacity.taxonomy import Case
from orchestrate.clock import to_wire
from orchestrate.lifecycle.capacity_report import capacity_report
from orchestrate.lifecycle.census import Census
from orchestrate.lifecycle.collecting import Collected
from orchestrate.lifecycle.journal import Journal, JournalView
from orchestrate.lifecycle.outcome import Decision
from orchestrate.lifecycle.plan import Plan
from orchestrate.lifecycle.recording import ReceiptWriter
from orchestrate.receipts.attempts import attempts_of
from orchestrate.receipts.journal_chain import ATTEMPT_KIND
from orchestrate.receipts.reviews import Review, measured_verdict, own_reason, reviewed, reviews_in
from orchestrate.receipts.statement import Receipt, Stage

__all__ = ["Closed", "announce", "closure_facts_after", "missing_stages", "write_closure"]


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed run.

    `closure_sha256` is None where no closure could be written: then the run is not closed. `refused` is what it was
    refused, None where it was granted what it asked for, or asked for nothing.
    """

    decision: Decision
    closure_sha256: str | None
    collected: Collected
    census: Census | None
    remaining: tuple[str, ...]
    unknown: tuple[str, ...]
    remedy: str = ""
    refused: Case | None = None

    @property
    def confirmed(self) -> bool:
        """Whether it is proven that nothing of the run is left."""
        return not self.remaining and not self.unknown


def write_closure(
    closed: Closed, *, plan: Plan, journal: Journal, receipts: ReceiptWriter, why: str, now: datetime
) -> Closed:
    """Write the closure of a run and announce it in the journal.

    `why` says why this closure was made. A closure that is there already is superseded, never edited. Raises `OSError`
    or `ReceiptError` when it cannot be written.
    """
    verdict, told = reviewed(closed.decision.verdict, reviews_in(receipts.written))
    decision = replace(closed.decision, verdict=verdict, reason=told or closed.decision.reason)
    closed, collected = replace(closed, decision=decision), closed.collected
    gpu_s, cost_usd = _held(plan, receipts)
    before = [receipt for receipt in receipts.written if receipt.stage is Stage.CLOSURE]
    source = plan.tree["source"]
    facts = {
        "verdict": decision.verdict.label,
        "test_verdict": decision.test_verdict.label,
        "result": decision.result.label,
        "reason": decision.reason,
        "exit_code": decision.verdict.exit_code,
        "receipts": _listed(receipts),
        "missing": missing_stages(receipts),
        "journal": {"records": len(journal.view.records), "head": journal.head},
        "supersedes": before[-1].sha256 if before else None,
        "why": why,
        "cells": {"expected": len(collected.cells), "complete": collected.complete},
        "device": collected.device,
        "teardown": {
            "confirmed": closed.confirmed,
            "remaining": list(closed.remaining),
            "unknown": list(closed.unknown),
        },
        "accelerators": plan.accelerators,
        "gpu_hours_actual": gpu_s / 3600,
        "cost_usd": cost_usd,
        "attempts": [_attempt_facts(number, view) for number, view in journal.view.attempts],
        "capacity": capacity_report(journal.view),
        "commit": source["commit"],
        "dirty": source["dirty"],
        "tree": source["tree"],
    }
    sha256 = receipts.write(Stage.CLOSURE, started_at=to_wire(now), ended_at=to_wire(now), facts=facts)
    announce(receipts.written[-1], plan=plan, journal=journal)
    return replace(closed, closure_sha256=sha256)


def closure_facts_after(
    before: Receipt, review: Review, *, receipts: ReceiptWriter, journal: Journal
) -> dict[str, Any]:
    """The facts of the closure that states `review` over the closure `before`; all else stays as it was said."""
    verdict, told = reviewed(measured_verdict(before.facts), [*reviews_in(receipts.written), review])
    return {
        **before.facts,
        "verdict": verdict.label,
        "exit_code": verdict.exit_code,
        "reason": told or own_reason(receipts.written),
        "receipts": _listed(receipts),
        "journal": {"records": len(journal.view.records), "head": journal.head},
        "supersedes": before.sha256,
        "why": f"{review.kind} by {review.by}",
        "review": review.as_facts(),
    }


def announce(closure: Receipt, *, plan: Plan, journal: Journal) -> None:
    """Record in the journal that this closure was written, with what `status` shows of it."""
    shown = ("verdict", "test_verdict", "reason", "device", "cells", "gpu_hours_actual", "cost_usd", "teardown")
    journal.append(
        "closure",
        run_id=plan.run_id,
        closure_sha256=closure.sha256,
        cell_set=plan.tree["cell_set"],
        created_at=plan.tree["created_at"],
        owner=plan.tree["owner"],
        backend=plan.backend,
        **{name: closure.facts.get(name) for name in shown},
    )


def _listed(receipts: ReceiptWriter) -> list[dict[str, Any]]:
    """Every receipt that is no closure, as a closure lists them."""
    return [
        {"stage": receipt.stage.value, "attempt": receipt.attempt, "sha256": receipt.sha256}
        for receipt in receipts.written
        if receipt.stage is not Stage.CLOSURE
    ]


def missing_stages(receipts: ReceiptWriter) -> list[str]:
    """The stages that have no receipt."""
    return [stage.value for stage in Stage if stage is not Stage.CLOSURE and not receipts.has(stage)]


def _attempt_facts(number: int, view: JournalView) -> dict[str, Any]:
    """One attempt in a line: a retried attempt stays visible."""
    began, refused, ended = view.last(ATTEMPT_KIND), view.last("refused"), view.last("run-ended")
    return {
        "attempt": number,
        "why": "first" if began is None else began.facts["why"],
        "place": 0 if began is None else began.facts["place"],
        "refused": None if refused is None else refused.facts["verdict"],
        "ended": None if ended is None else ended.facts["ended"],
        "ran": view.last("submitting") is not None,
    }


def _held(plan: Plan, receipts: ReceiptWriter) -> tuple[float, float | None]:
    """GPU seconds that were held, and what that cost where the provider knows a price.

    The teardown receipts say it, each of its own attempt; where a backend does not measure it, the wall time of the
    payload stands for it.
    """
    gpu_s, cost_usd = 0.0, None
    for attempt in attempts_of(receipts.written):
        said: dict[str, float] = {}
        for receipt in attempt:
            usage = receipt.facts.get("usage")
            if isinstance(usage, Mapping):
                said.update({name: float(value) for name, value in usage.items() if value is not None})
        wall_s = max((float(receipt.facts.get("wall_s", 0.0)) for receipt in attempt if receipt.stage is Stage.RUN),
                     default=0.0)  # fmt: skip
        gpu_s += said.get("gpu_s", wall_s * plan.gpus)
        if "cost_usd" in said:
            cost_usd = (cost_usd or 0.0) + said["cost_usd"]
    return gpu_s, cost_usd
