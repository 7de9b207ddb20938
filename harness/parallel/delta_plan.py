"""Where the gated delta net runs: whole segments on owner ranks, level by level.

Three kinds of exchange follow from the layout. The token rows of a context shard go to the owners of their segments,
and with them, for the convolution, the last rows on the way from the root to each segment: these are its parent's
final convolution state, and they reach through several ancestors where segments are shorter than the convolution. The
final recurrent states of one tree level go to the owners of their children. The output rows go back to the shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.model.config import DeltaNetShape
from harness.packing import Segment

__all__ = ["DeltaPlan", "Handoff", "LevelPlan", "RowMove", "SplitMatrix", "assign_owners", "make_delta_plan"]

SplitMatrix = tuple[tuple[int, ...], ...]
"""Rows by [sending context index][receiving context index]."""


@dataclass(frozen=True, slots=True)
class RowMove:
    """One uneven all-to-all: `index` picks the rows to send, receiver by receiver."""

    index: torch.Tensor
    send_splits: tuple[int, ...]
    recv_splits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Handoff:
    """Final states to the owners of children.

    `move` picks among the final states of a level; segment i of the next level starts from received row `inherit[i]`.
    """

    move: RowMove
    inherit: torch.Tensor


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """This rank's segments of one tree level, those with most chunks first.

    Step s advances the first `steps[s]` segments by one chunk; the chunks of all steps lie one after another from
    `first_chunk` on. `handoff` carries the final states to the next level, None at the last.
    """

    segments: tuple[int, ...]
    first_chunk: int
    steps: tuple[int, ...]
    handoff: Handoff | None


@dataclass(frozen=True, slots=True)
class DeltaPlan:
    """One rank's part of the delta net.

    `to_owners` moves rows of the context shard to the owners of their segments. `windows` (chunks, conv_width - 1 +
    chunk) says which received row stands at each place of each chunk and of the convolution's reach before it, one past
    the last row for none; `valid` (chunks, chunk) is False where a chunk is padded. `from_owners` picks chunk places,
    counted over all chunks, and moves their rows back, where `restore` puts them in the shard's order.

    The same on every rank: `owners[s]`, the context index that owns segment s, and `splits`, the matrices of all
    exchanges in order.
    """

    owners: tuple[int, ...]
    splits: tuple[SplitMatrix, ...]
    to_owners: RowMove
    windows: torch.Tensor
    valid: torch.Tensor
    levels: tuple[LevelPlan, ...]
    from_owners: RowMove
    restore: torch.Tensor


def make_delta_plan(
    segments: Sequence[Segment], shard_sizes: Sequence[int], shape: DeltaNetShape, cp_index: int, device: torch.device
) -> DeltaPlan:
    """The plan of context index `cp_index`; `segments` are those of a packed group, parents first."""
    ranks = len(shard_sizes)
    owners = assign_owners(segments, ranks)
    owned, needed = _rows_of_owners(segments, owners, shape.conv_width - 1, sum(shard_sizes), ranks)
    shard = torch.arange(ranks).repeat_interleave(torch.tensor(shard_sizes))
    in_shard = torch.stack([shard == rank for rank in range(ranks)])
    to_splits = _count(in_shard, needed)
    back_splits = _count(owned, in_shard)
    states = _states_to_send(segments, owners, ranks)

    arrived = torch.nonzero(needed[cp_index])[:, 0]  # by sending rank too: shards are consecutive stretches of the row
    row_of_token = torch.full((sum(shard_sizes),), -1)
    row_of_token[arrived] = torch.arange(len(arrived))
    levels = _levels(segments, owners, states, shape.chunk, cp_index, device)
    windows, valid, place_of_token = _chunks(segments, levels, row_of_token, shape)

    here = in_shard[cp_index]
    first = sum(shard_sizes[:cp_index])
    leaving = torch.cat([torch.nonzero(here & rows)[:, 0] for rows in needed]) - first
    returning = torch.cat([torch.nonzero(here & rows)[:, 0] for rows in owned])
    return DeltaPlan(
        owners=owners,
        splits=(to_splits, back_splits, *(_state_splits(level, ranks) for level in states)),
        to_owners=_move(leaving, to_splits, cp_index, device),
        windows=windows.to(device),
        valid=valid.to(device),
        levels=levels,
        from_owners=_move(place_of_token[owned[cp_index]], back_splits, cp_index, device),
        restore=torch.argsort(returning).to(device),
    )


def assign_owners(segments: Sequence[Segment], ranks: int) -> tuple[int, ...]:
    """The context index that runs each segment: level by level the longest first, each to the least loaded rank.

    Levels run one after another, so tokens are balanced within a level first and over all levels second.
    """
    owners = [0] * len(segments)
    total = [0] * ranks
    for level in _by_level(segments):
        load = [0] * ranks
        for segment in sorted(level, key=lambda segment: (-segment.length, segment.index)):
            owner = min(range(ranks), key=lambda rank: (load[rank], total[rank], rank))
            owners[segment.index] = owner
            load[owner] += segment.length
            total[owner] += segment.length
    return tuple(owners)


def _by_level(segments: Sequence[Segment]) -> list[list[Segment]]:
    levels: list[list[Segment]] = [[] for _ in range(max(segment.depth for segment in segments))]
    for segment in segments:
        levels[segment.depth - 1].append(segment)
    return levels


def _rows_of_owners(
    segments: Sequence[Segment], owners: Sequence[int], reach: int, tokens: int, ranks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two (ranks, tokens) masks: tokens of the segments a rank owns, and those plus the convolution's reach."""
    owned = torch.zeros((ranks, tokens), dtype=torch.bool)
    for segment in segments:
        owned[owners[segment.index], segment.start : segment.start + segment.length] = True
    needed = owned.clone()
    for segment in segments:
        needed[owners[segment.index], _tokens_before(segments, segment, reach)] = True
    return owned, needed


