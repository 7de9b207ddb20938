"""One collective, as each rank of its group asked for it: do the calls fit together, and if not, how not?"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from orchestrate.analysis.trace.calls import numel, rows
from orchestrate.analysis.trace.model import Call, Group

__all__ = ["Kind", "Mismatch", "Pair", "odd_of_classes", "reconcile"]

_EQUAL_INPUT = {"all_reduce", "all_reduce_coalesced", "reduce", "all_gather_single", "all_gather_coalesced", "gather"}
_EQUAL_INPUT |= {"reduce_scatter_single", "reduce_scatter_coalesced"}
_EQUAL_OUTPUT = {"reduce_scatter_single", "reduce_scatter_coalesced", "scatter", "all_gather_single"}
_EQUAL_OUTPUT |= {"all_gather_coalesced"}
_EXCHANGES = {"all_to_all", "all_to_all_single"}


class Kind(StrEnum):
    """How ranks can disagree."""

    MISSING_RANK = "missing-rank"
    OPERATION = "operation"
    ORDER = "order"
    GROUP = "group-membership"
    ROOT = "root"
    REDUCE_OP = "reduce-op"
    DTYPE = "dtype"
    SIZE = "size"
    SPLIT = "split"
    LAG = "lag"
    LAYOUT = "layout"
    NEVER_COMPLETED = "never-completed"


@dataclass(frozen=True, slots=True)
class Pair:
    """What rank `receiver` expects from rank `sender` and what that one sends; rows, or elements (`unit`)."""

    sender: int
    receiver: int
    sends: int
    expects: int
    unit: str = "rows"

    def __str__(self) -> str:
        unit = self.unit.removesuffix("s") if self.expects == 1 else self.unit
        return (
            f"rank {self.receiver} expects {self.expects:,} {unit} from rank {self.sender}, "
            f"rank {self.sender} sends {self.sends:,}"
        )


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How calls disagree: the kind, what each rank said (`said`), bad pairs, and the odd ranks (None: no majority)."""

    kind: Kind
    said: Mapping[int, str]
    odd: tuple[int, ...] | None
    pairs: tuple[Pair, ...] = ()
    note: str | None = None


def reconcile(group: Group, calls: Mapping[int, Call]) -> Mismatch | None:
    """Whether `calls`, by global rank, are one collective of `group`; ranks whose trace is missing are left out.

    The first disagreement in this order: operation, dtype, root, reduce op, sizes, splits over all pairs.
    """
    if group.pair is not None:
        return _point_to_point(group.pair, calls)
    ranks = list(calls)
    for kind, value in (
        (Kind.OPERATION, lambda call: call.op),
        (Kind.DTYPE, _dtype),
        (Kind.ROOT, lambda call: call.root),
        (Kind.REDUCE_OP, lambda call: call.reduce_op),
    ):
        found = _differing(kind, calls, value)
        if found is not None:
            return found
    op = calls[ranks[0]].op
    if op in {"gather", "scatter"} and (found := _roots_by_data(group, op, calls)) is not None:
        return found
    if op in _EXCHANGES:
        return _exchange(group, calls)
    return _sizes(group, op, calls)


def odd_of_classes(classes: Mapping[int, Hashable]) -> tuple[int, ...] | None:
    """The ranks outside the class of more than half of the ranks, or None where there is no such class."""
    members: dict[Hashable, list[int]] = {}
    for rank, value in classes.items():
        members.setdefault(value, []).append(rank)
    largest = max(members.values(), key=len)
    if 2 * len(largest) <= len(classes):
        return None
    return tuple(sorted(set(classes) - set(largest)))


def _differing(kind: Kind, calls: Mapping[int, Call], value: Callable[[Call], Hashable]) -> Mismatch | None:
    known = {rank: said for rank, call in calls.items() if (said := value(call)) is not None}
    if len(set(known.values())) < 2:
        return None
    return Mismatch(kind, {rank: _words(said) for rank, said in known.items()}, odd_of_classes(known))


def _words(said: Hashable) -> str:
    if isinstance(said, tuple):
        return (
            ", ".join(" x ".join(map(str, size)) if isinstance(size, tuple) else str(size) for size in said) or "none"
        )
    return str(said)


