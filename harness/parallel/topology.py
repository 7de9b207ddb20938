"""Which rank stands where in tensor and context parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from harness.errors import InputError

__all__ = ["CollectiveRecorder", "Group", "NoRecorder", "Topology"]


class CollectiveRecorder(Protocol):
    """Sees every collective of a rank: entered before it is issued, left when it has returned."""

    def record(
        self,
        *,
        op: str,
        group: str,
        ranks: tuple[int, ...],
        dtype: torch.dtype | None,
        shape: tuple[int, ...] | None,
        send_splits: Sequence[int] | None,
        recv_splits: Sequence[int] | None,
        reduce_op: str | None,
        root: int | None,
        tag: str,
        direction: str,
    ) -> AbstractContextManager[object]:
        """The context of one collective.

        `group` is "tp", "cp" or "world" and `ranks` its global ranks; dtype and shape are the input's, None where there
        is none; the splits are rows of dimension 0 per rank of the group, None where the operation has none;
        `direction` is "forward" or "backward";
        `tag` names the call site.
        """
        ...


class NoRecorder:
    """Records nothing."""

    def record(self, **_facts: object) -> AbstractContextManager[object]:
        """A context that does nothing."""
        return nullcontext()


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one of its ranks sees it: `ranks` are global, `index` is this rank's place among them.

    `handle` is None where the group has only this rank: there is nothing to exchange then.
    """

    name: str
    ranks: tuple[int, ...]
    index: int
    handle: dist.ProcessGroup | None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


@dataclass(frozen=True, slots=True)
class Topology:
    """The parallel shape and this rank's place in it.

    Global rank = cp index x tp + tp index: the ranks of a tensor parallel group are neighbours. `checked` says whether
    split sizes are exchanged and compared before each collective.
    """

    tp: int
    cp: int
    rank: int
    device: torch.device
    tp_group: Group
    cp_group: Group
    world: Group
    recorder: CollectiveRecorder
    checked: bool

    @classmethod
    def create(
        cls,
        tp: int,
        cp: int,
        device: torch.device | str,
        *,
        recorder: CollectiveRecorder | None = None,
        checked: bool | None = None,
    ) -> Topology:
        """Make the groups; every rank of the world calls it, after `init_process_group`.

        `checked` is on by default on a CPU and off elsewhere.

        Raises:
            InputError: tp x cp is not the world size.
        """
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if tp < 1 or cp < 1 or tp * cp != world_size:
            raise InputError(f"tp {tp} x cp {cp} on {world_size} ranks", remedy="start exactly tp x cp ranks")
        device = torch.device(device)
        # `new_group` is collective over the world: each rank makes every group, in one order.
        tp_ranks = [tuple(range(first, first + tp)) for first in range(0, world_size, tp)]
        cp_ranks = [tuple(range(first, world_size, tp)) for first in range(tp)]
        tp_handles = _make_groups(tp_ranks)
        cp_handles = _make_groups(cp_ranks)
        everyone = tuple(range(world_size))
        return cls(
            tp=tp,
            cp=cp,
            rank=rank,
            device=device,
            tp_group=_group("tp", tp_ranks[rank // tp], rank, tp_handles),
            cp_group=_group("cp", cp_ranks[rank % tp], rank, cp_handles),
            world=Group("world", everyone, rank, dist.group.WORLD if world_size > 1 else None),
            recorder=NoRecorder() if recorder is None else recorder,
            checked=device.type == "cpu" if checked is None else checked,
        )

    @classmethod
    def single(cls, device: torch.device | str) -> Topology:
        """One rank by itself, with or without an initialised process group: it issues no collective."""
        alone = {name: Group(name, (0,), 0, None) for name in ("tp", "cp", "world")}
        return cls(1, 1, 0, torch.device(device), alone["tp"], alone["cp"], alone["world"], NoRecorder(), checked=False)


def _make_groups(rank_lists: Sequence[tuple[int, ...]]) -> Mapping[tuple[int, ...], dist.ProcessGroup | None]:
    """A process group for each list of more than one rank."""
    return {ranks: dist.new_group(list(ranks)) if len(ranks) > 1 else None for ranks in rank_lists}


def _group(
    name: str, ranks: tuple[int, ...], rank: int, handles: Mapping[tuple[int, ...], dist.ProcessGroup | None]
) -> Group:
    return Group(name, ranks, ranks.index(rank), handles[ranks])
