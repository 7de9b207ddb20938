"""Calls of SkyPilot's SDK that always come back: each in a thread of its own, with a deadline.

A call that does not return in time is left behind in its thread, which ends with the process; what it might have
done is then found by the name of the cluster. What takes the server long is a request there, watched by its id and
never through a log stream. Only calls without a side effect, or whose side effect is the same twice, are repeated.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, TypeVar

from orchestrate.backends.skypilot_sdk import Sdk, ServerRequest
from orchestrate.errors import BackendError

__all__ = ["CallTimeoutError", "Calls", "Pause", "RequestLostError"]

T = TypeVar("T")
Pause = Callable[[float], None]

CALL_S = 30.0
FIRST_CALL_S = 120.0
"""The first call imports SkyPilot and may have to start a local server, which takes up to a minute."""

LOOK_EVERY_S = 0.5
LOST_AFTER = 5


class CallTimeoutError(BackendError):
    """A call, or a request at the server, took longer than it may. What it does may still happen."""

    code = "call-timeout"


class RequestLostError(BackendError):
    """The server does not know a request that it had taken: it was restarted, or its database was lost."""

    code = "request-lost"


@dataclass(slots=True)
class Calls:
    """The SDK with time limits."""

    sdk: Sdk
    clock: Callable[[], float] = time.monotonic
    _warm: bool = field(default=False)

    def call(self, what: str, function: Callable[[], T], limit_s: float = CALL_S) -> T:
        """`function()`, or `CallTimeoutError` after `limit_s`; raises whatever `function` raises."""
        if not self._warm:
            limit_s = max(limit_s, FIRST_CALL_S)
        box = _Box()
        thread = threading.Thread(target=box.fill, args=(function,), name=f"sky: {what}", daemon=True)
        # Standard output is the command's answer; it must be whole again even where the thread never comes back.
        with redirect_stdout(_Nowhere()), redirect_stderr(_Nowhere()):
            thread.start()
            thread.join(limit_s)
        if thread.is_alive():
            raise CallTimeoutError(
                f"SkyPilot did not answer within {limit_s:g}s: {what}",
                remedy="see whether its API server is well: `sky api info`, `sky api logs`",
            )
        self._warm = True
        if box.error is not None:
            raise box.error
        value: T = box.value
        return value

    def result(self, what: str, start: Callable[[], str], limit_s: float, pause: Pause | None = None) -> Any:
        """What the request that `start` makes came to; `CallTimeoutError` when it is not over after `limit_s`.

        `pause` is how it waits between two looks at the request.
        """
        return self.wait(what, self.call(what, start), limit_s, pause)

    def wait(self, what: str, request_id: str, limit_s: float, pause: Pause | None = None) -> Any:
        """The result of a request that exists; raises what it failed with."""
        end = self.clock() + limit_s
        while not self.is_over(what, request_id):
            if self.clock() >= end:
                raise CallTimeoutError(
                    f"SkyPilot's server is not done within {limit_s:g}s: {what} (request {request_id})",
                    remedy=f"see `sky api logs {request_id}`",
                )
            (pause or time.sleep)(LOOK_EVERY_S)
        return self.call(what, lambda: self.sdk.result(request_id))

    def is_over(self, what: str, request_id: str) -> bool:
        """Whether a request has ended; `RequestLostError` where the server does not know it."""
        for _ in range(LOST_AFTER):
            found = self.call(what, lambda: self.sdk.requests([request_id]))
            if found:
                return found[0].is_over
            time.sleep(LOOK_EVERY_S)
        raise RequestLostError(
            f"SkyPilot's server does not know the request {request_id} any more: {what}",
            remedy="see whether its API server was restarted: `sky api info`, `sky api status -a`",
        )

    def requests_of(self, cluster: str) -> tuple[ServerRequest, ...]:
        """Every request about `cluster` that the server knows."""
        return self.call("the requests of this run", lambda: self.sdk.requests(cluster=cluster))


@dataclass(slots=True)
class _Box:
    value: Any = None
    error: BaseException | None = None

    def fill(self, function: Callable[[], Any]) -> None:
        try:
            self.value = function()
        except BaseException as error:  # noqa: BLE001  # it is raised again in the thread that asked
            self.error = error


class _Nowhere(io.TextIOBase):
    """A stream that forgets."""

    def write(self, text: str) -> int:
        """Forget `text`."""
        return len(text)