def _dtype(call: Call) -> Hashable:
    names = call.input_dtypes or call.output_dtypes
    return tuple(dict.fromkeys(names)) or None


def _roots_by_data(group: Group, op: str, calls: Mapping[int, Call]) -> Mismatch | None:
    """Who acts as the root, where only the data say so: the one rank with outputs (gather) or inputs (scatter)."""
    if any(call.root is not None for call in calls.values()) or group.ranks is None or len(calls) < len(group.ranks):
        return None
    roots = [rank for rank, call in calls.items() if numel(call.output_sizes if op == "gather" else call.input_sizes)]
    if len(roots) == 1 or len(roots) == len(calls):
        return None
    said = {rank: "acts as the root" if rank in roots else "acts as no root" for rank in calls}
    return Mismatch(Kind.ROOT, said, None, note=f"{len(roots)} ranks act as the root")


def _sizes(group: Group, op: str, calls: Mapping[int, Call]) -> Mismatch | None:
    if op in _EQUAL_INPUT and (found := _differing(Kind.SIZE, calls, lambda call: call.input_sizes)):
        return found
    if op in _EQUAL_OUTPUT and (found := _differing(Kind.SIZE, calls, lambda call: call.output_sizes)):
        return found
    if op == "broadcast":
        return _differing(Kind.SIZE, calls, lambda call: call.input_sizes or call.output_sizes or None)
    if op in {"all_gather", "reduce_scatter"} and (found := _lists(group, op, calls)):
        return found
    size = None if group.ranks is None else len(group.ranks)
    if size is None:
        return None
    return _whole_and_share(op, size, calls)


def _lists(group: Group, op: str, calls: Mapping[int, Call]) -> Mismatch | None:
    """`all_gather` and `reduce_scatter` take lists, whose tensors may differ by rank where every rank says so."""
    gather = op == "all_gather"
    share = {rank: call.input_sizes if gather else call.output_sizes for rank, call in calls.items()}
    whole = {rank: call.output_sizes if gather else call.input_sizes for rank, call in calls.items()}
    if len(set(share.values())) == 1:
        return _differing(Kind.SIZE, calls, lambda call: call.output_sizes if gather else call.input_sizes)
    ranks = group.ranks
    if ranks is not None and len(ranks) > 1 and {len(sizes) for sizes in whole.values()} == {len(ranks)}:
        if found := _differing(Kind.SIZE, calls, lambda call: call.output_sizes if gather else call.input_sizes):
            return found
        listed = {rank: whole[rank][ranks.index(rank)] for rank in calls}
        wrong = tuple(rank for rank in calls if numel(share[rank]) != prod(listed[rank]))
        if not wrong:
            return None
        said = {rank: f"{_words(share[rank])} for {_words((listed[rank],))} of the lists" for rank in calls}
        return Mismatch(Kind.SIZE, said, wrong if 2 * len(wrong) < len(calls) else None)
    return _differing(Kind.SIZE, calls, lambda call: call.input_sizes if gather else call.output_sizes)


def _whole_and_share(op: str, size: int, calls: Mapping[int, Call]) -> Mismatch | None:
    """A gathered result is as large as all shares together; the ranks for which it is not."""
    if op in {"all_gather", "all_gather_single", "all_gather_coalesced"}:
        wrong = [r for r, c in calls.items() if c.output_sizes and numel(c.output_sizes) != size * numel(c.input_sizes)]
    elif op in {"reduce_scatter", "reduce_scatter_single", "reduce_scatter_coalesced"}:
        wrong = [r for r, c in calls.items() if c.output_sizes and numel(c.input_sizes) != size * numel(c.output_sizes)]
    else:
        return None
    shares = {call.output_sizes if op == "reduce_scatter" else call.input_sizes for call in calls.values()}
    if not wrong or (op in {"all_gather", "reduce_scatter"} and len(shares) > 1):
        return None
    said = {r: f"{numel(c.input_sizes):,} in, {numel(c.output_sizes):,} out" for r, c in calls.items()}
    odd = () if len(wrong) == len(calls) else tuple(wrong) if 2 * len(wrong) < len(calls) else None
    return Mismatch(Kind.SIZE, said, odd, note=f"in a group of {size}")


