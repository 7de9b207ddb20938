"""One rank's plan of a forward: its shard of the packed row, its segments, its loss terms, all split sizes.

Everything here follows from the packed group, the model and the parallel shape alone, so that ranks which hold the
same three agree without asking; `compare_digests` asks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch.nn.attention.flex_attention import BlockMask

from harness.model.config import ModelConfig
from harness.packing import LossTerm, PackedGroup
from harness.parallel import collectives
from harness.parallel.delta_plan import DeltaPlan, make_delta_plan
from harness.parallel.tensor_parallel import padded_rows
from harness.parallel.topology import Topology
from harness.parallel.visibility import block_mask, dense_mask, make_visibility

__all__ = ["ExecutionPlan", "PlanMismatch", "TermBlock", "TermShard", "compare_digests", "make_plan"]


class PlanMismatch(RuntimeError):  # noqa: N818 - the name the design gives it
    """Ranks hold different plans for one forward; `ranks` are the global ranks to look at."""

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


@dataclass(frozen=True, slots=True)
class TermBlock:
    """Terms `first:last` of a `TermShard` belong to local rows `row:end`."""

    row: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TermShard:
    """The loss terms at this rank's rows, by row.

    Four vectors: `index` in `PackedGroup.terms`, local `row`, `target` token and `weight` (float64). `blocks` cut rows
    and terms into pieces whose logits fit beside the model.
    """

    index: torch.Tensor
    row: torch.Tensor
    target: torch.Tensor
    weight: torch.Tensor
    blocks: tuple[TermBlock, ...]


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """What one rank does in one forward.

    `shard_sizes` are the context shards' rows, without padding; `tokens` are the token ids of this rank's slice of its
    shard (padded / tp), `positions` the row positions of its whole shard. `mask` is dense on a CPU and a block mask
    elsewhere. `digest` is the same on every rank.
    """

    label: str
    digest: str
    packed_tokens: int
    shard_sizes: tuple[int, ...]
    tokens: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor | BlockMask
    terms: TermShard
    delta: DeltaPlan | None


def make_plan(packed: PackedGroup, config: ModelConfig, topology: Topology) -> ExecutionPlan:
    """Plan `packed` for this rank.

    Raises:
        InputError: tp x cp does not divide a head count of the model.
    """
    config.refuse_uneven_heads(topology.tp, topology.cp)
    device = topology.device
    total, cp_index = len(packed.tokens), topology.cp_group.index
    shard_sizes = _shard_sizes(total, topology.cp)
    first = sum(shard_sizes[:cp_index])
    rows = shard_sizes[cp_index]
    visibility = make_visibility(packed.segments, device)
    mask = dense_mask(visibility) if device.type == "cpu" else block_mask(visibility, packed.segments)
    delta = None
    if config.delta_net is not None:
        delta = make_delta_plan(packed.segments, shard_sizes, config.delta_net, cp_index, device)
    slice_rows = padded_rows(rows, topology.tp) // topology.tp
    begin = first + topology.tp_group.index * slice_rows
    end = min(begin + slice_rows, first + rows)
    return ExecutionPlan(
        label=packed.label,
        digest=_digest(packed, config, topology, shard_sizes, delta),
        packed_tokens=total,
        shard_sizes=shard_sizes,
        tokens=_padded(packed.tokens[begin:end], slice_rows).to(device),
        positions=visibility.position[first : first + rows],
        mask=mask,
        terms=_term_shard(packed.terms, begin, end, device),
        delta=delta,
    )


def compare_digests(plan: ExecutionPlan, topology: Topology) -> None:
    """Compare the plan's digest over the world, before a forward; every rank calls it.

    Raises:
        PlanMismatch: on every rank, when two ranks hold different plans.
    """
    mine = torch.frombuffer(bytearray.fromhex(plan.digest), dtype=torch.uint8)[None]
    gathered = collectives.all_gather(topology, topology.world, mine.to(topology.device), tag="plan.digest")
    digests = [bytes(row).hex() for row in gathered.tolist()]
    ranks = collectives.odd_ones(digests)
    if ranks:
        told = f"{plan.label} ({plan.digest[:12]})"
        names = collectives.all_gather_object(topology, topology.world, told, tag="plan.names")
        each = "; ".join(f"rank {rank} plans {name}" for rank, name in enumerate(names))
        named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        raise PlanMismatch(f"ranks plan different forwards (look at {named}): {each}", ranks)


def _shard_sizes(total: int, cp: int) -> tuple[int, ...]:
    """`total` rows over `cp` shards, consecutive and as even as can be."""
    return tuple(total // cp + (index < total % cp) for index in range(cp))


def _padded(tokens: Sequence[int], rows: int) -> torch.Tensor:
    """Padding is token 0: no row meets it and no term asks for it."""
    return torch.tensor([*tokens, *[0] * (rows - len(tokens))], dtype=torch.long)


_LOGIT_ROWS = 1024
"""Rows whose logits are held at once: 1024 x 248,320 in float32 are about 1 GB."""


def _term_shard(terms: Sequence[LossTerm], begin: int, end: int, device: torch.device) -> TermShard:
    here = [(term.packed_index - begin, index) for index, term in enumerate(terms) if begin <= term.packed_index < end]
    here.sort()
    rows = torch.tensor([row for row, _ in here], dtype=torch.long)
    edges = [*range(0, max(end - begin, 0), _LOGIT_ROWS), max(end - begin, 0)]
    cuts = torch.searchsorted(rows, torch.tensor(edges)).tolist()
    blocks = [
        TermBlock(edges[piece], edges[piece + 1], cuts[piece], cuts[piece + 1])
        for piece in range(len(edges) - 1)
        if cuts[piece] < cuts[piece + 1]
    ]
    return TermShard(
        index=torch.tensor([index for _, index in here], dtype=torch.long),
        row=rows.to(device),
        target=torch.tensor([terms[index].target for _, index in here], dtype=torch.long, device=device),
        weight=torch.tensor([terms[index].weight for _, index in here], dtype=torch.float64, device=device),
        blocks=tuple(blocks),
    )


def _digest(
    packed: PackedGroup,
    config: ModelConfig,
    topology: Topology,
    shard_sizes: Sequence[int],
    delta: DeltaPlan | None,
) -> str:
    facts = {
        "packed": packed.digest,
        "model": asdict(config),
        "tp": topology.tp,
        "cp": topology.cp,
        "shards": list(shard_sizes),
        "owners": [] if delta is None else list(delta.owners),
        "splits": [] if delta is None else delta.splits,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
