"""Two ranks that use several groups must use them in the same order, or each may wait in one for the other."""

from __future__ import annotations

import numpy as np

from orchestrate.analysis.trace.crossings import Crossing
from orchestrate.analysis.trace.model import RECORD, Block, Ended, RankTrace, State

__all__ = ["OrderWatch"]

_STUCK = {State.PENDING, State.WAITING, State.RAISED}


class OrderWatch:
    """The records of `first` and `second` in the groups that both are in, in the order each issued them.

    `window` bounds how many records of one rank may wait for those of the other.
    """

    def __init__(self, first: RankTrace, second: RankTrace, window: int) -> None:
        self._traces = (first, second)
        self._window = window
        self._queues: list[Block] = [np.zeros(0, RECORD), np.zeros(0, RECORD)]
        self._at: list[np.void] = []
        self._sought: list[Block | None] = [None, None]  # what the other rank is at, to be found later in this stream
        self._later: list[np.void | None] = [None, None]
        self._last: list[np.void | None] = [None, None]
        self._over = False

    def add(self, side: int, records: Block) -> None:
        """Take the next records of one of the two (`side` 0 or 1), those of shared groups alone."""
        if not len(records):
            return
        self._last[side] = records[-1].copy()
        sought = self._sought[side]
        if sought is not None:
            self._seek(side, records)
        elif not self._over:
            self._queues[side] = np.concatenate([self._queues[side], records])
            self._compare()

    def _compare(self) -> None:
        count = min(map(len, self._queues))
        first, second = (queue[:count] for queue in self._queues)
        apart = first["group"] != second["group"]
        # Within a group, other sequence numbers are that group's own business.
        apart_within = ~apart & (first["key"] != second["key"])
        if not apart.any() and not apart_within.any():
            self._queues = [queue[count:] for queue in self._queues]
            self._over = max(map(len, self._queues)) > 8 * self._window
            return
        place = int(np.argmax(apart | apart_within))
        if apart_within[place]:
            self._over = True
            self._queues = [np.zeros(0, RECORD), np.zeros(0, RECORD)]
            return
        queues = [queue[place:] for queue in self._queues]
        self._sought = [queues[1][:1].copy(), queues[0][:1].copy()]
        self._at = [queues[0][0].copy(), queues[1][0].copy()]
        self._queues = [np.zeros(0, RECORD), np.zeros(0, RECORD)]
        for side in (0, 1):
            self._seek(side, queues[side])

    def _seek(self, side: int, records: Block) -> None:
        sought = self._sought[side]
        if sought is None or self._later[side] is not None:
            return
        here = np.flatnonzero((records["group"] == sought["group"][0]) & (records["key"] == sought["key"][0]))
        if len(here):
            self._later[side] = records[here[0]].copy()

    def crossing(self) -> Crossing | None:
        """Where the orders part, if they do: each rank is at the other's record later, or stuck in its own."""
        if self._sought[0] is None:
            return None
        first, second = self._at
        if self._concurrent(0, first) or self._concurrent(1, second):
            met = [*self._at, *(record for record in self._later if record is not None)]
            if not any(int(record["state"]) in _STUCK for record in met):
                return None  # no order was fixed, and all went well
        for side in (0, 1):
            stuck = self._at[side]["ref"] == self._last_of(side)["ref"] and int(self._at[side]["state"]) in _STUCK
            if self._later[side] is None and (not stuck or self._traces[side].end.how is Ended.CUT):
                return None
        ranks = (self._traces[0].rank, self._traces[1].rank)
        return Crossing(ranks, (first, second), (self._later[0] is not None, self._later[1] is not None))

    def _last_of(self, side: int) -> np.void:
        last = self._last[side]
        return self._at[side] if last is None else last

    def _concurrent(self, side: int, record: np.void) -> bool:
        """Whether the rank did the two at once, from two threads or asynchronously: then it fixed no order."""
        later = self._later[side]
        if later is None:
            return False
        if record["thread"] != later["thread"]:
            return True
        if self._traces[side].end.how is Ended.DUMP:
            return False  # a dump's order is that of the enqueuing
        return not record["end"] or int(record["end"]) > int(later["start"])
