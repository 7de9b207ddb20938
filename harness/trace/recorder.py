"""The record of every collective of one rank, from the first one, cheap enough to leave on.

The trace file is `harness.trace.format`'s. In a steady state a record is a walk over a few frames, one look-up of what
was called, and one store.
"""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from .callers import Callers
from .format import Flag, Slot, TraceWriter

__all__ = ["Collective", "Recorder", "process_facts"]

_MOST_CALLS = 1 << 16


class Recorder:
    """The record of one rank, written into `directory`.

    `context` says what the rank is doing; each record carries it until it changes. One process, one recorder; a
    collective may begin on another thread than the last one, as CUDA's backward does.
    """

    def __init__(
        self, directory: Path, rank: int, world_size: int, *, facts: Mapping[str, Any] | None = None, frames: int = 4
    ) -> None:
        start_ns = time.monotonic_ns()
        facts = process_facts() | {"mono_ns": start_ns} | dict(facts or {})
        self._writer = TraceWriter(directory, rank, world_size=world_size, start_ns=start_ns, facts=facts)
        self._callers = Callers(self._writer, frames)
        self._calls: dict[tuple[object, ...], _Call] = {}
        self._counters: dict[tuple[str, tuple[int, ...]], tuple[int, list[int]]] = {}
        self._lock = threading.Lock()
        self._context = 0
        self._forward = -1

    def context(self, *, layout: str | None, forward: int | None, phase: str | None) -> None:
        """What the next records belong to: the layout's label, the forward's number, the phase."""
        self._context = self._writer.context(layout, phase)
        self._forward = -1 if forward is None else forward

    def record(
        self,
        *,
        op: str,
        group: str,
        ranks: tuple[int, ...],
        dtype: object = None,
        shape: tuple[int, ...] | None = None,
        send_splits: Sequence[int] | None = None,
        recv_splits: Sequence[int] | None = None,
        reduce_op: str | None = None,
        root: int | None = None,
        tag: str | None = None,
        direction: str = "forward",
    ) -> Collective:
        """One collective, which begins now; its record is complete when the block is left without an error.

        `shape` is the input's. A dtype is whatever has the dtype's name as its string.
        """
        stack = self._callers.number(1)
        key = (
            op, group, ranks, dtype, shape,
            None if send_splits is None else tuple(send_splits),
            None if recv_splits is None else tuple(recv_splits),
            reduce_op, root, tag, direction, stack,
        )  # fmt: skip
        call = self._calls.get(key)
        if call is None:
            call = self._define(*key)
        return Collective(
            self._writer.count(
                call.counter,
                call.group,
                call.signature,
                time.monotonic_ns(),
                call.flags,
                self._context,
                self._forward,
            )
        )

    def close(self) -> None:
        """The clean end of the trace; what was recorded stays."""
        self._writer.close(time.monotonic_ns())

    def _define(
        self,
        op: str,
        group: str,
        ranks: tuple[int, ...],
        dtype: object,
        shape: tuple[int, ...] | None,
        send_splits: tuple[int, ...] | None,
        recv_splits: tuple[int, ...] | None,
        reduce_op: str | None,
        root: int | None,
        tag: str | None,
        direction: str,
        stack: int,
    ) -> _Call:
        with self._lock:
            counted = self._counters.get((group, ranks))
            if counted is None:
                counted = self._counters[group, ranks] = (self._writer.group(group, ranks), [0])
        dtypes = [] if dtype is None else [str(dtype).removeprefix("torch.")]
        output = _output_size(op, shape, len(ranks), recv_splits)
        signature = self._writer.signature(
            op=op,
            input_sizes=[] if shape is None else [shape],
            input_dtypes=dtypes,
            output_sizes=[] if output is None else [output],
            output_dtypes=[] if output is None else dtypes,
            send_splits=send_splits,
            recv_splits=recv_splits,
            reduce_op=reduce_op,
            root=root,
            tag=tag,
            stack=stack,
        )
        if len(self._calls) >= _MOST_CALLS:  # a program whose splits never come again must not fill the memory
            self._calls.clear()
        call = _Call(*counted, signature, Flag.BACKWARD if direction == "backward" else Flag(0))
        key = (op, group, ranks, dtype, shape, send_splits, recv_splits, reduce_op, root, tag, direction, stack)
        self._calls[key] = call
        return call


class Collective:
    """One collective under way; a context manager."""

    __slots__ = ("_slot",)

    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        TraceWriter.complete(self._slot, time.monotonic_ns(), raised=kind is not None)


def process_facts() -> dict[str, Any]:
    """What a head says of its process."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "wall_ns": time.time_ns(),
        "mono_ns": time.monotonic_ns(),
    }


class _Call:
    """What the records of one call have in common: the group, its counter, the signature's number, the flags."""

    __slots__ = ("counter", "flags", "group", "signature")

    def __init__(self, group: int, counter: list[int], signature: int, flags: Flag) -> None:
        self.group = group
        self.counter = counter
        self.signature = signature
        self.flags = int(flags)


def _output_size(
    op: str, shape: tuple[int, ...] | None, ranks: int, recv_splits: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """The size of the result of one of the seam's operations; None where it has none."""
    if not shape:
        return shape
    match op:
        case "all_to_all_single" if recv_splits is not None:
            return (sum(recv_splits), *shape[1:])
        case "all_gather_single":
            return (shape[0] * ranks, *shape[1:])
        case "reduce_scatter_single":
            return (shape[0] // ranks, *shape[1:])
        case "all_reduce":
            return shape
    return None
