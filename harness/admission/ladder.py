"""The bounded set of plans that a search looks at: widths of a wave, parts of a split, who gets what.

All pure functions of counts, so that every rank climbs the same ladder without asking.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["balanced_parts", "part_counts", "share", "wave_widths"]


def wave_widths(remaining: int, shards: int) -> tuple[int, ...]:
    """The widths tried for the next wave of `remaining` inputs over `shards` ranks' shares, smallest first.

    The smallest gives each share one input. The widths are that times 1, 2, 3, 4, 6, 8, 12, 16, ...: never more than
    twice the one before, about 2 log2(n) in all; the last is `remaining` itself.

    >>> wave_widths(21, 2)
    (2, 4, 6, 8, 12, 16, 21)
    """
    widths: list[int] = []
    step = 1
    while step * shards < remaining:
        widths.append(step * shards)
        if step > 1 and step * 3 // 2 * shards < remaining:
            widths.append(step * 3 // 2 * shards)
        step *= 2
    return (*widths, remaining)


def part_counts(inputs: int) -> tuple[int, ...]:
    """The numbers of parts an internal split of `inputs` may have: 2, 4, 8, ... and at last one input each.

    >>> part_counts(6)
    (2, 4, 6)
    """
    counts: list[int] = []
    parts = 2
    while parts < inputs:
        counts.append(parts)
        parts *= 2
    return (*counts, inputs) if inputs > 1 else ()


def share(start: int, width: int, shard: int, shards: int) -> range:
    """The indices that `shard` gets of the wave of `width` inputs from `start`; wider waves only add to it.

    >>> [list(share(4, 5, shard, 2)) for shard in range(2)]
    [[4, 6, 8], [5, 7]]
    """
    return range(start + shard, start + width, shards)


def balanced_parts(weights: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """Cut `range(len(weights))` into `parts` consecutive runs of about equal weight.

    Every index is in exactly one run and the order is kept. With fewer indices than `parts` the last runs are empty;
    otherwise none is. A run ends where the weight so far is nearest to its even share.

    >>> balanced_parts([5, 1, 1, 1, 4], 3)
    ((0,), (1, 2, 3), (4,))
    """
    filled = min(parts, len(weights))
    total = sum(weights)
    runs: list[tuple[int, ...]] = []
    first = 0
    before = 0
    for part in range(filled):
        end, weight = first + 1, before + weights[first]
        last = len(weights) - (filled - part - 1)
        goal = total * (part + 1)
        while end < last and (part == filled - 1 or goal - weight * filled > (weight + weights[end]) * filled - goal):
            weight += weights[end]
            end += 1
        runs.append(tuple(range(first, end)))
        first, before = end, weight
    return (*runs, *((),) * (parts - filled))
