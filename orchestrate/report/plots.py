"""The geometry of the two drawings of a report: the time line of the stages, and the measured times of a cell.

Places are percentages of the width, so that a drawing fills any screen without scaling. The template draws; nothing
in here knows SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from orchestrate.receipts.completeness import Measured
from orchestrate.report.words import duration

__all__ = ["Plot", "Row", "Span", "Strip", "TimeLine", "candidate_plot", "time_line"]

_MARGIN = 2.0
"""Percent kept free at both sides of a plot, so that no dot is cut."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time: what a time line is made of. `start` is None for what never happened.

    `state` is `done`, `failed` or `missing`; `inner` marks a part of the span before it.
    """

    label: str
    start: datetime | None
    end: datetime | None
    state: str
    inner: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the time line: `left` and `width` in percent, `took` in words."""

    span: Span
    left: float
    width: float
    took: str


@dataclass(frozen=True, slots=True)
class TimeLine:
    """The rows and the axis: `ticks` are (percent, text)."""

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]
    total: str


@dataclass(frozen=True, slots=True)
class Strip:
    """One candidate of a plot: its rounds as dots, their median as a bar; horizontal places in percent.

    `relative` is the distance of the median from the best candidate's in percent; None without one.
    """

    label: str
    automatic: bool
    best: bool
    dots: tuple[tuple[float, int, float], ...]
    median: float
    low: float
    high: float
    median_ms: float
    low_ms: float
    high_ms: float
    relative: float | None
    spread: float


@dataclass(frozen=True, slots=True)
class Plot:
    """The candidates of one cell on one axis from `low_ms` to `high_ms`.

    `regret` is how much slower, in percent, `automatic` was than the best candidate (DESIGN section 12: (t - best) /
    best x 100, over medians); None where either was not measured.
    """

    strips: tuple[Strip, ...]
    ticks: tuple[tuple[float, str], ...]
    best: str | None
    regret: float | None


def time_line(spans: Sequence[Span]) -> TimeLine:
    """Lay `spans` out on a common axis from the first start to the last end."""
    starts = [span.start for span in spans if span.start is not None]
    ends = [span.end for span in spans if span.end is not None]
    if not starts or not ends:
        return TimeLine((), (), "")
    begin = min(starts)
    total = max((max(ends) - begin).total_seconds(), 1e-3)
    rows = []
    for span in spans:
        left, width, took = 0.0, 0.0, ""
        if span.start is not None and span.end is not None:
            took_s = max((span.end - span.start).total_seconds(), 0.0)
            left = 100 * (span.start - begin).total_seconds() / total
            width = max(100 * took_s / total, 0.5)
            left, took = max(min(left, 100 - width), 0.0), duration(took_s)
        rows.append(Row(span, round(left, 3), round(width, 3), took))
    ticks = tuple((share * 100, duration(share * total)) for share in (0.0, 0.5, 1.0))
    return TimeLine(tuple(rows), ticks, duration(total))


def candidate_plot(measured: Sequence[Measured]) -> Plot | None:
    """Lay the measured times of a cell out; None when nothing was measured."""
    times = [value for one in measured for value in one.elapsed_ms.values()]
    if not times:
        return None
    low, high = min(times), max(times)
    if low == high:
        low, high = low * 0.99, high * 1.01
    if low == high:  # so small that a hundredth of it is nothing
        low, high = low - 1, high + 1
    medians = {
        one.label: median(one.elapsed_ms.values()) for one in measured if one.role == "candidate" and one.elapsed_ms
    }
    best = min(medians, key=lambda label: medians[label], default=None)
    best_ms = medians[best] if best is not None else None

    def place(value: float) -> float:
        return round(_MARGIN + (100 - 2 * _MARGIN) * (value - low) / (high - low), 3)

    strips = []
    for one in (one for one in measured if one.elapsed_ms):
        values = sorted(one.elapsed_ms.values())
        middle = median(values)
        strips.append(
            Strip(
                label=one.label,
                automatic=one.role == "automatic",
                best=one.role == "candidate" and one.label == best,
                dots=tuple((place(value), turn, value) for turn, value in sorted(one.elapsed_ms.items())),
                median=place(middle),
                low=place(values[0]),
                high=place(values[-1]),
                median_ms=middle,
                low_ms=values[0],
                high_ms=values[-1],
                relative=None if best_ms is None else 100 * (middle - best_ms) / best_ms,
                spread=100 * (values[-1] - values[0]) / middle,
            )
        )
    ticks = tuple(
        (place(low + share * (high - low)), f"{low + share * (high - low):.4g} ms") for share in (0.0, 0.5, 1.0)
    )
    regret = next((strip.relative for strip in strips if strip.automatic), None)
    return Plot(tuple(strips), ticks, best, regret)
