"""Seeded, frozen weights, and the LoRA slots on them.

Each weight is drawn whole from a generator of its own, seeded by the model's seed and the weight's name, and then cut
to this rank's shard: so the weights are the same for every parallel shape. The draw happens on the target device, and
devices draw differently.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import NamedTuple

import torch

from harness.parallel.topology import Topology

__all__ = ["LoraFactor", "Projection", "Split", "WeightSource", "project"]


class Split(Enum):
    """Which side of a projection tensor parallelism cuts."""

    OUTPUT = "output"
    INPUT = "input"


class Projection(NamedTuple):
    """A linear layer with its LoRA slot: `weight` (out, in), `lora_a` (rank, in), `lora_b` (out, rank)."""

    weight: torch.Tensor
    lora_a: torch.Tensor
    lora_b: torch.Tensor


class LoraFactor(NamedTuple):
    """One trained tensor; `shard_dim` is the dimension that tensor parallelism cuts, None where ranks hold it whole."""

    parameter: torch.Tensor
    shard_dim: int | None


def project(rows: torch.Tensor, projection: Projection, scale: float) -> torch.Tensor:
    """Rows x (n, in) to x W^T + scale (x A^T) B^T."""
    linear = torch.nn.functional.linear
    low = linear(linear(rows, projection.lora_a), projection.lora_b)
    return linear(rows, projection.weight) + scale * low


class WeightSource:
    """Draws one model's weights; `lora` collects the trained ones by name, in the order of drawing."""

    def __init__(self, topology: Topology, *, seed: int, dtype: torch.dtype, lora_rank: int) -> None:
        self.lora: dict[str, LoraFactor] = {}
        self._topology = topology
        self._seed = seed
        self._dtype = dtype
        self._lora_rank = lora_rank

    def normal(
        self, name: str, *shape: int, std: float, mean: float = 0.0, shard_dim: int | None = None
    ) -> torch.Tensor:
        """A frozen tensor of independent normals, this rank's shard of it along `shard_dim`."""
        drawn = torch.randn(shape, generator=self._generator(name), device=self._topology.device) * std + mean
        return self._shard(drawn, shard_dim)

    def log_uniform(self, name: str, size: int, low: float, high: float) -> torch.Tensor:
        """A frozen (size,) tensor whose logarithm is uniform between those of `low` and `high`, cut along it."""
        bounds = torch.tensor([low, high]).log()
        drawn = torch.rand(size, generator=self._generator(name), device=self._topology.device)
        return self._shard((bounds[0] + (bounds[1] - bounds[0]) * drawn).exp(), 0)

    def projection(self, name: str, inputs: int, outputs: int, split: Split) -> Projection:
        """A projection with a LoRA slot whose factors are both non-zero: with a zero factor the other's gradient is."""
        output = split is Split.OUTPUT
        a_dim, b_dim = (None, 0) if output else (1, None)
        rank = self._lora_rank
        weight = self.normal(f"{name}.weight", outputs, inputs, std=inputs**-0.5, shard_dim=0 if output else 1)
        lora_a = self.normal(f"{name}.lora_a", rank, inputs, std=inputs**-0.5, shard_dim=a_dim)
        lora_b = self.normal(f"{name}.lora_b", outputs, rank, std=0.2 * rank**-0.5, shard_dim=b_dim)
        self.lora[f"{name}.lora_a"] = LoraFactor(lora_a.requires_grad_(), a_dim)
        self.lora[f"{name}.lora_b"] = LoraFactor(lora_b.requires_grad_(), b_dim)
        return Projection(weight, lora_a, lora_b)

    def _generator(self, name: str) -> torch.Generator:
        seed = int.from_bytes(hashlib.sha256(f"{self._seed}:{name}".encode()).digest()[:7], "big")
        return torch.Generator(self._topology.device).manual_seed(seed)

    def _shard(self, drawn: torch.Tensor, shard_dim: int | None) -> torch.Tensor:
        if shard_dim is not None:
            drawn = drawn.chunk(self._topology.tp, dim=shard_dim)[self._topology.tp_group.index]
        return drawn.to(self._dtype).clone(memory_format=torch.contiguous_format)
