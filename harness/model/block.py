"""The decoder: layers of local regions with the exchanges between them, down to this rank's share of the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint

from harness.model.attention import AttentionWeights, draw_attention
from harness.model.config import ModelConfig
from harness.model.delta_net import DeltaNetWeights, draw_delta_net
from harness.model.layers import SwiGluWeights, accumulation_dtype, draw_swiglu, rotary_angles
from harness.model.mixers import ForwardPass, mix_attention, mix_delta_net
from harness.model.regions import compile_regions
from harness.model.weights import LoraFactor, WeightSource
from harness.parallel import collectives
from harness.parallel.chain import ExchangeChain
from harness.parallel.plan import ExecutionPlan
from harness.parallel.tensor_parallel import gather_rows, scatter_sum
from harness.parallel.topology import Topology

__all__ = ["Decoded", "HybridModel", "LayerWeights", "sync_gradients"]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; its kind is the type of `mixer`."""

    norm: torch.Tensor
    mixer: AttentionWeights | DeltaNetWeights
    ffn_norm: torch.Tensor
    ffn: SwiGluWeights


@dataclass(frozen=True, slots=True)
class Decoded:
    """A forward's results on one rank.

    `loss` is this context shard's share, the same on the tensor parallel ranks that hold it. `log_probs` are those of
    this rank's own terms, in the order of `ExecutionPlan.terms` and without weights.
    """

    loss: torch.Tensor
    log_probs: torch.Tensor


class HybridModel:
    """A decoder with frozen random weights and trained LoRA factors.

    The loss is minus the sum, over the packed group's terms, of weight x log-probability of the target: the same for
    every layout and parallel shape, up to rounding. All ranks of `topology` build the model with the same arguments.
    `compile_backend` is a backend of torch.compile for the local regions, None for none.

    Raises:
        InputError: tp x cp does not divide a head count of the model.
    """

    def __init__(
        self,
        config: ModelConfig,
        topology: Topology,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str | None = None,
        seed: int = 0,
        compile_backend: str | None = None,
    ) -> None:
        config.refuse_uneven_heads(topology.tp, topology.cp)
        if device is not None and torch.device(device) != topology.device:
            raise ValueError(f"the model is asked for on {device}, its topology is on {topology.device}")
        self.config = config
        self.topology = topology
        self._regions = compile_regions(compile_backend, topology.device)
        source = WeightSource(topology, seed=seed, dtype=dtype, lora_rank=config.lora_rank)
        self.embedding = source.normal("embedding", config.vocab, config.hidden, std=config.hidden**-0.5)
        self.layers = tuple(_draw_layer(source, config, layer) for layer in range(config.layers))
        self.norm = source.normal("norm", config.hidden, mean=1.0, std=0.1)
        self._lora = source.lora

    def __call__(self, plan: ExecutionPlan) -> torch.Tensor:
        """This context shard's share of the loss, 0-dimensional; the sum over context parallel ranks is the loss.

        Every rank must hold a plan of the same digest (`compare_digests`), and call `loss.backward()` if any does.
        """
        return self.decode(plan).loss

    def decode(self, plan: ExecutionPlan) -> Decoded:
        """The same forward, with the log-probabilities beside the loss."""
        chain = ExchangeChain(self.topology)
        # A leaf that wants a gradient: then every later row does, on every rank, and regions meet one kind of input.
        rows = self.embedding[plan.tokens].requires_grad_()
        angles = rotary_angles(plan.positions, self.config.attention, rows.dtype)
        forward = ForwardPass(self.config, self.topology, self._regions, chain, plan, *angles)
        for index, layer in enumerate(self.layers):
            rows = self._layer(forward, rows, layer, f"layers.{index}")
        log_probs = self._term_log_probs(plan, self._regions.rms_norm(rows, self.norm, self.config.norm_eps))
        share = -(plan.terms.weight.to(log_probs.dtype) * log_probs).sum()
        loss = chain.close(chain.sum_loss(self.topology.tp_group, share, tag="loss"))
        return Decoded(loss, log_probs)

    def lora_parameters(self) -> dict[str, torch.Tensor]:
        """The trained tensors by name, this rank's shards of them; the names are the same on every rank."""
        return {name: factor.parameter for name, factor in self._lora.items()}

    def lora_factors(self) -> dict[str, LoraFactor]:
        """The trained tensors by name, with the dimension that tensor parallelism cuts."""
        return dict(self._lora)

    def _layer(self, forward: ForwardPass, rows: torch.Tensor, layer: LayerWeights, name: str) -> torch.Tensor:
        """One layer on this rank's slice of its shard's rows (padded / tp, hidden)."""
        normed = self._normed(forward, rows, layer.norm, f"{name}.mixer")
        match layer.mixer:
            case AttentionWeights():
                mixed = mix_attention(forward, normed, layer.mixer, f"{name}.attention")
            case DeltaNetWeights():
                mixed = mix_delta_net(forward, normed, layer.mixer, f"{name}.delta")
        rows = rows + scatter_sum(forward.chain, self.topology, mixed, tag=f"{name}.mixer.scatter")
        normed = self._normed(forward, rows, layer.ffn_norm, f"{name}.ffn")
        fed = self._regions.swiglu(normed, layer.ffn, self.config.lora_scale)
        return rows + scatter_sum(forward.chain, self.topology, fed, tag=f"{name}.ffn.scatter")

    def _normed(self, forward: ForwardPass, rows: torch.Tensor, norm: torch.Tensor, name: str) -> torch.Tensor:
        """The normed rows of the whole context shard."""
        normed = self._regions.rms_norm(rows, norm, self.config.norm_eps)
        count = forward.plan.shard_sizes[self.topology.cp_group.index]
        return gather_rows(forward.chain, self.topology, normed, count, tag=f"{name}.gather")

    def _term_log_probs(self, plan: ExecutionPlan, rows: torch.Tensor) -> torch.Tensor:
        """Block by block; where there are several, a block's logits are computed again for its backward."""
        terms, parts = plan.terms, []
        for block in terms.blocks:
            span = slice(block.first, block.last)
            part = (rows[block.row : block.end], self.embedding, terms.row[span] - block.row, terms.target[span])
            if len(terms.blocks) == 1:
                parts.append(self._regions.term_log_probs(*part))
            else:
                parts.append(checkpoint(self._regions.term_log_probs, *part, use_reentrant=False))
        return torch.cat(parts) if parts else rows.new_zeros(0, dtype=accumulation_dtype(rows.dtype))


