"""A rank that does the same as the others, some records later or earlier, is not a wall of mismatches: it lags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orchestrate.analysis.trace.channel import Channel
from orchestrate.analysis.trace.findings import Finding, Lag

__all__ = ["find_lag", "is_swapped"]

_MOST_SHIFT = 128
_LEAST_MATCHED = 2


def find_lag(channel: Channel, finding: Finding) -> Lag | None:
    """The smallest shift of the odd ranks with which all that was kept after the disagreement fits together.

    At least two records must fit, and without a shift the rest must not.
    """
    if _fits_from(channel, finding, (), 0, 1) >= _LEAST_MATCHED:
        return None
    members = [rank for rank in channel.members if len(finding.tails.get(rank, ()))]
    if len(members) < len(channel.members) or len(members) < 2:
        return None
    candidates: Sequence[tuple[int, ...]] = (
        [finding.odd] if finding.odd else [(rank,) for rank in (members[1:] if len(members) == 2 else members)]
    )
    for shift in range(1, _MOST_SHIFT + 1):
        for ranks in candidates:
            for behind in (True, False):
                matched = _fits_from(channel, finding, ranks, shift if behind else -shift, 0)
                if matched >= _LEAST_MATCHED:
                    return Lag(tuple(ranks), shift, behind, matched)
    return None


def is_swapped(channel: Channel, finding: Finding) -> bool:
    """Whether the odd ranks issue the same next two collectives as the others, in the opposite order."""
    if not finding.odd or any(len(finding.tails.get(rank, ())) < 2 for rank in channel.members):
        return False
    for first, second in ((0, 1), (1, 0)):
        records = {rank: finding.tails[rank][first if rank in finding.odd else second] for rank in channel.members}
        if not channel.fits(records):
            return False
    return True


def _fits_from(channel: Channel, finding: Finding, ranks: Sequence[int], shift: int, begin: int) -> int:
    """How many records fit when those of `ranks` are taken `shift` later; 0 unless all that can be compared do."""
    places = {rank: max(shift, 0) if rank in ranks else max(-shift, 0) for rank in channel.members}
    count = min(len(finding.tails[rank]) - places[rank] for rank in channel.members if rank in finding.tails)
    for step in range(begin, count):
        records: dict[int, np.void] = {rank: finding.tails[rank][places[rank] + step] for rank in channel.members}
        if not channel.fits(records):
            return 0
    return max(count - begin, 0)
