"""When an asynchronous collective ends: who waits for it, and what is done by itself."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from .format import Slot, TraceWriter

__all__ = ["Begun", "Works"]

_MOST = 256
_LOOK_AT = 4
_c10d: Any = dist

Begun = tuple[Slot, int]
"""A record, and the nanosecond of its start."""


class Works:
    """The works that have not ended yet, each with its record.

    A work is kept until it was waited for or has been seen to be done: at most `_MOST` of them, the oldest go first.
    """

    def __init__(self) -> None:
        self._works: dict[int, tuple[Any, Slot, int]] = {}
        self._outputs: dict[int, int] = {}

    def install(self, library: Any) -> None:
        """Follow the waits of this process from now on; `library` adds kernels to `_c10d_functional`."""
        wait = _c10d.Work.wait

        def waiting(work: Any, *arguments: Any, **named: Any) -> Any:
            entry = self._begin_wait(id(work))
            try:
                done = wait(work, *arguments, **named)
            except BaseException:
                self._end_wait(id(work), entry, raised=True)
                raise
            self._end_wait(id(work), entry)
            return done

        waiting.__doc__ = wait.__doc__
        _c10d.Work.wait = waiting
        overload = torch.ops._c10d_functional.wait_tensor.default  # noqa: SLF001 - torch's own name
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)  # noqa: SLF001

        def wait_tensor(keys: Any, tensor: torch.Tensor) -> Any:
            key = self._outputs.pop(_storage(tensor), 0)
            entry = self._begin_wait(key)
            result = overload.redispatch(keys & below, tensor)
            self._end_wait(key, entry)
            return result

        library.impl("wait_tensor", wait_tensor, "BackendSelect", with_keyset=True)

    def add(self, work: Any, begun: Begun) -> None:
        """A collective was issued and its work is on its way to the caller; no work: it is done."""
        if work is None:
            TraceWriter.complete(begun[0], time.monotonic_ns())
            return
        self._works[id(work)] = (work, *begun)
        if len(self._works) > _MOST:
            self._works.pop(next(iter(self._works)))

    def add_boxed(self, boxed: Any, begun: Begun, outputs: list[torch.Tensor]) -> None:
        """The same for a caller in C++, who may wait by one of the `outputs`."""
        if boxed is None:
            TraceWriter.complete(begun[0], time.monotonic_ns())
            return
        work = _c10d.Work.unbox(boxed)
        self.add(work, begun)
        for tensor in outputs:
            self._outputs[_storage(tensor)] = id(work)
        while len(self._outputs) > _MOST:
            self._outputs.pop(next(iter(self._outputs)))

    def look(self) -> None:
        """Take out the oldest works that are done by now."""
        if not self._works or _is_capturing():
            return
        for key, (work, slot, _) in list(self._works.items())[:_LOOK_AT]:
            try:
                done = work.is_completed()
            except RuntimeError:  # it failed, which whoever waits for it will be told
                done = False
            if not done:
                break
            TraceWriter.complete(slot, time.monotonic_ns())
            self._works.pop(key, None)

    def _begin_wait(self, key: int) -> tuple[Any, Slot, int] | None:
        entry = self._works.get(key)
        if entry is not None:
            TraceWriter.waiting(entry[1], time.monotonic_ns() - entry[2])
        return entry

    def _end_wait(self, key: int, entry: tuple[Any, Slot, int] | None, *, raised: bool = False) -> None:
        if entry is not None and self._works.pop(key, None) is not None:
            TraceWriter.complete(entry[1], time.monotonic_ns(), raised=raised)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the storage's identity, also where it is empty


def _is_capturing() -> bool:
    """Whether a CUDA graph is being captured: asking an event then would break the capture."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
