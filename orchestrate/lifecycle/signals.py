"""SIGINT, SIGTERM and SIGHUP while a run is under way: the first one begins the teardown, no later one skips it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["StopSignals"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Catches the stop signals from `__enter__` to `__exit__`.

    Args:
        still_to_do: what is still being torn down, in words; said on standard error when a further signal comes.

    Attributes:
        first: the name of the first signal, None before it.
        wake_fd: readable once the first signal came.
    """

    def __init__(self, still_to_do: Callable[[], str]) -> None:
        self._still_to_do = still_to_do
        self._before: dict[signal.Signals, Any] = {}
        self.first: str | None = None
        self.count = 0
        self.wake_fd, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def __enter__(self) -> Self:
        for signum in _SIGNALS:
            before = signal.getsignal(signum)
            if signum is signal.SIGHUP and before is signal.SIG_IGN:
                continue  # nohup: the run is meant to outlive its terminal
            self._before[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)
        os.close(self.wake_fd)
        os.close(self._wake)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        self.count += 1
        if self.first is None:
            self.first = name
            os.write(self._wake, b"!")
            return
        _say(f"{name} again: not skipped, still {self._still_to_do()}")


def _say(text: str) -> None:
    # Not through sys.stderr: the handler may have interrupted a write to it, and its buffer is not reentrant.
    try:
        os.write(2, f"\n{text}\n".encode())
    except OSError:  # the terminal is gone
        return
