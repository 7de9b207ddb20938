"""What only the caller's side of the dispatcher knows: the process group itself, the reduction, and the work it gets.

A call from Python goes through a method of `ProcessGroup`, one of a functional collective through an operator
`_c10d_functional::*`. Both are noted on their way down, because the dispatcher's own objects of a group and of a
reduction can be read from Python slowly, or not at all. What C++ asks for by itself (DistributedDataParallel's reducer,
which sums) has an unknown reduction.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist

from .works import Begun, Works

__all__ = ["PythonCalls"]

_METHODS = (
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "all_gather_single"),
    *("all_gather_single_coalesced", "allreduce", "allreduce_coalesced", "alltoall", "alltoall_base"),
    *("all_to_all_single", "barrier", "broadcast", "gather", "recv", "recv_anysource", "reduce", "reduce_scatter"),
    *("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "scatter", "send"),
)
_c10d: Any = dist


class PythonCalls(threading.local):
    """The call under way on this thread: its group where a method was called, its reduction where it is known."""

    group: Any = None
    reduction: Any = None

    def __init__(self) -> None:
        self.begun: list[Begun] = []
        self._names: dict[int, str] = {}

    def reduction_name(self) -> str | None:
        """`sum` of `ReduceOp.SUM`, whichever of torch's types of it was noted."""
        noted = self.reduction
        if noted is None or isinstance(noted, str):
            return noted
        kind = getattr(noted, "op", noted)
        name = self._names.get(int(kind))
        if name is None:
            name = self._names[int(kind)] = str(getattr(kind, "name", kind)).rpartition(".")[2].lower()
        return name

    def install(self, library: Any, works: Works) -> None:
        """Note calls from now on; `library` adds kernels to `_c10d_functional`."""
        for name in _METHODS:
            method = getattr(_c10d.ProcessGroup, name, None)
            if method is not None:
                setattr(_c10d.ProcessGroup, name, self._noting_method(method, works))
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)  # noqa: SLF001 - as torch's own kernels do
        for name in torch._C._dispatch_get_all_op_names():  # noqa: SLF001 - torch has no public list of operators
            if not name.startswith("_c10d_functional::"):
                continue
            arguments = [each.name for each in torch._C._get_schema(name, "").arguments]  # noqa: SLF001
            if "reduce_op" in arguments:
                short = name.removeprefix("_c10d_functional::")
                kernel = self._noting_kernel(short, arguments.index("reduce_op"), below)
                library.impl(short, kernel, "BackendSelect", with_keyset=True)

    def _noting_method(self, method: Any, works: Works) -> Any:
        reductions = _c10d.ReduceOp, _c10d.ReduceOp.RedOpType

        def noting(group: Any, *arguments: Any, **named: Any) -> Any:
            if self.group is not None:  # a process group that is made of others
                return method(group, *arguments, **named)
            self.reduction = getattr(arguments[-1], "reduceOp", None) if arguments else None
            if self.reduction is None:  # the other overloads: an operation instead of options
                given = (each for each in (*arguments, *named.values()) if isinstance(each, reductions))
                self.reduction = next(given, None)
            self.group = group
            try:
                work = method(group, *arguments, **named)
            finally:
                self.group = self.reduction = None
                begun, self.begun = self.begun, []
            for each in begun:
                works.add(work, each)
            return work

        noting.__name__ = getattr(method, "__name__", "noting")
        noting.__doc__ = method.__doc__
        return noting

    def _noting_kernel(self, name: str, place: int, below: Any) -> Any:
        overload = getattr(torch.ops._c10d_functional, name).default  # noqa: SLF001 - torch's own name

        def noting(keys: Any, *arguments: Any, **named: Any) -> Any:
            self.reduction = str(arguments[place]).lower()
            try:
                return overload.redispatch(keys & below, *arguments, **named)
            finally:
                self.reduction = None

        return noting
