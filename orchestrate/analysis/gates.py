"""The gates: what a table must do on cells that its fit never saw, in each block for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrate.analysis.measured import MeasuredCell
from orchestrate.analysis.metrics import CLEAR_MISS_PCT, Metrics, metrics
from orchestrate.analysis.study import Study, enough_held_out

__all__ = ["BLOCKS", "Basis", "Block", "Gate", "blocks", "gates"]

BLOCKS: Mapping[str, Callable[[MeasuredCell], str]] = {
    "model": lambda cell: cell.key.split("|")[1],
    "shape": lambda cell: cell.shape,
    "family": lambda cell: cell.family,
}
"""By what cells are put into blocks. A block is never pooled with another: one can not hide behind the rest."""

_LEAST_ACCURACY = 0.9
_MOST_MEDIAN_PCT = 2.0
_MOST_P95_PCT = 5.0
_MOST_REGRET_PCT = 10.0


class Basis(StrEnum):
    """What a block was gated on."""

    HELD_OUT = "held-out"
    IN_SAMPLE = "in-sample"
    """Too little of the block was held out: the gates still stand, over all its cells, and prove less."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate. `measured` is None where there was nothing to measure; then it does not hold."""

    name: str
    limit: float
    measured: float | None
    holds: bool

    def as_json(self) -> dict[str, Any]:
        """The gate in a certificate."""
        return {"name": self.name, "limit": self.limit, "measured": self.measured, "holds": self.holds}


@dataclass(frozen=True, slots=True)
class Block:
    """The gates of one model, shape or family."""

    by: str
    name: str
    basis: Basis
    cells: int
    held_out: int
    metrics: Metrics
    gates: tuple[Gate, ...]

    @property
    def holds(self) -> bool:
        """Whether every gate holds."""
        return all(gate.holds for gate in self.gates)

    def as_json(self) -> dict[str, Any]:
        """The block in a certificate."""
        return {
            "by": self.by,
            "name": self.name,
            "basis": self.basis.value,
            "cells": self.cells,
            "held_out": self.held_out,
            "metrics": self.metrics.as_json(),
            "gates": [gate.as_json() for gate in self.gates],
            "holds": self.holds,
        }


def gates(found: Metrics) -> tuple[Gate, ...]:
    """The five gates of DESIGN section 12. Where no pair is ordered there is nothing to order wrong."""
    block = found.as_json()
    accuracy, median, p95, most = (
        block[name] for name in ("pairwise_accuracy", "median_regret_pct", "p95_regret_pct", "max_regret_pct")
    )
    return (
        Gate("pairwise_order", _LEAST_ACCURACY, accuracy, accuracy is None or accuracy >= _LEAST_ACCURACY),
        Gate("median_regret_pct", _MOST_MEDIAN_PCT, median, median is not None and median <= _MOST_MEDIAN_PCT),
        Gate("p95_regret_pct", _MOST_P95_PCT, p95, p95 is not None and p95 <= _MOST_P95_PCT),
        Gate("max_regret_pct", _MOST_REGRET_PCT, most, most is not None and most <= _MOST_REGRET_PCT),
        Gate("clear_winner_regret_pct", CLEAR_MISS_PCT, _worst_clear(found), not found.clear_misses),
    )


def blocks(study: Study, table: Mapping[str, int]) -> tuple[Block, ...]:
    """Every model, shape and family of the study, gated on its held-out cells where there are enough of them."""
    found: list[Block] = []
    for by, name_of in BLOCKS.items():
        for name in sorted({name_of(cell) for cell in study.cells}):
            everything = [cell for cell in study.cells if name_of(cell) == name]
            held_out = [cell for cell in study.held_out if name_of(cell) == name]
            basis = Basis.HELD_OUT if enough_held_out(held_out) else Basis.IN_SAMPLE
            found.append(_block(by, name, basis, everything, held_out, table))
    return tuple(found)


def _block(
    by: str,
    name: str,
    basis: Basis,
    everything: Sequence[MeasuredCell],
    held_out: Sequence[MeasuredCell],
    table: Mapping[str, int],
) -> Block:
    measured = metrics(held_out if basis is Basis.HELD_OUT else everything, table)
    return Block(by, name, basis, len(everything), len(held_out), measured, gates(measured))


def _worst_clear(found: Metrics) -> float | None:
    return max((result.regret_pct for result in found.results if result.clear_winner), default=None)
