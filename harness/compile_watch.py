"""What dynamo compiled during one forward and backward, from its own telemetry.

Three sources, none of which is enough alone:

- the compilation callbacks fire for each compiled frame, with the id `frame/attempt` (attempt above 0: a recompile),
  and for backward graphs and kernels that are built late;
- `counters["frames"]` counts each frame that dynamo was asked to convert and each that it did convert: it sees the
  attempts for which no callback fires;
- the reason of a frame that was refused for the recompile limit is in `counters["unimplemented"]` and in the
  compilation metrics. No callback fires for it, and later calls of that frame run eagerly without any trace. So the
  limit, once hit, stays for the life of the process.

Where the sources contradict each other, or a release of torch moved one, the status is `unknown`, never `none`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from harness.warmup import CompileStatus

__all__ = ["CompileWatch", "Counts", "DynamoTelemetry", "Telemetry", "classify", "raise_recompile_limit"]

_LIMIT_REASON = re.compile(r"recompile[_ ]limit|cache[_ ]size[_ ]limit", re.IGNORECASE)
_COMPILE_ID = re.compile(r"(?P<attempt>\d+)(_\d+)?$")


@dataclass(frozen=True, slots=True)
class Counts:
    """Frames that dynamo was asked to convert, frames that it did convert, and whether any hit the recompile limit."""

    asked: int
    converted: int
    limit_hit: bool


class Telemetry(Protocol):
    """Where the facts come from; dynamo in production."""

    def counts(self) -> Counts | None:
        """The totals of this process, None where they can not be read."""

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None] | None:
        """Call `listener` with the id of each compilation that starts; the answer stops it. None: impossible."""


class CompileWatch:
    """The compile status of each run of this process.

    >>> watch = CompileWatch(telemetry)
    >>> with watch.run() as run:
    ...     model(plan).backward()
    >>> run.status
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._started: list[str] = []
        self._stop = telemetry.listen(self._started.append)

    @contextmanager
    def run(self) -> Iterator[WatchedRun]:
        """Watch what is compiled inside the block; read `status` after it."""
        before = self._telemetry.counts()
        self._started.clear()
        watched = WatchedRun()
        yield watched
        after = self._telemetry.counts()
        watched.status = classify(tuple(self._started) if self._stop is not None else None, before, after)

    def close(self) -> None:
        """Stop listening."""
        if self._stop is not None:
            self._stop()
            self._stop = None


class WatchedRun:
    """The status of one watched block: `unknown` until the block is left without an error."""

    __slots__ = ("status",)

    def __init__(self) -> None:
        self.status = CompileStatus.UNKNOWN


def classify(started: tuple[str, ...] | None, before: Counts | None, after: Counts | None) -> CompileStatus:
    """The status of a run in which the compilations `started` began, with the totals `before` and `after` it.

    None stands for a source that could not be read.
    """
    if after is not None and after.limit_hit:
        return CompileStatus.LIMIT
    if started is None or before is None or after is None:
        return CompileStatus.UNKNOWN
    asked, converted = after.asked - before.asked, after.converted - before.converted
    if asked != converted or (asked and not started):
        return CompileStatus.UNKNOWN
    if not started:
        return CompileStatus.NONE
    return CompileStatus.RECOMPILE if any(_is_recompile(each) for each in started) else CompileStatus.COMPILE


def raise_recompile_limit(limit: int = 256) -> None:
    """Let every frame be compiled up to `limit` times, so that a normal candidate family does not hit the limit.

    Each layout may bring a shape of its own to each compiled region; torch's default of 8 is fewer than a family has.
    """
    import torch._dynamo  # noqa: PLC0415 - 2 s of imports that only a rank needs

    torch._dynamo.config.recompile_limit = limit  # noqa: SLF001 - torch's own name for a documented setting
    torch._dynamo.config.accumulated_recompile_limit = 64 * limit  # noqa: SLF001


class DynamoTelemetry:
    """`Telemetry` from `torch._dynamo`. Import it only in a rank: dynamo takes about 2 s to import."""

    def __init__(self) -> None:
        import torch._dynamo.callback  # noqa: PLC0415 - 2 s of imports that only a rank needs
        import torch._dynamo.utils  # noqa: PLC0415

        self._handler: Any = getattr(torch._dynamo.callback, "callback_handler", None)  # noqa: SLF001 - torch's only telemetry
        self._utils: Any = torch._dynamo.utils  # noqa: SLF001
        self._limit_hit = False

    def counts(self) -> Counts | None:
        """The totals from `counters` and the compilation metrics."""
        try:
            frames = self._utils.counters["frames"]
            self._limit_hit = self._limit_hit or self._limit_reason_given()
            return Counts(int(frames["total"]), int(frames["ok"]), self._limit_hit)
        except (AttributeError, KeyError, TypeError):
            return None

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None] | None:
        """Register a start callback that passes on `trigger:compile id`."""
        if self._handler is None:
            return None

        def on_start(arguments: Any) -> None:
            trigger = getattr(getattr(arguments, "callback_trigger", None), "name", "UNKNOWN")
            listener(f"{trigger}:{getattr(arguments, 'compile_id', '')}")

        try:
            self._handler.register_start_callback(on_start)
        except AttributeError:
            return None
        return lambda: self._handler.remove_start_callback(on_start)

    def _limit_reason_given(self) -> bool:
        if any(_LIMIT_REASON.search(str(reason)) for reason in self._utils.counters.get("unimplemented", ())):
            return True
        metrics = self._utils.get_compilation_metrics()
        return any(_LIMIT_REASON.search(str(getattr(metric, "fail_reason", None) or "")) for metric in metrics)


def _is_recompile(started: str) -> bool:
    trigger, _, compile_id = started.partition(":")
    attempt = _COMPILE_ID.search(compile_id)
    return trigger == "DYNAMO" and attempt is not None and int(attempt["attempt"]) > 0
