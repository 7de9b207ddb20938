"""When a candidate is warm: a pure function of what every rank compiled in each warm-up run.

The decision is taken from the world-wide union and never from one rank's own view. A rank that decides alone moves on
to the next layout while a peer whose local shape recompiled still warms up the last one, and from then on the two
issue different collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

__all__ = ["MAXIMUM_WARMUPS", "MINIMUM_WARMUPS", "CompileStatus", "Decision", "decide", "worst"]

MINIMUM_WARMUPS = 2
MAXIMUM_WARMUPS = 8


class CompileStatus(StrEnum):
    """What one rank compiled in one forward and backward, mildest first."""

    NONE = "none"
    """Nothing was compiled: the only status of a run whose time counts."""

    COMPILE = "compile"
    """A frame was compiled for the first time, or a backward graph or kernel was built."""

    RECOMPILE = "recompile"
    """A frame that was compiled before was compiled again for other shapes or state."""

    UNKNOWN = "unknown"
    """The telemetry is missing or contradicts itself."""

    LIMIT = "limit"
    """A frame hit dynamo's recompile limit: from now on it runs eagerly and compiles nothing, which looks like warm."""


class Decision(StrEnum):
    """What follows from the warm-ups of a candidate so far."""

    AGAIN = "again"
    SETTLED = "settled"
    UNSETTLED = "unsettled"
    LIMIT = "limit"


def worst(statuses: Iterable[CompileStatus]) -> CompileStatus:
    """The worst of `statuses`, `unknown` of none at all: silence proves nothing."""
    order = list(CompileStatus)
    return max(statuses, key=order.index, default=CompileStatus.UNKNOWN)


def decide(
    runs: Sequence[Sequence[CompileStatus]], *, minimum: int = MINIMUM_WARMUPS, maximum: int = MAXIMUM_WARMUPS
) -> Decision:
    """What to do after `runs`, one tuple of per-rank statuses for each warm-up of a candidate, oldest first.

    A candidate is settled by a run in which no rank compiled anything, from the `minimum`th run on; it is unsettled
    when `maximum` runs were not enough. The recompile limit on any rank at any time ends it. DESIGN section 10.

    >>> decide([("compile", "none"), ("none", "none")])
    <Decision.SETTLED: 'settled'>
    """
    unions = [worst(CompileStatus(status) for status in run) for run in runs]
    if CompileStatus.LIMIT in unions:
        return Decision.LIMIT
    if len(unions) >= minimum and unions[-1] is CompileStatus.NONE:
        return Decision.SETTLED
    return Decision.UNSETTLED if len(unions) >= maximum else Decision.AGAIN
