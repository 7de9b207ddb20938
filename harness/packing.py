"""A group under a layout, as one packed row of tokens with its segments and its loss terms."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.errors import InputError
from harness.prefix_tree import Layout, PrefixTree, Row, spans

__all__ = ["LossTerm", "PackedGroup", "Segment", "loss_weight", "pack"]


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of the packed row.

    `index` is its place in `PackedGroup.segments`; `parent` the index of the segment that its rows go through just
    before, -1 for none; `start` and `length` its place in `PackedGroup.tokens`; `depth` its 1-based level;
    `row_start` the position of its first token inside each of its rows; `rows` those rows, ascending.
    """

    index: int
    parent: int
    start: int
    length: int
    depth: int
    row_start: int
    rows: tuple[int, ...]


class LossTerm(NamedTuple):
    """`weight` times the log-probability of `target` after the token at `packed_index` is one term of the loss."""

    packed_index: int
    target: int
    weight: float


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """A group packed under one layout.

    `segments` come parents first and lie in `tokens` in that order without gaps; none is empty. `terms` are ordered by
    row and position and are, but for `packed_index`, the same for every layout: each position of each row that has a
    next token gives one, so a shared token counts once for each row through it, with that row's own target. `digest`
    is the SHA-256 of all of it.
    """

    label: str
    tokens: tuple[int, ...]
    segments: tuple[Segment, ...]
    terms: tuple[LossTerm, ...]
    digest: str


def pack(rows: Sequence[Sequence[int]], tree: PrefixTree, layout: Layout) -> PackedGroup:
    """Pack `rows` under `layout`; `tree` is the prefix tree of exactly these rows.

    Raises:
        InputError: `tree` was built from rows of other lengths.
    """
    tokens_of = [tuple(row) for row in rows]
    if tuple(len(row) for row in tokens_of) != tree.row_lengths:
        raise InputError("the prefix tree belongs to other rows", remedy="build it with PrefixTree.from_rows(rows)")
    segments: list[Segment] = []
    packed: list[int] = []
    for index, span in enumerate(spans(tree, layout)):
        length = span.end - span.start
        segments.append(Segment(index, span.parent, len(packed), length, span.depth, span.start, span.rows))
        packed += tokens_of[span.rows[0]][span.start : span.end]
    terms = tuple(_terms(tokens_of, segments))
    digest = _digest(layout.label, packed, segments, terms)
    return PackedGroup(layout.label, tuple(packed), tuple(segments), terms, digest)


def loss_weight(row: int, position: int) -> float:
    """The fixed weight of a row's position in the loss.

    It lies in [1, 2) in steps of 1/64, so that it is exact in every float type in use, bfloat16 included, and differs
    between neighbouring positions and rows, so that a loss term taken from the wrong place shows.
    """
    return 1 + (31 * row + 17 * position) % 64 / 64


def _terms(rows: Sequence[Row], segments: Sequence[Segment]) -> Iterator[LossTerm]:
    places: list[list[int]] = [[] for _ in rows]
    for segment in segments:  # parents first, so each row's places come in the row's own order
        for row in segment.rows:
            places[row] += range(segment.start, segment.start + segment.length)
    for row, tokens in enumerate(rows):
        for position, (place, target) in enumerate(zip(places[row], tokens[1:], strict=False)):
            yield LossTerm(place, target, loss_weight(row, position))


def _digest(label: str, tokens: Sequence[int], segments: Sequence[Segment], terms: Sequence[LossTerm]) -> str:
    digest = hashlib.sha256(b"harness.packing/1\0" + label.encode() + b"\0")
    for segment in segments:
        head = (segment.parent, segment.start, segment.length, segment.depth, segment.row_start, len(segment.rows))
        digest.update(_bytes("q", (*head, *segment.rows)))
    digest.update(_bytes("q", tokens))
    digest.update(_bytes("q", [term.packed_index for term in terms]))
    digest.update(_bytes("q", [term.target for term in terms]))
    digest.update(_bytes("d", [term.weight for term in terms]))
    return digest.hexdigest()


def _bytes(typecode: str, values: Sequence[float]) -> bytes:
    """`values` with their count before them, eight little-endian bytes each."""
    counted = array("q", [len(values)])
    data: array[int] | array[float] = array(typecode, values)
    if sys.byteorder == "big":
        counted.byteswap()
        data.byteswap()
    return counted.tobytes() + data.tobytes()
