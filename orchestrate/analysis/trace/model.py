"""What a trace is, whatever wrote it: one rank's stream of collectives, in blocks of columns.

What many records have in common (a group, a call, a stack, a context) is interned once for all ranks in `Interned`, by
its meaning: two ranks that number their calls differently get the same number for the same call.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

__all__ = [
    "RECORD",
    "Block",
    "Call",
    "Context",
    "End",
    "Ended",
    "Frame",
    "Group",
    "Interned",
    "RankTrace",
    "State",
    "Table",
]

RECORD = np.dtype(
    [
        ("group", np.int32),
        ("call", np.int32),
        ("context", np.int32),
        ("key", np.int64),  # sequence x 4096 + index among the records of that sequence; a channel for point to point
        ("forward", np.int32),
        ("state", np.int8),
        ("p2p", np.int8),
        ("thread", np.int32),
        ("local", np.int32),  # what `RankTrace.frames` finds the stack by
        ("start", np.int64),  # ns
        ("end", np.int64),  # ns, 0 for unknown
        ("ref", np.int64),  # the record's number in its file, in program order
    ]
)
"""The columns of a block: group, call and context are numbers of `Interned`; times are nanoseconds."""

Block = np.ndarray[Any, np.dtype[np.void]]
"""A structured array of `RECORD`."""


class State(IntEnum):
    """How far a record got."""

    PENDING = 0
    """It began; nobody saw it end."""
    COMPLETED = 1
    RAISED = 2
    UNKNOWN = 3
    """It was issued and nobody waited for it, or the recorder does not follow it."""
    RETIRED = 4
    """It ended, well or not: gloo's flight recorder can not tell the two apart."""
    WAITING = 5
    """An asynchronous one that somebody waits for; nobody saw it end."""


class Ended(StrEnum):
    """Where a trace ends."""

    COMPLETE = "complete"
    """The rank ended by itself and said so."""
    OPEN = "open"
    """The rank was killed, hangs or still runs; what it did is all there."""
    DUMP = "dump"
    """A dump made at some moment: what came later is not in it."""
    CUT = "cut"
    """The file was cut or damaged; what came later is unknown."""


@dataclass(frozen=True, slots=True)
class End:
    """How a trace ends, and for a cut one where in the file (`offset`, bytes) and why."""

    how: Ended
    offset: int | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A process group; `ranks` are global, in the group's order, or None where the trace does not say.

    `pair` is set for the one-way channel of point-to-point operations between two ranks of the group, and `tag` where
    the backend has a channel for each tag.
    """

    name: str
    ranks: tuple[int, ...] | None
    desc: str | None = None
    pair: tuple[int, int] | None = None
    tag: int = 0

    def __str__(self) -> str:
        named = self.name if self.desc in {None, "", "undefined", self.name} else f"{self.name} ({self.desc})"
        if self.pair is None:
            return named
        return f"{named}, {self.pair[0]} to {self.pair[1]}" + (f", tag {self.tag}" if self.tag else "")


@dataclass(frozen=True, slots=True)
class Call:
    """What one rank asks of one collective. Splits are rows by rank of the group; `root` and `peer` global ranks."""

    op: str
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    send_splits: tuple[int, ...] | None = None
    recv_splits: tuple[int, ...] | None = None
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    even: bool = False
    """No split lists were given, so that every rank of the group gets as many rows."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a rank was doing: layout label, phase, direction, and the label of the call's site."""

    layout: str | None = None
    phase: str | None = None
    backward: bool = False
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of user code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


_T = TypeVar("_T", bound=Hashable)


class Table(Generic[_T]):
    """Each distinct item once, by number."""

    __slots__ = ("_numbers", "items")

    def __init__(self) -> None:
        self.items: list[_T] = []
        self._numbers: dict[_T, int] = {}

    def number(self, item: _T) -> int:
        """The number of `item`, a new one if it was not known."""
        known = self._numbers.get(item)
        if known is None:
            known = self._numbers[item] = len(self.items)
            self.items.append(item)
        return known

    def __getitem__(self, number: int) -> _T:
        return self.items[number]

    def __len__(self) -> int:
        return len(self.items)


class Interned:
    """What the records of all ranks name by number."""

    __slots__ = ("calls", "contexts", "groups")

    def __init__(self) -> None:
        self.groups: Table[Group] = Table()
        self.calls: Table[Call] = Table()
        self.contexts: Table[Context] = Table()
        self.contexts.number(Context())


class RankTrace(Protocol):
    """One rank's trace. `end` holds once `blocks` is exhausted, `groups` once their first record has been given."""

    @property
    def rank(self) -> int:
        """The global rank."""

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, where the trace says so."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def format(self) -> str:
        """What wrote it."""

    @property
    def starts_late(self) -> bool:
        """What came first was overwritten: the stream does not begin at the job's first collective."""

    @property
    def gapless(self) -> bool:
        """Between its first record and its last it has every one."""

    @property
    def end(self) -> End:
        """How it ends."""

    @property
    def groups(self) -> Sequence[int]:
        """The numbers of the groups it has named so far."""

    def blocks(self, records: int) -> Iterator[Block]:
        """Its records in program order, at most so many at a time."""

    def frames(self, record: np.void) -> tuple[Frame, ...]:
        """The user code that made `record`, innermost first."""
