"""`capacity.json`: what was asked for, what came back from each place, and that it was taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrate.capacity.taxonomy import classify
from orchestrate.lifecycle.journal import JournalView
from orchestrate.lifecycle.refusals import case_as_facts, refusals_in, report_of, verdict_of

__all__ = ["capacity_report"]

CAPACITY_SCHEMA = "orchestrate.capacity/1"


def capacity_report(view: JournalView) -> Mapping[str, Any] | None:
    """What a run was refused, as plain JSON; None where it was granted what it asked for, or asked for nothing."""
    refusals = refusals_in(view)
    if not refusals:
        return None
    case = report_of(refusals)
    decided = classify(case.offers)
    return {
        "schema": CAPACITY_SCHEMA,
        "verdict": verdict_of(refusals).label,
        "reason": decided.reason.label,
        "mixed": decided.mixed,
        "attempts": [
            {"attempt": each.attempt, "place": each.place, "verdict": each.verdict.label, "cause": each.cause}
            for each in refusals
        ],
        "ran": False,
        **case_as_facts(case),
    }
