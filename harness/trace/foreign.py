"""Recording a program that knows nothing of it: at the dispatcher, which every collective of torch goes through.

`torch.distributed`, its aliases, `torch.distributed.nn`, functional collectives, DeviceMesh, object collectives and C++
callers (DistributedDataParallel's reducer) all end in the operators `c10d::*`. Each of them gets a kernel for the
dispatch key `BackendSelect`, which is on every call's way and has none of its own there: it records and goes on to
the kernel below.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .c10d_calls import Operator, operators
from .callers import Callers
from .format import Flag, Slot, TraceWriter
from .job_identity import free_place, launch_identity, shared_identity
from .python_calls import PythonCalls
from .recorder import process_facts
from .watchdog import Heart, Phase, answer_with_stacks
from .works import Begun, Works

__all__ = ["ForeignRecorder"]

_MOST_CALLS = 1 << 16
_UNRECORDED_BEAT_S = 1.0
_c10d: Any = dist


class ForeignRecorder:
    """The recorder of this process, which makes process groups and so is a rank.

    The trace is opened with the first collective: only then a rank is sure of its number. An error of the recorder
    itself ends the recording, with one line on standard error, and never the program.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._trace: _Trace | None = None
        self._heart: Heart | None = None
        self._broken = False
        self._beaten_at = 0.0
        self._launch: str | None = None
        self._calls = PythonCalls()
        self._works = Works()

    def install(self) -> None:
        """Record every collective from now on, for as long as the process lives."""
        make: Any = torch.library.Library  # untyped in torch; what it makes works as long as it lives
        self._library, self._functional = make("c10d", "IMPL"), make("_c10d_functional", "IMPL")
        for operator in operators():
            self._library.impl(operator.name, self._kernel(operator), "BackendSelect", with_keyset=True)
        self._calls.install(self._functional, self._works)
        self._works.install(self._functional)
        atexit.register(self._close)
        rank = os.environ.get("RANK", "")
        if rank.isdigit():  # else the first collective says who this is
            self._launch = launch_identity(os.environ)
            self._live(free_place(self._directory, int(rank), self._launch), int(rank))

    def compiling(self, now: bool) -> None:
        """Dynamo has begun, or ended, a compilation."""
        if self._heart is not None:
            self._heart.compiling(now)

    def _kernel(self, operator: Operator) -> Callable[..., Any]:
        overload = operator.overload
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)  # noqa: SLF001 - as torch's own kernels do

        calls, works = self._calls, self._works

        def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
            begun = self._begin(operator, arguments)
            try:
                result = overload.redispatch(keys & below, *arguments, **named)
            except BaseException:
                if begun is not None:
                    TraceWriter.complete(begun[0], time.monotonic_ns(), raised=True)
                raise
            if begun is None:
                return result
            try:
                if operator.is_async(arguments):
                    TraceWriter.returned(begun[0])
                if calls.group is not None:  # a method was called: it will have the work
                    calls.begun.append(begun)
                else:
                    boxed = result[-1] if isinstance(result, tuple) else result
                    works.add_boxed(boxed, begun, operator.tensors(arguments, operator.outputs))
            except Exception as error:  # noqa: BLE001 - the program must run as it would without us
                self._give_up(error)
            return result

        return kernel

    def _begin(self, operator: Operator, arguments: tuple[Any, ...]) -> Begun | None:
        if self._broken:
            self._beat_unrecorded()
            return None
        try:
            trace = self._trace or self._open()
            self._works.look()
            calls = self._calls
            group = calls.group
            if group is None:
                group = _c10d.ProcessGroup.unbox(arguments[operator.group])
            start_ns = time.monotonic_ns()
            return trace.begin(operator, arguments, group, calls.reduction_name(), start_ns), start_ns
        except Exception as error:  # noqa: BLE001
            self._give_up(error)
            return None

    def _open(self) -> _Trace:
        with self._lock:
            if self._trace is None:
                rank, world_size = _c10d.get_rank(), _c10d.get_world_size()
                job = shared_identity(_c10d.distributed_c10d._get_default_store())  # noqa: SLF001 - no public way
                place = free_place(self._directory, rank, self._launch or job or "")
                self._live(place, rank)
                self._trace = _Trace(place, rank, world_size, job)
                self._beat(Phase.MEASURE)
            return self._trace

    def _live(self, place: Path, rank: int) -> None:
        """Show signs of life, and answer for the stacks, from now on."""
        if self._heart is None:
            self._heart = Heart(place, rank)
            answer_with_stacks(place / "stacks", rank)
            self._beat(Phase.LOAD)

    def _beat(self, phase: Phase) -> None:
        if self._heart is not None:
            self._heart.beat(phase)

    def _beat_unrecorded(self) -> None:
        """Show that a rank gets on of which no record does, now and then."""
        now = time.monotonic()
        if now - self._beaten_at > _UNRECORDED_BEAT_S:
            self._beaten_at = now
            with contextlib.suppress(OSError):
                self._beat(Phase.MEASURE)

    def _close(self) -> None:
        if self._trace is None or not self._trace.is_mine:
            return
        if not self._broken:
            self._works.look()
            self._trace.close()
        self._beat(Phase.DONE)

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            if self._broken:
                return
            self._broken = True
        print(f"orchestrate trace: recording ends here: {error!r}", file=sys.stderr)
        with contextlib.suppress(OSError):
            if self._trace is not None:
                self._trace.give_up(error)


