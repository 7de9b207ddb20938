"""Context parallelism: the exchanges between the sequence shards, the head shards and the owners of segments."""

from __future__ import annotations

import torch

from harness.parallel.chain import ExchangeChain
from harness.parallel.delta_plan import DeltaPlan, Handoff
from harness.parallel.plan import ExecutionPlan
from harness.parallel.topology import Topology

__all__ = ["heads_to_sequence", "rows_from_owners", "rows_to_owners", "sequence_to_heads", "states_to_children"]


def sequence_to_heads(
    chain: ExchangeChain, topology: Topology, plan: ExecutionPlan, rows: torch.Tensor, *, tag: str
) -> torch.Tensor:
    """From (cp, shard rows, width), one block of heads for each rank, to this rank's block of all (packed, width)."""
    sizes = plan.shard_sizes
    mine = [sizes[topology.cp_group.index]] * topology.cp
    return chain.all_to_all(topology.cp_group, rows.flatten(0, 1), mine, sizes, tag=tag)


def heads_to_sequence(
    chain: ExchangeChain, topology: Topology, plan: ExecutionPlan, rows: torch.Tensor, *, tag: str
) -> torch.Tensor:
    """From this rank's block of heads of all (packed, width) to all blocks of its shard (shard rows, cp x width)."""
    sizes = plan.shard_sizes
    shard = sizes[topology.cp_group.index]
    blocks = chain.all_to_all(topology.cp_group, rows, sizes, [shard] * topology.cp, tag=tag)
    return blocks.view(topology.cp, shard, rows.shape[1]).transpose(0, 1).flatten(1)


def rows_to_owners(
    chain: ExchangeChain, topology: Topology, delta: DeltaPlan, rows: torch.Tensor, *, tag: str
) -> torch.Tensor:
    """From shard rows to the rows of this rank's segments and of the convolution's reach before them.

    A row goes to each owner that needs it; backward its gradients from all of them are summed.
    """
    move = delta.to_owners
    return chain.all_to_all(topology.cp_group, rows[move.index], move.send_splits, move.recv_splits, tag=tag)


def rows_from_owners(
    chain: ExchangeChain, topology: Topology, delta: DeltaPlan, rows: torch.Tensor, *, tag: str
) -> torch.Tensor:
    """From rows at chunk places (chunks x chunk, width) to shard rows."""
    move = delta.from_owners
    returned = chain.all_to_all(topology.cp_group, rows[move.index], move.send_splits, move.recv_splits, tag=tag)
    return returned[delta.restore]


def states_to_children(
    chain: ExchangeChain, topology: Topology, handoff: Handoff, finals: torch.Tensor, *, tag: str
) -> torch.Tensor:
    """From the final states of a level's segments (segments, ...) to the initial states of the next level's."""
    move = handoff.move
    received = chain.all_to_all(topology.cp_group, finals[move.index], move.send_splits, move.recv_splits, tag=tag)
    return received[handoff.inherit]
