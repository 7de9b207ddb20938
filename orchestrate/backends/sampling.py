"""What the members of a local run were seen to hold: memory, listening ports, shared-memory files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from orchestrate.backends.leftovers import (
    Port,
    SharedFile,
    exists,
    held_ports,
    held_shared_files,
    listening,
    shared_files,
)
from orchestrate.backends.process_table import Process
from orchestrate.backends.protocol import Fact

__all__ = ["Samples"]


class Samples:
    """Collects samples while the run lives; afterwards answers which of the things seen are still there."""

    def __init__(self, *, interval_s: float = 0.09, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._next = float("-inf")
        self._before: frozenset[SharedFile] = frozenset()
        self._ports: set[Port] = set()
        self._shared: set[SharedFile] = set()
        self._told: set[Port | SharedFile] = set()
        self.peak_rss_bytes = 0

    def begin(self) -> None:
        """Remember what was in shared memory before the run: that is never ours, even when a member opens it."""
        self._before = frozenset(shared_files())

    def take(self, members: Sequence[Process], *, now_or_never: bool = False) -> None:
        """Sample these members: their memory each time, what they hold at most once per interval.

        `now_or_never` samples at once: they are about to be ended.
        """
        self.peak_rss_bytes = max(self.peak_rss_bytes, sum(process.rss_bytes for process in members))
        now = self._clock()
        if not members or (now < self._next and not now_or_never):
            return
        self._next = now + self._interval_s
        self._ports |= held_ports(members)
        self._shared |= held_shared_files(members) - self._before

    def ports_left(self) -> set[Port]:
        """The sampled sockets that still listen."""
        return self._ports & listening() if self._ports else set()

    def shared_left(self) -> set[SharedFile]:
        """The sampled shared-memory files that are still there."""
        return {file for file in self._shared if exists(file)}

    def counts(self) -> tuple[int, int]:
        """How many ports and how many shared-memory files were seen."""
        return len(self._ports), len(self._shared)

    def news(self) -> list[Fact]:
        """What was sampled since the last call, as facts for the journal."""
        ports, shared = self._ports - self._told, self._shared - self._told
        self._told |= ports | shared
        facts: list[Fact] = []
        if ports:
            facts.append({"kind": "ports", "items": [[port.number, port.inode] for port in sorted(ports)]})
        if shared:
            facts.append({"kind": "shared-memory", "items": [[file.path, file.inode] for file in sorted(shared)]})
        return facts

    def recall(self, fact: Fact) -> None:
        """Learn what another process of ours sampled."""
        items: Iterable[tuple[object, object]] = fact["items"]
        for first, inode in items:
            if fact["kind"] == "ports":
                self._ports.add(Port(int(str(first)), int(str(inode))))
            else:
                self._shared.add(SharedFile(str(first), int(str(inode))))
