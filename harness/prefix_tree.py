"""The radix tree of a group's token rows, the layouts it allows, and their features.

A *node* is a stretch of tokens that two or more rows have in common and that no shorter or longer stretch describes
better: a node ends where its rows part or where one of them ends. What a row has beyond its deepest node is its
*tail*; tails are no nodes. A *layout* is the set of nodes that are stored once; every other node is replayed in each
thing below it, be that a shared node or a tail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.errors import InputError

__all__ = [
    "ROOT",
    "SEGMENT_LENGTH_THRESHOLDS",
    "Features",
    "Layout",
    "Node",
    "PrefixTree",
    "Row",
    "Span",
    "candidate_family",
    "equal_labels",
    "features",
    "spans",
]

Row = tuple[int, ...]

ROOT = -1
"""The parent of whatever starts at position 0. The root itself holds no token and is no node."""

SEGMENT_LENGTH_THRESHOLDS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""The lengths, in tokens, below which `Features.segments_below` counts segments."""


@dataclass(frozen=True, slots=True)
class Node:
    """Tokens `start:end` of every row in `rows` (ascending row indices); `depth` is 1 for a child of the root."""

    id: int
    parent: int
    start: int
    end: int
    depth: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """The full radix tree of a group.

    `nodes` lists parents before children, siblings by their smallest row, and `nodes[i].id == i`. `row_lengths` are in
    tokens. `deepest[r]` is the id of row r's deepest node, `ROOT` where row r shares nothing.
    """

    nodes: tuple[Node, ...]
    row_lengths: tuple[int, ...]
    deepest: tuple[int, ...]

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> PrefixTree:
        """Build the tree of `rows`, each a sequence of token ids.

        Raises:
            InputError: there is no row, or a row has no token.

        >>> PrefixTree.from_rows([(1, 2, 3), (1, 2, 4)]).nodes
        (Node(id=0, parent=-1, start=0, end=2, depth=1, rows=(0, 1)),)
        """
        tokens = [tuple(row) for row in rows]
        _refuse_empty(tokens)
        return _tree(sorted(_common_prefixes(tokens)), tuple(len(row) for row in tokens))


@dataclass(frozen=True, slots=True)
class Layout:
    """The nodes to store once, under the name that the layout has in the candidate family."""

    label: str
    shared: frozenset[int]


@dataclass(frozen=True, slots=True)
class Span:
    """One segment of a layout before it is packed: tokens `start:end` of each row in `rows`.

    `parent` is the index of the span that the rows go through just before (`ROOT` for none), `depth` counts spans from
    the root and is 1-based.
    """

    parent: int
    start: int
    end: int
    depth: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Features:
    """What the cost model knows of a layout.

    `packed_tokens` is the sum of all segment lengths; `max_depth` the largest number of segments that a row goes
    through, its tail included, so that it is 1 without sharing; `segments_below[i]` the number of segments shorter
    than `SEGMENT_LENGTH_THRESHOLDS[i]` tokens.
    """

    packed_tokens: int
    segment_count: int
    max_depth: int
    segments_below: tuple[int, ...]


def candidate_family(tree: PrefixTree) -> tuple[Layout, ...]:
    """The mandatory candidates of a group, in family order, equal layouts once under their first label.

    The order is `no_sharing`, `depth_one` (all nodes of depth 1), `uniform_depth_k` (all nodes of depth at most k) for
    each deeper k, `minimum_effective_span_T` by rising T, and `full_sharing`. At threshold T a node is shared when its
    end minus the end of its nearest shared ancestor (0 where there is none) is at least T; the thresholds are 1 and
    each value just above the smallest such distance, until nothing is shared. DESIGN section 10.
    """
    first = {layout.shared: layout for layout in reversed(list(_labelled(tree)))}
    return tuple(layout for layout in _labelled(tree) if first[layout.shared].label == layout.label)


def equal_labels(tree: PrefixTree) -> dict[str, str]:
    """The labels of the family that `candidate_family` leaves out, each with the label that stands for it."""
    first = {layout.shared: layout.label for layout in reversed(list(_labelled(tree)))}
    return {layout.label: first[layout.shared] for layout in _labelled(tree) if first[layout.shared] != layout.label}


def features(tree: PrefixTree, layout: Layout) -> Features:
    """The features of `layout` on `tree`."""
    segments = spans(tree, layout)
    lengths = [span.end - span.start for span in segments]
    return Features(
        packed_tokens=sum(lengths),
        segment_count=len(lengths),
        max_depth=max(span.depth for span in segments),
        segments_below=tuple(sum(length < bound for length in lengths) for bound in SEGMENT_LENGTH_THRESHOLDS),
    )


