"""The terms of the cost model: integer functions of a layout's features and a cell's facts (DESIGN section 12).

>>> facts = Facts(tp=1, cp=4, layers=32, gdn_layers=24)
>>> features = Features(packed_tokens=1000, segment_count=3, max_depth=2, segments_below=(0, 0, 1, 2, 3, 3, 3, 3))
>>> dict(zip(TERMS, cost_terms(features, facts)))["tiny_segment_per_layer"]  # shorter than 512: two, in 32 layers
65536
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SCALE", "SEGMENT_BOUNDS", "TERMS", "Facts", "Features", "cost_terms"]

SCALE = 1024
"""An integer term is this many times its value in feature units."""

SEGMENT_BOUNDS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""`Features.segments_below[i]` counts the segments shorter than `SEGMENT_BOUNDS[i]` tokens."""

TERMS = (
    "token_per_rank",
    "token_cp_exchange",
    "token_tp_collective",
    "gdn_token_per_rank",
    "attention_token_cp_exchange",
    "tiny_segment_per_layer",
    "level_cp_per_layer",
    "level_tp_per_layer",
    "gdn_level",
    "gdn_level_tp",
)
"""The terms in the order of the fit. A table and every sum over terms follow it."""

_TINY_SEGMENT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Facts:
    """What the terms need to know of a cell: the parallel shape, decoder layers, and how many are gated delta net."""

    tp: int
    cp: int
    layers: int
    gdn_layers: int


@dataclass(frozen=True, slots=True)
class Features:
    """What the terms need to know of a layout. `max_depth` counts the tail level, so it is 1 without sharing."""

    packed_tokens: int
    segment_count: int
    max_depth: int
    segments_below: tuple[int, ...]


def cost_terms(features: Features, facts: Facts) -> tuple[int, ...]:
    """The terms of a layout times `SCALE`, in the order of `TERMS`: products first, then one floor division."""
    tp, cp, layers, gdn = facts.tp, facts.cp, facts.layers, facts.gdn_layers
    packed = features.packed_tokens * SCALE
    levels = (features.max_depth - 1) * SCALE
    return (
        packed * layers // (tp * cp),
        packed * layers * (cp - 1) // cp,
        packed * layers * (tp - 1) // tp,
        packed * gdn // (tp * cp),
        packed * (layers - gdn) * (cp - 1) // cp,
        _below(features, _TINY_SEGMENT_TOKENS * cp) * layers * SCALE,
        levels * layers * (cp - 1),
        levels * layers * (tp - 1),
        levels * gdn,
        levels * gdn * (tp - 1),
    )


def _below(features: Features, length: int) -> int:
    """Segments shorter than the smallest bound that is at least `length`; beyond the last bound, than the last."""
    for bound, count in zip(SEGMENT_BOUNDS, features.segments_below, strict=True):
        if bound >= length:
            return count
    return features.segments_below[-1]
