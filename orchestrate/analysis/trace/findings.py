"""What a comparison of traces found: a disagreement, or what could not be decided and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from orchestrate.analysis.trace.model import Block, Group
from orchestrate.analysis.trace.reconcile import Kind, Mismatch

__all__ = ["Finding", "Lag", "Undecided"]


@dataclass(frozen=True, slots=True)
class Undecided:
    """A place where the traces do not say enough. `offset` is in bytes of `path`."""

    rank: int
    why: str
    path: Path | None = None
    offset: int | None = None

    def __str__(self) -> str:
        if self.path is None:
            return self.why
        place = str(self.path) if self.offset is None else f"{self.path}, byte {self.offset}"
        return f"{place}: {self.why}"


@dataclass(frozen=True, slots=True)
class Lag:
    """`ranks` run `by` records behind the others (they did so many more), or ahead (they left so many out)."""

    ranks: tuple[int, ...]
    by: int
    behind: bool
    matched: int
    """Records that fit together once shifted."""


@dataclass(slots=True)
class Finding:
    """One disagreement: in which group, at which record of each rank (None: it has none there), and what it is."""

    kind: Kind
    group: Group
    channel: int
    records: dict[int, np.void | None]
    odd: tuple[int, ...] | None
    mismatch: Mismatch | None = None
    words: tuple[str, ...] = ()
    lag: Lag | None = None
    tails: Mapping[int, Block] = field(default_factory=dict)
    """The records from there on, by rank."""
    place: int | None = None
    """The sequence key at which it is, where its records are in several groups."""
    heads: Mapping[int, Block] = field(default_factory=dict)
    """The last records before, by rank."""

    @property
    def key(self) -> int:
        """The sequence key at which it is."""
        if self.place is not None:
            return self.place
        return min(int(record["key"]) for record in self.records.values() if record is not None)

    @property
    def start_ns(self) -> int:
        """When the first of its records began."""
        return min(int(record["start"]) for record in self.records.values() if record is not None)