def spans(tree: PrefixTree, layout: Layout) -> tuple[Span, ...]:
    """The segments of `layout`, parents first, depth first, siblings by their smallest row.

    A row that ends inside a shared node has no tail, so every span holds at least one token. Rows that share nothing
    more have a tail each, also where their tails are equal.
    """
    cover = _cover(tree, layout.shared)
    below: dict[int, list[tuple[int, int]]] = {}
    for node in tree.nodes:
        if node.id in layout.shared:
            above = ROOT if node.parent == ROOT else cover[node.parent]
            below.setdefault(above, []).append((node.rows[0], node.id))
    for row, length in enumerate(tree.row_lengths):
        above = ROOT if tree.deepest[row] == ROOT else cover[tree.deepest[row]]
        if length > _end(tree, above):
            below.setdefault(above, []).append((row, ROOT))
    return tuple(_depth_first(tree, below))


def _refuse_empty(rows: Sequence[Row]) -> None:
    if not rows:
        raise InputError("a group has no rows", remedy="give each group at least one row of token ids")
    for index, row in enumerate(rows):
        if not row:
            raise InputError(f"row {index} of the group has no tokens", remedy="drop the row or give it tokens")


def _common_prefixes(rows: Sequence[Row]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each node as (end, rows): the intervals of equal prefix length among the sorted rows (LCP intervals)."""
    order = sorted(range(len(rows)), key=rows.__getitem__)
    open_intervals = [(0, 0)]
    for right in range(1, len(order) + 1):
        common = _common_length(rows[order[right - 1]], rows[order[right]]) if right < len(order) else 0
        left = right - 1
        while open_intervals[-1][0] > common:
            end, left = open_intervals.pop()
            yield end, tuple(sorted(order[left:right]))
        if open_intervals[-1][0] < common:
            open_intervals.append((common, left))


def _common_length(one: Row, other: Row) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _tree(prefixes: Sequence[tuple[int, tuple[int, ...]]], row_lengths: tuple[int, ...]) -> PrefixTree:
    """Number `prefixes`, which come by rising end, parents first and siblings by smallest row."""
    parents: list[int] = []
    children: dict[int, list[int]] = {}
    deepest = [ROOT] * len(row_lengths)
    for index, (_, rows) in enumerate(prefixes):
        parents.append(deepest[rows[0]])
        children.setdefault(parents[index], []).append(index)
        for row in rows:
            deepest[row] = index
    nodes: list[Node] = []
    number = {ROOT: ROOT}
    todo = sorted(children.get(ROOT, []), key=lambda index: prefixes[index][1], reverse=True)
    while todo:
        index = todo.pop()
        end, rows = prefixes[index]
        parent = number[parents[index]]
        start, depth = (0, 1) if parent == ROOT else (nodes[parent].end, nodes[parent].depth + 1)
        number[index] = len(nodes)
        nodes.append(Node(len(nodes), parent, start, end, depth, rows))
        todo += sorted(children.get(index, []), key=lambda child: prefixes[child][1], reverse=True)
    return PrefixTree(tuple(nodes), row_lengths, tuple(number[index] for index in deepest))


def _labelled(tree: PrefixTree) -> Iterator[Layout]:
    everything = frozenset(node.id for node in tree.nodes)
    yield Layout("no_sharing", frozenset())
    yield Layout("depth_one", frozenset(node.id for node in tree.nodes if node.depth == 1))
    for depth in range(2, max((node.depth for node in tree.nodes), default=0) + 1):
        yield Layout(f"uniform_depth_{depth}", frozenset(node.id for node in tree.nodes if node.depth <= depth))
    threshold = 1
    while True:
        distances = _effective_distances(tree, threshold)
        yield Layout(f"minimum_effective_span_{threshold}", frozenset(distances))
        if not distances:
            break
        threshold = min(distances.values()) + 1
    yield Layout("full_sharing", everything)


def _effective_distances(tree: PrefixTree, threshold: int) -> dict[int, int]:
    """The nodes shared at `threshold`, each with its end minus the end of its nearest shared ancestor."""
    distances: dict[int, int] = {}
    covered: list[int] = []
    for node in tree.nodes:
        above = 0 if node.parent == ROOT else covered[node.parent]
        if node.end - above >= threshold:
            distances[node.id] = node.end - above
            above = node.end
        covered.append(above)
    return distances


def _cover(tree: PrefixTree, shared: frozenset[int]) -> list[int]:
    """For each node the nearest shared node at or above it, `ROOT` where there is none."""
    cover: list[int] = []
    for node in tree.nodes:
        above = ROOT if node.parent == ROOT else cover[node.parent]
        cover.append(node.id if node.id in shared else above)
    return cover


def _depth_first(tree: PrefixTree, below: dict[int, list[tuple[int, int]]]) -> Iterator[Span]:
    todo = [(ROOT, 0, 1, *item) for item in sorted(below.get(ROOT, []), reverse=True)]
    index = 0
    while todo:
        parent, start, depth, row, node = todo.pop()
        end = tree.row_lengths[row] if node == ROOT else tree.nodes[node].end
        yield Span(parent, start, end, depth, (row,) if node == ROOT else tree.nodes[node].rows)
        if node != ROOT:
            todo += [(index, end, depth + 1, *item) for item in sorted(below.get(node, []), reverse=True)]
        index += 1


def _end(tree: PrefixTree, node: int) -> int:
    return 0 if node == ROOT else tree.nodes[node].end
