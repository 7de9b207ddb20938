"""The one seam that every collective goes through: recorded, optionally checked, never called elsewhere.

The functions here know nothing of autograd; `harness.parallel.chain` puts them on its path. In a group of one rank
each returns its input and issues nothing. Rows are dimension 0; splits count rows per rank of the group.

Checked mode sends a fixed-size header around the world before each collective: what each rank is about to do, and how
many rows it sends to and expects from whom. gloo stops on no mismatch by itself: it can finish with uninitialised
values, or abort, and stall only at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist

from harness.parallel.topology import Group, Topology

__all__ = [
    "CollectiveMismatch",
    "Direction",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "barrier",
    "odd_ones",
    "reduce_scatter",
]


class CollectiveMismatch(RuntimeError):  # noqa: N818 - the name the design gives it
    """Ranks are about to issue collectives that do not fit together; `ranks` are the global ranks to look at."""

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class Direction(StrEnum):
    """Which pass a collective belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"


def all_to_all(
    topology: Topology,
    group: Group,
    rows: torch.Tensor,
    send_splits: Sequence[int],
    recv_splits: Sequence[int],
    *,
    tag: str,
    direction: Direction = Direction.FORWARD,
) -> torch.Tensor:
    """Send `send_splits[j]` consecutive rows to each rank j of `group`; the rows received, by sending rank.

    `rows` is (sum of send_splits, ...), the result (sum of recv_splits, ...).

    Raises:
        CollectiveMismatch: in checked mode, splits or call sites of two ranks do not fit.
    """
    if group.handle is None:
        return rows
    rows = rows.contiguous()
    received = rows.new_empty((sum(recv_splits), *rows.shape[1:]))
    with _issue(topology, group, "all_to_all_single", rows, tag, direction, send_splits, recv_splits, uneven=True):
        dist.all_to_all_single(received, rows, list(recv_splits), list(send_splits), group=group.handle)
    return received


def all_reduce(
    topology: Topology, group: Group, tensor: torch.Tensor, *, tag: str, direction: Direction = Direction.FORWARD
) -> torch.Tensor:
    """The sum of `tensor` over `group`, as a new tensor of the same shape on every rank.

    Raises:
        CollectiveMismatch: in checked mode, shapes or call sites of two ranks do not fit.
    """
    if group.handle is None:
        return tensor
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    everything = [tensor.numel()] * group.size
    with _issue(topology, group, "all_reduce", total, tag, direction, everything, everything, reduce_op="sum"):
        dist.all_reduce(total, group=group.handle)
    return total


def all_gather(
    topology: Topology, group: Group, rows: torch.Tensor, *, tag: str, direction: Direction = Direction.FORWARD
) -> torch.Tensor:
    """The `rows` (n, ...) of every rank of `group`, n the same on each, as (size x n, ...) by rank.

    Raises:
        CollectiveMismatch: in checked mode, row counts or call sites of two ranks do not fit.
    """
    if group.handle is None:
        return rows
    rows = rows.contiguous()
    gathered = rows.new_empty((group.size * rows.shape[0], *rows.shape[1:]))
    same = [rows.shape[0]] * group.size
    with _issue(topology, group, "all_gather_single", rows, tag, direction, same, same):
        # `all_gather_single` is the newer name of `all_gather_into_tensor`.
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(gathered, rows, group=group.handle)
    return gathered