def sync_gradients(model: HybridModel, topology: Topology) -> None:
    """Sum the LoRA gradients over the ranks that hold parts of them, in at most two collectives.

    After `loss.backward()` on every rank: a factor that tensor parallelism cuts is summed over context parallel ranks,
    one that ranks hold whole over the world. A parameter without gradient counts as zero.
    """
    factors = [factor for _, factor in sorted(model.lora_factors().items())]
    for cut, group in ((False, topology.world), (True, topology.cp_group)):
        parameters = [factor.parameter for factor in factors if (factor.shard_dim is not None) is cut]
        if group.handle is None:
            continue
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        total = collectives.all_reduce(topology, group, flat, tag=f"gradients.{'cut' if cut else 'whole'}")
        for parameter, part in zip(parameters, total.split_with_sizes([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)


def _draw_layer(source: WeightSource, config: ModelConfig, layer: int) -> LayerWeights:
    name = f"layers.{layer}"
    norm = source.normal(f"{name}.norm", config.hidden, mean=1.0, std=0.1)
    ffn_norm = source.normal(f"{name}.ffn_norm", config.hidden, mean=1.0, std=0.1)
    ffn = draw_swiglu(source, f"{name}.ffn", config)
    if config.delta_net is None or config.is_attention(layer):
        return LayerWeights(norm, draw_attention(source, f"{name}.attention", config), ffn_norm, ffn)
    return LayerWeights(norm, draw_delta_net(source, f"{name}.delta", config, config.delta_net), ffn_norm, ffn)
