"""Tensor parallelism with sequence-parallel padding.

Between the layers' parts each rank of a tensor parallel group holds a slice of its context shard's rows, padded so
that all slices are equally long; the padding is dropped before any row meets a head or another row.
"""

from __future__ import annotations

import torch

from harness.parallel.chain import ExchangeChain
from harness.parallel.topology import Topology

__all__ = ["gather_rows", "padded_rows", "scatter_sum"]


def padded_rows(rows: int, tp: int) -> int:
    """`rows` rounded up to a multiple of `tp`."""
    return -(-rows // tp) * tp


def gather_rows(chain: ExchangeChain, topology: Topology, rows: torch.Tensor, count: int, *, tag: str) -> torch.Tensor:
    """The slices (padded / tp, hidden) of a context shard together, as its (count, hidden) rows without padding."""
    return chain.all_gather(topology.tp_group, rows, tag=tag)[:count]


def scatter_sum(chain: ExchangeChain, topology: Topology, rows: torch.Tensor, *, tag: str) -> torch.Tensor:
    """Partial sums (count, hidden) over the tensor parallel ranks to this rank's summed (padded / tp, hidden) slice."""
    missing = padded_rows(rows.shape[0], topology.tp) - rows.shape[0]
    if missing:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, missing))
    return chain.reduce_scatter(topology.tp_group, rows, tag=tag)
