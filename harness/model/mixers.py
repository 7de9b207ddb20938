"""The two kinds of layer with their exchanges: local regions between the moves of context parallelism."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.model.attention import AttentionWeights
from harness.model.config import DeltaNetShape, ModelConfig
from harness.model.delta_net import Chunks, DeltaNetWeights
from harness.model.layers import accumulation_dtype
from harness.model.regions import Regions
from harness.parallel.chain import ExchangeChain
from harness.parallel.context_parallel import (
    heads_to_sequence,
    rows_from_owners,
    rows_to_owners,
    sequence_to_heads,
    states_to_children,
)
from harness.parallel.delta_plan import DeltaPlan, LevelPlan
from harness.parallel.plan import ExecutionPlan
from harness.parallel.topology import Topology

__all__ = ["ForwardPass", "mix_attention", "mix_delta_net"]


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """What all layers of one forward have in common; `cos` and `sin` are for the shard's positions."""

    config: ModelConfig
    topology: Topology
    regions: Regions
    chain: ExchangeChain
    plan: ExecutionPlan
    cos: torch.Tensor
    sin: torch.Tensor


def mix_attention(forward: ForwardPass, rows: torch.Tensor, weights: AttentionWeights, name: str) -> torch.Tensor:
    """Full attention over shard rows (n, hidden): a partial sum over tensor parallel ranks, of the same shape."""
    config, topology, plan = forward.config, forward.topology, forward.plan
    head_dim = config.attention.head_dim
    blocks, gate = forward.regions.attention_project(
        rows, weights, forward.cos, forward.sin, topology.cp, head_dim, config.lora_scale, config.norm_eps
    )
    packed = sequence_to_heads(forward.chain, topology, plan, blocks, tag=f"{name}.to_heads")
    kv_heads = config.attention.kv_heads // (topology.tp * topology.cp)
    mixed = forward.regions.attend(packed, plan.mask, kv_heads, head_dim)
    back = heads_to_sequence(forward.chain, topology, plan, mixed, tag=f"{name}.to_sequence")
    output: torch.Tensor = forward.regions.attention_output(back, gate, weights.out, config.lora_scale)
    return output


def mix_delta_net(forward: ForwardPass, rows: torch.Tensor, weights: DeltaNetWeights, name: str) -> torch.Tensor:
    """Gated delta net over shard rows (n, hidden): a partial sum over tensor parallel ranks, of the same shape."""
    config, topology, chain = forward.config, forward.topology, forward.chain
    shape, delta = config.delta_net, forward.plan.delta
    if shape is None or delta is None:
        raise ValueError(f"{name}: the plan was made for a model class without delta net layers")
    travelling, z = forward.regions.delta_project(rows, weights, config.lora_scale)
    received = rows_to_owners(chain, topology, delta, travelling, tag=f"{name}.to_owners")
    outputs = _run_segments(forward, delta, received, weights, shape, name).to(rows.dtype)
    back = rows_from_owners(chain, topology, delta, outputs, tag=f"{name}.from_owners")
    output: torch.Tensor = forward.regions.delta_output(
        back, z, weights.norm, weights.out, config.lora_scale, config.norm_eps
    )
    return output


def _run_segments(
    forward: ForwardPass,
    delta: DeltaPlan,
    received: torch.Tensor,
    weights: DeltaNetWeights,
    shape: DeltaNetShape,
    name: str,
) -> torch.Tensor:
    """Outputs (chunks x chunk, values) of this rank's segments; every level's hand-off, also with no segment here."""
    heads = weights.rate.shape[0]
    chunks = None
    if len(delta.windows):
        chunks = forward.regions.window_chunks(
            received,
            delta.windows,
            delta.valid,
            weights.conv,
            weights.rate,
            weights.rate_bias,
            shape.key_dim,
            shape.value_dim,
        )
    outputs: list[torch.Tensor] = []
    dtype = accumulation_dtype(received.dtype)
    state = received.new_zeros((len(delta.levels[0].segments), heads, shape.key_dim, shape.value_dim), dtype=dtype)
    for depth, level in enumerate(delta.levels):
        finals = state if chunks is None else _run_level(forward, level, chunks, state, outputs)
        if level.handoff is not None:
            tag = f"{name}.states.{depth + 1}"
            state = states_to_children(forward.chain, forward.topology, level.handoff, finals, tag=tag)
    if not outputs:
        return received.new_zeros((0, heads * shape.value_dim))
    return torch.cat(outputs).transpose(1, 2).flatten(0, 1).flatten(1)


def _run_level(
    forward: ForwardPass, level: LevelPlan, chunks: Chunks, state: torch.Tensor, outputs: list[torch.Tensor]
) -> torch.Tensor:
    """Final states of the level's segments; their outputs are added to `outputs`, chunk by chunk."""
    finished: list[torch.Tensor] = []
    first = level.first_chunk
    for active in level.steps:
        finished.append(state[active:])
        part = Chunks(*(values[first : first + active] for values in chunks))
        state, output = forward.regions.chunk_step(state[:active], part)
        outputs.append(output)
        first += active
    return torch.cat([state, *reversed(finished)])
