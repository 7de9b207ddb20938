"""The cluster's own time: it runs with the wall clock, at a chosen pace, and can be put forward."""

import asyncio
import heapq
import time
from datetime import UTC, datetime


class Clock:
    """Seconds since the epoch as the cluster sees them, and alarms on them.

    `pace` multiplies the waits that a real cluster has between two of its steps (0: none); deadlines and lifetimes that
    objects ask for are never scaled, only put forward by `advance`.
    """

    def __init__(self, pace=1.0):
        self.pace = pace
        self._ahead_s = 0.0
        self._alarms = []
        self._moved = asyncio.Event()

    def set_pace(self, pace):
        self.pace = pace

    def now(self):
        return time.time() + self._ahead_s

    def stamp(self, at=None):
        """RFC 3339 with whole seconds, as objects carry it."""
        return datetime.fromtimestamp(int(self.now() if at is None else at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def micro_stamp(self):
        return datetime.fromtimestamp(self.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def advance(self, seconds):
        self._ahead_s += seconds
        self._moved.set()

    async def sleep(self, seconds):
        """Sleep so long in the cluster's time."""
        until = self.now() + seconds
        while (rest := until - self.now()) > 0:
            self._moved.clear()
            try:
                await asyncio.wait_for(self._moved.wait(), rest)
            except TimeoutError:
                continue

    async def step(self, seconds):
        """The wait of a controller or kubelet between two steps."""
        await self.sleep(seconds * self.pace)

    def alarm(self, at, call):
        """Have `call` called once at `at` or soon after; `ring` does it."""
        heapq.heappush(self._alarms, (at, id(call), call))
        self._moved.set()

    async def ring(self, then):
        """Serve the alarms for ever; `then` is called after each."""
        while True:
            while self._alarms and self._alarms[0][0] <= self.now():
                heapq.heappop(self._alarms)[2]()
                then()
            self._moved.clear()
            rest = self._alarms[0][0] - self.now() if self._alarms else 3600
            try:
                await asyncio.wait_for(self._moved.wait(), max(rest, 0.001))
            except TimeoutError:
                continue


def seconds(stamp):
    """The seconds since the epoch of an RFC 3339 stamp."""
    return datetime.fromisoformat(stamp).timestamp()
