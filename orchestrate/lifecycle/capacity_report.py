"""`capacity.json`: what was asked for, what came back from each place, and that it was taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrate.capacity.report import as_json
from orchestrate.capacity.taxonomy import Case
from orchestrate.lifecycle.journal import JournalView
from orchestrate.lifecycle.refusals import refusals_in, report_of

__all__ = ["capacity_report", "refused_case"]


def capacity_report(view: JournalView) -> Mapping[str, Any] | None:
    """What a run was refused, as plain JSON; None where it was granted what it asked for, or asked for nothing."""
    case = refused_case(view)
    return None if case is None else as_json(case)


def refused_case(view: JournalView) -> Case | None:
    """What a run was refused, every attempt together; None as above."""
    refusals = refusals_in(view)
    return report_of(refusals) if refusals else None
