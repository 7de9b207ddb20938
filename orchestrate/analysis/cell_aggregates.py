"""Measured cells as members of a certificate, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrate.analysis.cost_terms import Facts, Features
from orchestrate.analysis.measured import Candidate, Execution, MeasuredCell, Production

__all__ = ["cell_from_json", "cell_to_json"]


def cell_to_json(cell: MeasuredCell) -> dict[str, Any]:
    """The aggregate of a cell: everything that the fit, the gates and the intervals read."""
    return {
        "cell": cell.key,
        "facts": {
            "tp": cell.facts.tp,
            "cp": cell.facts.cp,
            "layers": cell.facts.layers,
            "gdn_layers": cell.facts.gdn_layers,
        },
        "run_id": cell.run_id,
        "schedule": cell.schedule,
        "execution": None if cell.execution is None else _execution_to_json(cell.execution),
        "production": None if cell.production is None else _production_to_json(cell.production),
        "candidates": [_candidate_to_json(candidate) for candidate in cell.candidates],
    }


def cell_from_json(value: Mapping[str, Any]) -> MeasuredCell:
    """The cell of an aggregate that holds its schema."""
    execution, production = value["execution"], value["production"]
    return MeasuredCell(
        key=value["cell"],
        facts=Facts(**value["facts"]),
        candidates=tuple(_candidate_from_json(item) for item in value["candidates"]),
        execution=None if execution is None else Execution(**execution),
        production=None if production is None else Production(**production),
        run_id=value["run_id"],
        schedule=value["schedule"],
    )


def _candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    features = candidate.features
    return {
        "label": candidate.label,
        "packed_tokens": features.packed_tokens,
        "segment_count": features.segment_count,
        "max_depth": features.max_depth,
        "segments_below": list(features.segments_below),
        "median_ms": candidate.median_ms,
        "rounds": candidate.rounds,
        "spread_pct": candidate.spread_pct,
        "samples_ms": None if candidate.samples_ms is None else list(candidate.samples_ms),
    }


def _candidate_from_json(item: Mapping[str, Any]) -> Candidate:
    samples_ms = item["samples_ms"]
    return Candidate(
        label=item["label"],
        features=Features(
            item["packed_tokens"], item["segment_count"], item["max_depth"], tuple(item["segments_below"])
        ),
        median_ms=float(item["median_ms"]),
        rounds=item["rounds"],
        spread_pct=float(item["spread_pct"]),
        samples_ms=None if samples_ms is None else tuple(float(value) for value in samples_ms),
    )


def _execution_to_json(execution: Execution) -> dict[str, Any]:
    return {
        "device": execution.device,
        "dtype": execution.dtype,
        "hidden": execution.hidden,
        "fingerprint": execution.fingerprint,
    }


def _production_to_json(production: Production) -> dict[str, Any]:
    return {
        "label": production.label,
        "rule": production.rule,
        "median_ms": production.median_ms,
        "rounds": production.rounds,
    }