def _exchange(group: Group, calls: Mapping[int, Call]) -> Mismatch | None:
    """Every (i, j): the rows that i sends to j are those that j expects from i."""
    unit = "elements" if next(iter(calls.values())).op == "all_to_all" else "rows"
    widths = {rank: _width(call) for rank, call in calls.items()}
    found = _differing(Kind.SIZE, calls, _width) if unit == "rows" and None not in widths.values() else None
    if found is not None:
        return Mismatch(found.kind, found.said, found.odd, note="the rows have different shapes")
    if group.ranks is None:
        return _totals(calls, set(calls))
    size = len(group.ranks)
    sent = {rank: rows(call, size, sent=True) for rank, call in calls.items()}
    expected = {rank: rows(call, size, sent=False) for rank, call in calls.items()}
    if any(splits is None or len(splits) != size for splits in (*sent.values(), *expected.values())):
        return _totals(calls, set(group.ranks))
    place = {rank: index for index, rank in enumerate(group.ranks)}
    pairs = []
    for sender in calls:
        for receiver in calls:
            sends, expects = sent[sender][place[receiver]], expected[receiver][place[sender]]  # type: ignore[index]
            if sends != expects:
                pairs.append(Pair(sender, receiver, sends, expects, unit))
    if not pairs:
        return None
    said = {
        rank: f"sends {_list(sent[rank])}, expects {_list(expected[rank])} {unit} by rank of the group"
        for rank in calls
    }
    return Mismatch(Kind.SPLIT, said, _odd_of_pairs(pairs, list(calls)), tuple(pairs))


def _width(call: Call) -> Hashable:
    size = next((size for size in call.input_sizes + call.output_sizes if len(size) > 1), None)
    return None if size is None else size[1:]


def _list(values: Sequence[int] | None) -> str:
    return "[" + ", ".join(f"{value:,}" for value in values or ()) + "]"


def _odd_of_pairs(pairs: Sequence[Pair], ranks: Sequence[int]) -> tuple[int, ...] | None:
    """The one rank that is in every bad pair, if the pairs have no other rank in common and a majority is left."""
    common = set.intersection(*({pair.sender, pair.receiver} for pair in pairs))
    if len(common) == 1 and len(ranks) > 2 and len({frozenset((p.sender, p.receiver)) for p in pairs}) > 1:
        return tuple(common)
    # A rank is odd when its column or row is wrong for most of its partners, and it is no rank of the majority.
    wrong = {rank: {p.sender + p.receiver - rank for p in pairs if rank in {p.sender, p.receiver}} for rank in ranks}
    odd = tuple(rank for rank in ranks if 2 * len(wrong[rank]) > len(ranks) - 1)
    covered = all({pair.sender, pair.receiver} & set(odd) for pair in pairs)
    return odd if odd and covered and 2 * len(odd) < len(ranks) else None


def _totals(calls: Mapping[int, Call], members: set[int]) -> Mismatch | None:
    """Where a trace has no split sizes: what all send together is what all receive together."""
    if not members <= set(calls):
        return None
    sent = sum(numel(call.input_sizes) for call in calls.values())
    expected = sum(numel(call.output_sizes) for call in calls.values())
    if sent == expected:
        return None
    said = {r: f"sends {numel(c.input_sizes):,}, expects {numel(c.output_sizes):,} elements" for r, c in calls.items()}
    note = f"all send {sent:,} and expect {expected:,} elements; the trace has no split sizes, so no pair can be named"
    return Mismatch(Kind.SPLIT, said, odd_of_classes(said), note=note)


def _point_to_point(pair: tuple[int, int], calls: Mapping[int, Call]) -> Mismatch | None:
    sender, receiver = pair
    if sender == receiver or len(calls) < 2:
        return None
    send, receive = calls[sender], calls[receiver]
    found = _differing(Kind.DTYPE, calls, _dtype)
    if found is not None:
        return found
    sends = numel(send.input_sizes or send.output_sizes)
    expects = numel(receive.output_sizes or receive.input_sizes)
    if sends == expects:
        return None
    said = {sender: f"sends {sends:,} elements", receiver: f"expects {expects:,} elements"}
    return Mismatch(Kind.SIZE, said, None, (Pair(sender, receiver, sends, expects, "elements"),))
