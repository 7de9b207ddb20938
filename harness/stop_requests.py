"""Whoever wants a node to end: a signal, or the lifeline that launcher and warden hold, as one thing to wait on."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopRequests", "stop_requests"]

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequests:
    """Whether somebody wants the node to end, and the wait for anything to happen."""

    def __init__(self, lifeline_fd: int | None, wakeup_fd: int) -> None:
        """`wakeup_fd` becomes readable at a signal, `lifeline_fd` at the end of the launcher and the warden."""
        self.reason: str | None = None
        self._lifeline_fd = lifeline_fd
        self._wakeup_fd = wakeup_fd

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """The handler of every stop signal: the first one is the reason."""
        if number in _STOP_SIGNALS and self.reason is None:
            self.reason = f"{signal.Signals(number).name} received"

    def wait(self, within_s: float) -> None:
        """Return when a child died, a signal came or the lifeline closed, at the latest after `within_s`."""
        watched = [self._wakeup_fd] + ([] if self._lifeline_fd is None else [self._lifeline_fd])
        ready, _, _ = select.select(watched, [], [], within_s)
        if self._wakeup_fd in ready:
            os.read(self._wakeup_fd, 4096)
        if self._lifeline_fd in ready and os.read(self._lifeline_fd or 0, 4096) == b"":
            self._lifeline_fd = None
            self.reason = self.reason or "the lifeline closed: launcher and warden are gone"


@contextmanager
def stop_requests(lifeline_fd: int | None) -> Iterator[StopRequests]:
    """Signals and the lifeline as one thing to wait on; handlers are put back afterwards."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    requests = StopRequests(lifeline_fd, read_end)
    before = {number: signal.signal(number, requests.on_signal) for number in (*_STOP_SIGNALS, signal.SIGCHLD)}
    wakeup = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield requests
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_end)
        os.close(write_end)