def _tokens_before(segments: Sequence[Segment], segment: Segment, reach: int) -> list[int]:
    """The packed indices of the last `reach` tokens before `segment` in its rows, fewer near the root."""
    before: list[int] = []
    parent = segment.parent
    while parent >= 0 and len(before) < reach:
        above = segments[parent]
        first = above.start + max(0, above.length - (reach - len(before)))
        before = [*range(first, above.start + above.length), *before]
        parent = above.parent
    return before


def _count(senders: torch.Tensor, receivers: torch.Tensor) -> SplitMatrix:
    """How many tokens are in both masks, for each pair."""
    return tuple(tuple(int((sent & wanted).sum()) for wanted in receivers) for sent in senders)


def _move(index: torch.Tensor, splits: SplitMatrix, cp_index: int, device: torch.device) -> RowMove:
    return RowMove(index.to(device), splits[cp_index], tuple(row[cp_index] for row in splits))


_StatesToSend = list[list[list[int]]]
"""Parents by [sender][receiver], ascending."""


def _states_to_send(segments: Sequence[Segment], owners: Sequence[int], ranks: int) -> list[_StatesToSend]:
    """For each level but the first, which parents' states go from whom to whom; a receiver gets a state once."""
    exchanges: list[_StatesToSend] = []
    for level in _by_level(segments)[1:]:
        wanted = sorted({(segment.parent, owners[segment.index]) for segment in level})
        sent: _StatesToSend = [[[] for _ in range(ranks)] for _ in range(ranks)]
        for parent, receiver in wanted:
            sent[owners[parent]][receiver].append(parent)
        exchanges.append(sent)
    return exchanges


def _state_splits(states: _StatesToSend, ranks: int) -> SplitMatrix:
    return tuple(tuple(len(states[i][j]) for j in range(ranks)) for i in range(ranks))


def _levels(
    segments: Sequence[Segment],
    owners: Sequence[int],
    states: Sequence[_StatesToSend],
    chunk: int,
    cp_index: int,
    device: torch.device,
) -> tuple[LevelPlan, ...]:
    mine = [
        sorted(
            (segment for segment in level if owners[segment.index] == cp_index),
            key=lambda segment: (-_chunk_count(segment, chunk), segment.index),
        )
        for level in _by_level(segments)
    ]
    levels: list[LevelPlan] = []
    first_chunk = 0
    for depth, local in enumerate(mine):
        counts = [_chunk_count(segment, chunk) for segment in local]
        steps = tuple(sum(count > step for count in counts) for step in range(max(counts, default=0)))
        handoff = None
        if depth + 1 < len(mine):
            handoff = _handoff(local, mine[depth + 1], states[depth], cp_index, device)
        levels.append(LevelPlan(tuple(segment.index for segment in local), first_chunk, steps, handoff))
        first_chunk += sum(steps)
    return tuple(levels)


def _chunk_count(segment: Segment, chunk: int) -> int:
    return -(-segment.length // chunk)


def _handoff(
    parents: Sequence[Segment], children: Sequence[Segment], states: _StatesToSend, cp_index: int, device: torch.device
) -> Handoff:
    final = {segment.index: place for place, segment in enumerate(parents)}
    index = [final[parent] for receiver in states[cp_index] for parent in receiver]
    received = [parent for sender in states for parent in sender[cp_index]]
    arrived = {parent: row for row, parent in enumerate(received)}
    inherit = [arrived[segment.parent] for segment in children]
    splits = _state_splits(states, len(states))
    move = _move(torch.tensor(index, dtype=torch.long), splits, cp_index, device)
    return Handoff(move, torch.tensor(inherit, dtype=torch.long, device=device))


def _chunks(
    segments: Sequence[Segment], levels: Sequence[LevelPlan], row_of_token: torch.Tensor, shape: DeltaNetShape
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`windows` and `valid` of `DeltaPlan`, and for each packed token of an own segment its place in the chunks."""
    reach, chunk = shape.conv_width - 1, shape.chunk
    total = sum(sum(level.steps) for level in levels)
    windows = torch.full((total, reach + chunk), -1)
    valid = torch.zeros((total, chunk), dtype=torch.bool)
    place_of_token = torch.full_like(row_of_token, -1)
    for level in levels:
        starts = [level.first_chunk + sum(level.steps[:step]) for step in range(len(level.steps))]
        for lane, index in enumerate(level.segments):
            segment = segments[index]
            count = _chunk_count(segment, chunk)
            numbers = torch.tensor(starts[:count]) + lane
            tokens = torch.arange(segment.start, segment.start + segment.length)
            before = row_of_token[_tokens_before(segments, segment, reach)]
            stretch = torch.full((reach + count * chunk,), -1)
            stretch[reach - len(before) : reach] = before
            stretch[reach : reach + segment.length] = row_of_token[tokens]
            windows[numbers] = stretch.unfold(0, reach + chunk, chunk)
            valid[numbers] = (torch.arange(count * chunk) < segment.length).view(count, chunk)
            offsets = torch.arange(segment.length)
            place_of_token[tokens] = numbers[offsets // chunk] * chunk + offsets % chunk
    rows = int(row_of_token.max()) + 1
    return torch.where(windows < 0, rows, windows), valid, place_of_token
