"""Production regret: what the layout that production really picked cost, as it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrate.analysis.measured import MeasuredCell
from orchestrate.analysis.metrics import median_and_p95, metrics

__all__ = ["production_regret"]


def production_regret(cells: Sequence[MeasuredCell], table: Mapping[str, int]) -> dict[str, Any] | None:
    """The regret of `automatic` as measured, beside the regret of what `table` selects, over the cells that have both.

    `automatic` runs as a measurement of its own, so its regret can be below zero by noise. None where no cell has it.
    """
    measured = [cell for cell in cells if cell.production is not None]
    if not measured:
        return None
    fitted = metrics(measured, table)
    entries: list[dict[str, Any]] = []
    for cell, result in zip(measured, fitted.results, strict=True):
        best_ms = min(candidate.median_ms for candidate in cell.candidates)
        if cell.production is None:
            continue
        entries.append(
            {
                "cell": cell.key,
                "picked": cell.production.label,
                "rule": cell.production.rule,
                "regret_pct": (cell.production.median_ms - best_ms) / best_ms * 100,
                "table_selects": result.selected,
                "table_regret_pct": result.regret_pct,
            }
        )
    regrets = [entry["regret_pct"] for entry in entries]
    median, p95 = median_and_p95(regrets)
    return {
        "cells": entries,
        "median_regret_pct": median,
        "p95_regret_pct": p95,
        "max_regret_pct": max(regrets),
        "fitted": fitted.as_json(),
    }