class _Trace:
    """The open trace of this rank, and what its records have in common."""

    def __init__(self, directory: Path, rank: int, world_size: int, job: str | None) -> None:
        start_ns = time.monotonic_ns()
        facts = process_facts() | {
            "torch": torch.__version__,
            "mono_ns": start_ns,
            "job": job,
            "restart": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        }
        self._writer = TraceWriter(directory, rank, world_size=world_size, start_ns=start_ns, facts=facts)
        self._pid = os.getpid()
        self._rank = rank
        self._callers = Callers(self._writer, 6)
        self._calls: dict[tuple[Any, ...], int] = {}
        self._groups: dict[int, tuple[Any, _Group]] = {}
        self._known: dict[int, _Group] = {}

    def begin(
        self, operator: Operator, arguments: tuple[Any, ...], handle: Any, reduction: str | None, start_ns: int
    ) -> Slot:
        """Write the record of a call that begins."""
        group = self._group(handle)
        call = (
            operator.name,
            group.number,
            tuple([(tensor.shape, tensor.dtype) for tensor in operator.tensors(arguments, operator.inputs)]),
            tuple([(tensor.shape, tensor.dtype) for tensor in operator.tensors(arguments, operator.outputs)]),
            reduction,
            None if operator.root is None else arguments[operator.root],
            None if operator.peer is None else arguments[operator.peer],
            None if operator.tag is None else arguments[operator.tag],
            None if operator.send_splits is None else tuple(arguments[operator.send_splits]),
            None if operator.recv_splits is None else tuple(arguments[operator.recv_splits]),
            self._callers.number(3),
        )
        signature = self._calls.get(call)
        if signature is None:
            signature = self._define(operator, group, call)
        flags = int(operator.is_async(arguments))  # Flag.ASYNC is 1
        if not operator.is_p2p:
            return self._writer.count(group.counter, group.number, signature, start_ns, flags)
        channel = 0 if call[6] is None else group.next_in_channel(operator.op, call[6])
        return self._writer.begin(
            group.number,
            signature,
            sequence=group.counter[0],
            start_ns=start_ns,
            flags=flags | int(Flag.P2P),
            channel=channel,
        )

    @property
    def is_mine(self) -> bool:
        """Whether this process opened the trace, and is no fork of the one that did."""
        return os.getpid() == self._pid

    def close(self) -> None:
        """The clean end."""
        self._writer.close(time.monotonic_ns())

    def give_up(self, error: Exception) -> None:
        """The end of a recording that an error of ours ends."""
        why = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
        self._writer.give_up(why, time.monotonic_ns())

    def _group(self, handle: Any) -> _Group:
        known = self._groups.get(id(handle))
        if known is not None and known[0]() is handle:
            return known[1]
        name = str(handle.group_name)
        ranks = _c10d.distributed_c10d._world.pg_group_ranks.get(handle)  # noqa: SLF001 - the public way raises for groups in the making
        members = tuple(range(handle.size())) if not ranks else tuple(sorted(ranks, key=lambda rank: ranks[rank]))
        backend = str(handle.name())
        number = self._writer.group(name, members, backend=backend, desc=str(handle.group_desc))
        group = self._known.setdefault(number, _Group(number, members, handle.rank()))
        self._groups[id(handle)] = (weakref.ref(handle), group)
        return group

    def _define(self, operator: Operator, group: _Group, call: tuple[Any, ...]) -> int:
        inputs, outputs, reduction, root, peer, tag, send, recv, stack = call[2:]
        size = len(group.ranks)
        if operator.op == "all_to_all":
            send, recv = ([shape.numel() for shape, _ in tensors] for tensors in (inputs, outputs))
        elif send is not None:
            send = send or [inputs[0][0][0] // size] * size
            recv = recv or [outputs[0][0][0] // size] * size
        if len(self._calls) >= _MOST_CALLS:  # a program whose splits never come again must not fill the memory
            self._calls.clear()
        signature = self._calls[call] = self._writer.signature(
            op=operator.op,
            input_sizes=[shape for shape, _ in inputs],
            input_dtypes=[str(dtype).removeprefix("torch.") for _, dtype in inputs],
            output_sizes=[shape for shape, _ in outputs],
            output_dtypes=[str(dtype).removeprefix("torch.") for _, dtype in outputs],
            send_splits=send,
            recv_splits=recv,
            reduce_op=reduction,
            root=None if root is None else group.ranks[root],
            peer=None if peer is None else group.ranks[peer],
            tag=tag,
            stack=stack,
        )
        return signature


class _Group:
    """A process group: its number, its global ranks, this rank's place, and what was counted in it."""

    def __init__(self, number: int, ranks: tuple[int, ...], index: int) -> None:
        self.number = number
        self.ranks = ranks
        self.counter = [0]
        self._index = index
        self._channels: dict[tuple[int, int], int] = {}

    def next_in_channel(self, op: str, peer: int) -> int:
        """The number of this operation among those from its sender to its receiver."""
        channel = (self._index, peer) if op == "send" else (peer, self._index)
        number = self._channels.get(channel, 0)
        self._channels[channel] = number + 1
        return number
