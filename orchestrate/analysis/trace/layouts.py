"""The layout that each rank ran, forward by forward, and the first forward in which they part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrate.analysis.trace.forwards import Forwards
from orchestrate.analysis.trace.model import Interned
from orchestrate.analysis.trace.odd import names_of
from orchestrate.analysis.trace.reconcile import odd_of_classes

__all__ = ["LayoutRow", "layout_rows"]

_BEFORE, _AFTER = 3, 2


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """One forward: its number, and by rank the layout label and the phase (None: the rank has no such forward)."""

    forward: int
    layouts: Mapping[int, str | None]
    phases: Mapping[int, str | None]
    certain: bool = True
    """Whether every rank that has the forward says its layout."""
    lag: str | None = None

    def words(self) -> str:
        """Who ran which layout in it."""
        by_layout: dict[str, list[int]] = {}
        for rank, layout in self.layouts.items():
            if layout is not None:
                by_layout.setdefault(layout, []).append(rank)
        ran = ", ".join(f"{names_of(ranks)} ran {layout}" for layout, ranks in by_layout.items())
        return f"in forward {self.forward} {ran}"

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "forward": self.forward,
            "layouts": {str(rank): layout for rank, layout in self.layouts.items()},
            "phases": {str(rank): phase for rank, phase in self.phases.items()},
        }


def layout_rows(
    forwards: Mapping[int, Forwards], interned: Interned, around: int | None
) -> tuple[tuple[LayoutRow, ...], LayoutRow | None]:
    """The forwards near `around` (or near where the layouts part), and the first in which ranks ran different ones."""
    by_rank = {rank: found.contexts() for rank, found in forwards.items()}
    every = sorted({forward for found in by_rank.values() for forward in found})
    parted: LayoutRow | None = None
    for forward in every:
        numbers = {found[forward] for found in by_rank.values() if forward in found}
        layouts = {interned.contexts[number].layout for number in numbers} - {None}
        if len(layouts) > 1:
            row = _row(forward, by_rank, interned)
            parted = LayoutRow(forward, row.layouts, row.phases, lag=_lag(forward, every, row, by_rank, interned))
            break
    centre = parted.forward if parted is not None and (around is None or parted.forward <= around) else around
    if centre is None:
        return (), parted
    near = [forward for forward in every if forward >= centre][: _AFTER + 1]
    near = [forward for forward in every if forward < centre][-_BEFORE:] + near
    rows = [_row(forward, by_rank, interned) for forward in near]
    return tuple(row for row in rows if any(row.layouts.values())), parted


def _row(forward: int, by_rank: Mapping[int, Mapping[int, int]], interned: Interned) -> LayoutRow:
    contexts = {
        rank: None if forward not in found else interned.contexts[found[forward]] for rank, found in by_rank.items()
    }
    return LayoutRow(
        forward,
        {rank: None if context is None else context.layout for rank, context in contexts.items()},
        {rank: None if context is None else context.phase for rank, context in contexts.items()},
    )


def _lag(
    forward: int, every: list[int], row: LayoutRow, by_rank: Mapping[int, Mapping[int, int]], interned: Interned
) -> str | None:
    """Whether the odd rank runs what the others ran some forwards before, or will run."""
    known = {rank: layout for rank, layout in row.layouts.items() if layout is not None}
    odd = odd_of_classes(known)
    if not odd:
        return None
    theirs = known[odd[0]]
    other = next(rank for rank in known if rank not in odd)
    place = every.index(forward)
    for by in range(1, 9):
        for way, there in (("behind", place - by), ("ahead of", place + by)):
            if not 0 <= there < len(every) or every[there] not in by_rank[other]:
                continue
            if interned.contexts[by_rank[other][every[there]]].layout == theirs:
                unit = "forward" if by == 1 else "forwards"
                return f"{names_of(odd)} runs {by} {unit} {way} the others: they run {theirs} in forward {every[there]}"
    return None
