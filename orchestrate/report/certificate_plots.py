"""The geometry of a certificate's drawings, in the user units of each SVG. The template draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrate.analysis.cell_aggregates import cell_from_json
from orchestrate.analysis.measured import is_held_out
from orchestrate.analysis.metrics import predictions

__all__ = [
    "AblationBar",
    "AblationPlot",
    "Bar",
    "Dot",
    "RegretPlot",
    "Scatter",
    "ablation_plot",
    "regret_plot",
    "scatters",
]

_SIDE = 120.0
_MARGIN = 8.0
_BAR_PX = 18
_LABEL_PX = 8


@dataclass(frozen=True, slots=True)
class Dot:
    """A candidate: place, and what a person reads when pointing at it."""

    x: float
    y: float
    label: str
    selected: bool
    best: bool
    text: str


@dataclass(frozen=True, slots=True)
class Scatter:
    """Predicted (upwards) against measured (to the right), both above the cell's own best, on logarithmic axes.

    On the diagonal from `near` to `far` the prediction is exact.
    """

    cell: str
    held_out: bool
    side: float
    near: float
    far: float
    dots: tuple[Dot, ...]
    regret_pct: float
    note: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A cell's regret; `width` in percent of the plot, `production` where `automatic` was measured."""

    cell: str
    held_out: bool
    y: int
    width: float
    regret_pct: float
    production: float | None
    production_pct: float | None


@dataclass(frozen=True, slots=True)
class RegretPlot:
    """All cells, worst first, on one axis that ends at `top_pct`; `limits` are the gates' (percent, name)."""

    bars: tuple[Bar, ...]
    height: int
    top_pct: float
    limits: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class AblationBar:
    """What was left out: `width` is its 95th percentile of regret in percent of the plot, `most` its largest."""

    name: str
    y: int
    width: float
    most: float
    held: bool
    text: str


@dataclass(frozen=True, slots=True)
class AblationPlot:
    """Everything that was left out once; `limits` are the gates' (percent of the plot, name)."""

    bars: tuple[AblationBar, ...]
    height: int
    limits: tuple[tuple[float, str], ...]


def scatters(certificate: Mapping[str, Any]) -> list[Scatter]:
    """One drawing for each cell that has a choice."""
    table, holdout = certificate["integer_table_milli_us"], certificate["fit_arguments"]["holdout"]
    selections = {item["cell"]: item for item in certificate["selections"]}
    found: list[Scatter] = []
    for item in certificate["cells"]:
        cell = cell_from_json(item)
        if len(cell.candidates) < 2:
            continue
        # Terms are scaled by 1024 and coefficients are thousandths of a us: this many to the millisecond.
        predicted_ms = [value / (1024 * 1_000_000) for value in predictions(cell, table)]
        measured_ms = [candidate.median_ms for candidate in cell.candidates]
        best_ms, least_ms = min(measured_ms), min(predicted_ms)
        extra = [100 * (time - best_ms) / best_ms for time in measured_ms]
        guess = [100 * (time - least_ms) / best_ms for time in predicted_ms]
        place = _scale(max([*extra, *guess, 1.0]))
        chosen = selections[cell.key]
        dots = tuple(
            Dot(
                x=place(one),
                y=_SIDE - place(other),
                label=candidate.label,
                selected=candidate.label == chosen["selected"],
                best=candidate.label == chosen["best"],
                text=f"{candidate.label}: measured +{one:.1f}%, predicted +{other:.1f}%",
            )
            for candidate, one, other in zip(cell.candidates, extra, guess, strict=True)
        )
        note = f"up to +{max([*extra, *guess]):.0f}%"
        held_out = is_held_out(cell.key, holdout)
        found.append(Scatter(cell.key, held_out, _SIDE, _MARGIN, _SIDE - _MARGIN, dots, chosen["regret_pct"], note))
    return found


def regret_plot(certificate: Mapping[str, Any]) -> RegretPlot:
    """Regret of the selected layout in every cell, with the measured regret of `automatic` where there is one."""
    holdout = certificate["fit_arguments"]["holdout"]
    produced = {item["cell"]: item["regret_pct"] for item in (certificate["production"] or {"cells": []})["cells"]}
    ordered = sorted(certificate["selections"], key=lambda item: (-item["regret_pct"], item["cell"]))
    top = max([5.5, *(item["regret_pct"] for item in ordered), *produced.values()])
    bars = tuple(
        Bar(
            cell=item["cell"],
            held_out=is_held_out(item["cell"], holdout),
            y=index * _BAR_PX,
            width=round(100 * item["regret_pct"] / top, 3),
            regret_pct=item["regret_pct"],
            production=_place(produced.get(item["cell"]), top),
            production_pct=produced.get(item["cell"]),
        )
        for index, item in enumerate(ordered)
    )
    limits = tuple((round(100 * limit / top, 3), name) for limit, name in ((2.0, "2%"), (5.0, "5%")) if limit <= top)
    return RegretPlot(bars, len(bars) * _BAR_PX + _LABEL_PX * 2, top, limits)


def ablation_plot(certificate: Mapping[str, Any]) -> AblationPlot:
    """Regret in each shape, model and family by the fit that never saw it; what left nothing to fit has no bar."""
    judged = [row for row in certificate["ablations"] if row["metrics"] is not None]
    top = max([11.0, *(row["metrics"]["max_regret_pct"] for row in judged)])
    bars: list[AblationBar] = []
    for index, row in enumerate(judged):
        found = row["metrics"]
        accuracy = found["pairwise_accuracy"]
        order = "no ordered pair" if accuracy is None else f"{100 * accuracy:.1f}% in order"
        bars.append(
            AblationBar(
                name=f"{row['by']} {row['left_out']}",
                y=index * _BAR_PX,
                width=round(100 * found["p95_regret_pct"] / top, 3),
                most=round(100 * found["max_regret_pct"] / top, 3),
                held=not row["gates_missed"],
                text=f"{order}, p95 {found['p95_regret_pct']:.2f}%, most {found['max_regret_pct']:.2f}%",
            )
        )
    limits = tuple((round(100 * limit / top, 3), name) for limit, name in ((5.0, "p95 5%"), (10.0, "most 10%")))
    return AblationPlot(tuple(bars), len(bars) * _BAR_PX + _LABEL_PX * 2, limits)


def _scale(most: float) -> Callable[[float], float]:
    span = math.log1p(most)

    def place(value: float) -> float:
        return round(_MARGIN + (_SIDE - 2 * _MARGIN) * math.log1p(max(value, 0.0)) / span, 2)

    return place


def _place(value: float | None, top: float) -> float | None:
    return None if value is None else round(100 * max(value, 0.0) / top, 3)
