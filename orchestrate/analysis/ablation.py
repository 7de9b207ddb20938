"""Leave one out: what the fit would say of a shape, model or family that it never saw."""

from __future__ import annotations

from typing import Any

from orchestrate.analysis.fit import fit_table
from orchestrate.analysis.gates import BLOCKS, gates
from orchestrate.analysis.metrics import metrics
from orchestrate.analysis.study import Study

__all__ = ["ablations"]


def ablations(study: Study) -> list[dict[str, Any]]:
    """For each shape, model and family: fit the training cells without it, then look at all cells that have it.

    An entry with `table_sha256` null has no training cell left to fit.
    """
    found: list[dict[str, Any]] = []
    for by, name_of in BLOCKS.items():
        names = sorted({name_of(cell) for cell in study.cells})
        for name in names if len(names) > 1 else ():
            training = [cell for cell in study.training if name_of(cell) != name]
            left_out = [cell for cell in study.cells if name_of(cell) == name]
            entry: dict[str, Any] = {"by": by, "left_out": name, "training_cells": len(training)}
            if any(len(cell.candidates) > 1 for cell in training):
                fit = fit_table(training)
                result = metrics(left_out, fit.table)
                held = [gate.name for gate in gates(result) if not gate.holds]
                entry |= {"table_sha256": fit.sha256, "metrics": result.as_json(), "gates_missed": held}
            else:
                entry |= {"table_sha256": None, "metrics": None, "gates_missed": None}
            found.append(entry)
    return found
