"""A provider's call that may hang, in a thread: the launcher goes on hearing stop signals, and gives up on it in time.

The call waits by `pause`, which the launcher's own thread carries out: nothing else ever runs at the same time. A call
that neither returns nor pauses when it should is abandoned. It may still come back: then its next `pause` ends it.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from orchestrate.errors import BackendError
from orchestrate.lifecycle.watch import StoppedError, Watch

__all__ = ["call_with_patience"]

GRACE_S = 10.0
"""How long a call may go on without a pause after the run was told to stop, or after its time is over."""

_Result = TypeVar("_Result")


def call_with_patience(
    call: Callable[[Callable[[float], None]], _Result],
    *,
    pause: Callable[[float], None],
    watch: Watch,
    budget_s: float,
    grace_s: float = GRACE_S,
) -> _Result:
    """What `call(pause)` returns or raises, the call being made in a thread of its own.

    Args:
        call: the call; it gets the `pause` by which it waits.
        pause: carries out a pause of the call, in this thread; what it raises, the call gets.
        watch: how this thread waits meanwhile.
        budget_s: how long the call means to take.
        grace_s: how much longer it may take, and how long it may take to hear of a stop signal.

    Raises:
        StoppedError: the run was told to stop, and the call did not hear of it in time.
        BackendError: the call neither came back nor paused long after its time was over.
    """
    worker = _Worker(call)
    worker.start()
    give_up_at = watch.clock() + budget_s + grace_s
    told_at: float | None = None
    try:
        while not worker.is_done:
            watch.wait(min(1.0, max(0.0, give_up_at - watch.clock())), worker.wake_fd)
            worker.serve(pause)
            now = watch.clock()
            if watch.signals.first is not None:
                told_at = now if told_at is None else told_at
                if now - told_at >= grace_s and not worker.is_done:
                    raise StoppedError
            if now >= give_up_at and not worker.is_done:
                raise BackendError(
                    f"the provider's call did not come back {grace_s:g}s after its time was over",
                    remedy="look whether the provider answers at all; what it may have made is taken back",
                )
        return worker.result()
    finally:
        worker.abandon()


class _Worker(Generic[_Result]):
    """The thread, and the errands that it sends to the launcher's thread."""

    def __init__(self, call: Callable[[Callable[[float], None]], _Result]) -> None:
        self._call = call
        self._errands: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._returned: list[_Result] = []
        self._raised: BaseException | None = None
        self._abandoned = False
        self._is_ending = False
        self._ended = threading.Event()
        self.wake_fd, self._wake = os.pipe()
        # A daemon: a call that never comes back must not keep this process alive.
        self._thread = threading.Thread(target=self._run, name="provider-call", daemon=True)

    @property
    def is_done(self) -> bool:
        return self._ended.is_set()

    def start(self) -> None:
        self._thread.start()

    def serve(self, pause: Callable[[float], None]) -> None:
        """Carry out the pause that the call waits for, if it does."""
        try:
            seconds = self._errands.get_nowait()
        except queue.Empty:
            if self._is_ending:
                self._ended.wait(1.0)
            return
        os.read(self.wake_fd, 1)
        answer: BaseException | None = None
        try:
            pause(seconds)
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is the call that gets it
            answer = error
        self._answers.put(answer)

    def result(self) -> _Result:
        if self._raised is not None:
            raise self._raised
        return self._returned[0]

    def abandon(self) -> None:
        """Whatever the call does from now on, its next pause ends it."""
        self._abandoned = True
        self._answers.put(StoppedError())
        if self.is_done:  # else the pipe stays open: the call may still come back
            os.close(self.wake_fd)
            os.close(self._wake)

    def _run(self) -> None:
        try:
            self._returned.append(self._call(self._pause))
        except BaseException as error:  # noqa: BLE001  # told to whoever waits for the result
            self._raised = error
        self._is_ending = True
        os.write(self._wake, b"!")
        self._ended.set()  # last of all: from then on the pipe may be closed

    def _pause(self, seconds: float) -> None:
        if self._abandoned:
            raise StoppedError
        self._errands.put(seconds)
        os.write(self._wake, b"!")
        answer = self._answers.get()
        if answer is not None:
            raise answer