def reduce_scatter(
    topology: Topology, group: Group, rows: torch.Tensor, *, tag: str, direction: Direction = Direction.FORWARD
) -> torch.Tensor:
    """Sum `rows` (size x n, ...) over `group`; rank i keeps rows i x n to (i + 1) x n.

    Raises:
        CollectiveMismatch: in checked mode, row counts or call sites of two ranks do not fit.
    """
    if group.handle is None:
        return rows
    rows = rows.contiguous()
    kept = rows.new_empty((rows.shape[0] // group.size, *rows.shape[1:]))
    same = [kept.shape[0]] * group.size
    with _issue(topology, group, "reduce_scatter_single", rows, tag, direction, same, same, reduce_op="sum"):
        getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(kept, rows, group=group.handle)
    return kept


def all_gather_object(topology: Topology, group: Group, value: Any, *, tag: str) -> list[Any]:
    """The picklable `value` of every rank of `group`, by rank.

    Raises:
        CollectiveMismatch: in checked mode, another rank is at another call site.
    """
    if group.handle is None:
        return [value]
    values: list[Any] = [None] * group.size
    with _issue(topology, group, "all_gather_object", None, tag, Direction.FORWARD, None, None):
        dist.all_gather_object(values, value, group=group.handle)
    return values


def barrier(topology: Topology, group: Group, *, tag: str) -> None:
    """Return when every rank of `group` has called it.

    Raises:
        CollectiveMismatch: in checked mode, another rank is at another call site.
    """
    if group.handle is None:
        return
    with _issue(topology, group, "barrier", None, tag, Direction.FORWARD, None, None):
        dist.barrier(group=group.handle)


def odd_ones(values: Sequence[Hashable]) -> tuple[int, ...]:
    """The indices whose value is not the most frequent one; every index where no value is more frequent than another.

    >>> odd_ones(["a", "b", "a"])
    (1,)
    """
    ranked = Counter(values).most_common(2)
    if len(ranked) == 1:
        return ()
    tie = ranked[0][1] == ranked[1][1]
    return tuple(index for index, value in enumerate(values) if tie or value != ranked[0][0])


@contextmanager
def _issue(
    topology: Topology,
    group: Group,
    op: str,
    tensor: torch.Tensor | None,
    tag: str,
    direction: Direction,
    send: Sequence[int] | None,
    recv: Sequence[int] | None,
    *,
    uneven: bool = False,
    reduce_op: str | None = None,
) -> Iterator[None]:
    """Record one collective; in checked mode compare it first, inside the record, so that a stall there shows.

    `send` and `recv` are what is compared, by rank of the group: rows of an all-to-all, which is `uneven` and has them
    in its record, or whatever else must be equal.
    """
    with topology.recorder.record(
        op=op,
        group=group.name,
        ranks=group.ranks,
        dtype=None if tensor is None else tensor.dtype,
        shape=None if tensor is None else tensor.shape,
        send_splits=send if uneven else None,
        recv_splits=recv if uneven else None,
        reduce_op=reduce_op,
        root=None,
        tag=tag,
        direction=direction.value,
    ):
        if topology.checked:
            call = f"{op} {tag} {direction} on {group.name}{_counted(op, tensor)}"
            _compare(topology, _Header(call, *_by_global_rank(topology, group, send, recv)))
        yield


def _counted(op: str, tensor: torch.Tensor | None) -> str:
    """What the compared numbers count: elements of an all-reduce, rows of anything else."""
    if tensor is None:
        return ""
    width = 1 if op == "all_reduce" else tensor.shape[1:].numel()
    return f", {width} x {str(tensor.dtype).removeprefix('torch.')} a row"


@dataclass(frozen=True, slots=True)
class _Header:
    """What a rank is about to do; `send[j]` and `recv[j]` are rows to and from global rank j."""

    call: str
    send: tuple[int, ...]
    recv: tuple[int, ...]


def _by_global_rank(topology: Topology, group: Group, *splits: Sequence[int] | None) -> Iterator[tuple[int, ...]]:
    for counts in splits:
        rows = [0] * topology.world.size
        for rank, count in zip(group.ranks, counts or (), strict=False):
            rows[rank] = count
        yield tuple(rows)


_CALL_BYTES = 160


def _compare(topology: Topology, mine: _Header) -> None:
    """Exchange headers over the world and raise on every rank when they do not fit together."""
    size = topology.world.size
    call = mine.call.encode()[:_CALL_BYTES].ljust(_CALL_BYTES, b"\0")
    packed = torch.cat(
        [
            torch.frombuffer(bytearray(call), dtype=torch.int64),
            torch.tensor([*mine.send, *mine.recv], dtype=torch.int64),
        ]
    ).to(topology.device)
    # All-to-all is one hop, gloo's all-gather a ring of size - 1 hops.
    received = torch.empty((size, packed.numel()), dtype=torch.int64, device=topology.device)
    dist.all_to_all_single(received, packed.repeat(size, 1), group=topology.world.handle)
    received = received.cpu()
    if bool((received[:, : _CALL_BYTES // 8] != received[0, : _CALL_BYTES // 8]).any()):
        calls = received[:, : _CALL_BYTES // 8].contiguous().view(torch.uint8).tolist()
        raise _calls_differ([bytes(call).rstrip(b"\0").decode(errors="replace") for call in calls])
    counts = received[:, _CALL_BYTES // 8 :]
    send, recv = counts[:, :size], counts[:, size:].T
    if not torch.equal(send, recv):
        raise _splits_differ(mine.call, send.tolist(), recv.tolist())


def _calls_differ(calls: Sequence[str]) -> CollectiveMismatch:
    ranks = odd_ones(calls)
    told = "; ".join(f"rank {rank} is at {call}" for rank, call in enumerate(calls))
    return CollectiveMismatch(f"ranks issue different collectives (look at {_names(ranks)}): {told}", ranks)


def _splits_differ(call: str, send: Sequence[Sequence[int]], recv: Sequence[Sequence[int]]) -> CollectiveMismatch:
    """`send[i][j]` rows leave rank i for rank j, which expects `recv[i][j]` of them."""
    size = len(send)
    pairs = [(i, j) for i in range(size) for j in range(size) if send[i][j] != recv[i][j]]
    told = "; ".join(
        f"rank {j} expects {recv[i][j]:,} rows from rank {i}, which sends {send[i][j]:,}" for i, j in pairs
    )
    involved = Counter(rank for pair in pairs for rank in set(pair))
    most = max(involved.values())
    ranks = (
        sorted(involved) if list(involved.values()).count(most) > 1 else [r for r in involved if involved[r] == most]
    )
    return CollectiveMismatch(f"split sizes differ in {call} (look at {_names(ranks)}): {told}", ranks)


def _names(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
