"""The local parts of the model, compiled. None holds a collective: a rank may compile what its peers need not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from harness.model import attention, delta_net, layers

__all__ = ["Regions", "compile_regions"]

_Region = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Regions:
    """One callable for each local part, shared by all layers so that equal shapes compile once."""

    rms_norm: _Region
    attention_project: _Region
    attend: _Region
    attention_output: _Region
    delta_project: _Region
    window_chunks: _Region
    chunk_step: _Region
    delta_output: _Region
    swiglu: _Region
    term_log_probs: _Region


def compile_regions(backend: str | None, device: torch.device) -> Regions:
    """The regions under torch.compile with `backend`, or as they are where it is None.

    A shape is compiled as it comes first; from the second on its dimension is dynamic. Flex attention forms the whole
    score matrix unless it is compiled, so on a GPU it always is. The delta rule's chunks and the attention's
    projections are most of the compile time; on a CPU, whose backend gains nothing by it, they stay as they are.
    """

    def compiled(function: _Region) -> _Region:
        return function if backend is None else torch.compile(function, backend=backend)

    def compiled_on_gpu(function: _Region) -> _Region:
        return function if device.type == "cpu" else compiled(function)

    attend = compiled(attention.attend)
    if backend is None and device.type != "cpu":
        attend = torch.compile(attention.attend)
    return Regions(
        rms_norm=compiled(layers.rms_norm),
        attention_project=compiled_on_gpu(attention.attention_project),
        attend=attend,
        attention_output=compiled(attention.attention_output),
        delta_project=compiled(delta_net.delta_project),
        window_chunks=compiled_on_gpu(delta_net.window_chunks),
        chunk_step=compiled_on_gpu(delta_net.chunk_step),
        delta_output=compiled(delta_net.delta_output),
        swiglu=compiled(layers.swiglu),
        term_log_probs=compiled(layers.term_log_probs),
    )
