"""How a launcher waits: minding its warden, hearing the stop signals, and telling the journal of both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrate.lifecycle.journal import Journal
from orchestrate.lifecycle.signals import StopSignals
from orchestrate.lifecycle.warden_keeper import WardenKeeper, readable

__all__ = ["StoppedError", "Watch"]


class StoppedError(Exception):
    """A stop signal came before the payload ran."""


@dataclass(slots=True)
class Watch:
    """Waits on behalf of one launcher. `note` tells a person; `keeper` is None until there is a warden."""

    journal: Journal
    signals: StopSignals
    note: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    keeper: WardenKeeper | None = None
    _told: str | None = None

    def pause(self, seconds: float) -> None:
        """Wait at least that long."""
        end = self.clock() + seconds
        while (left := end - self.clock()) > 0:
            self.wait(left)

    def pause_or_stop(self, seconds: float) -> None:
        """Wait that long; `StoppedError` as soon as the run is told to stop."""
        end = self.clock() + seconds
        self.checkpoint()
        while (left := end - self.clock()) > 0:
            self.wait(left)
            self.checkpoint()

    def wait_or_stop(self, seconds: float) -> None:
        """Wait until something happens; `StoppedError` when the run is told to stop."""
        self.wait(seconds)
        self.checkpoint()

    def wait(self, seconds: float, fd: int | None = None) -> None:
        """Wait until something happens: time is up, a first signal, the warden reports, or `fd` becomes readable."""
        fds = () if self.keeper is None else self.keeper.fds()
        if self.signals.first is None:
            fds = (*fds, self.signals.wake_fd)
        elif self._told is None:
            self.cancelled()
        readable(fds if fd is None else (*fds, fd), seconds)
        if self.keeper is not None:
            self.keeper.service()

    def checkpoint(self) -> None:
        """Mind the warden; `StoppedError` when the run is told to stop."""
        if self.keeper is not None:
            self.keeper.service()
        if self.signals.first is not None:
            raise StoppedError

    def cancelled(self) -> str | None:
        """What the stop signals mean for the run; the first one is recorded."""
        first = self.signals.first
        if first is None:
            return None
        if self._told != first:
            self._told = first
            self.record("signal", signal=first)
        return f"stopped by {first}"

    def record(self, kind: str, **facts: Any) -> None:
        """A journal record that must not keep anything from going on when the disk refuses it."""
        try:
            self.journal.append(kind, **facts)
        except OSError as error:
            self.note(f"the journal refused a record of kind {kind}: {error.strerror}")
