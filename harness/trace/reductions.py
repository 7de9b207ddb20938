"""Which reduction a call asks for: the dispatcher's own object of it can not be read from Python.

So it is noted one level higher, where it still can be: at the methods of `ProcessGroup` for callers in Python, and at
the operators `_c10d_functional::*`, which name it, for functional collectives. What C++ asks for by itself
(DistributedDataParallel's reducer, which sums) stays unknown.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Reductions"]

_METHODS = (
    *("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base"),
    *("reduce_scatter_tensor_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
)
_c10d: Any = dist


class Reductions(threading.local):
    """The reduction that the call under way on this thread asks for."""

    def __init__(self) -> None:
        self._noted: str | None = None

    def take(self) -> str | None:
        """What was noted since the last call."""
        noted, self._noted = self._noted, None
        return noted

    def install(self, library: Any) -> None:
        """Note reductions from now on; `library` adds kernels to `_c10d_functional`."""
        for name in _METHODS:
            method = getattr(_c10d.ProcessGroup, name, None)
            if method is not None:
                setattr(_c10d.ProcessGroup, name, self._noting_method(method))
        names = (each for each in torch._C._dispatch_get_all_op_names() if each.startswith("_c10d_functional::"))  # noqa: SLF001
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)  # noqa: SLF001
        for name in names:
            arguments = [each.name for each in torch._C._get_schema(name, "").arguments]  # noqa: SLF001
            if "reduce_op" in arguments:
                short = name.removeprefix("_c10d_functional::")
                overload = getattr(torch.ops._c10d_functional, short).default  # noqa: SLF001
                library.impl(
                    short,
                    self._noting_kernel(overload, arguments.index("reduce_op"), below),
                    "BackendSelect",
                    with_keyset=True,
                )

    def _noting_method(self, method: Any) -> Any:
        def noting(group: Any, *arguments: Any, **named: Any) -> Any:
            self._noted = "sum"  # the default of every method
            for argument in (*arguments[1:], *named.values()):
                reduction = getattr(argument, "reduceOp", argument)
                if isinstance(reduction, (_c10d.ReduceOp, _c10d.ReduceOp.RedOpType)):
                    self._noted = _name(reduction)
            try:
                return method(group, *arguments, **named)
            finally:
                self._noted = None

        noting.__name__ = getattr(method, "__name__", "noting")
        noting.__doc__ = method.__doc__
        return noting

    def _noting_kernel(self, overload: Any, place: int, below: Any) -> Any:
        def noting(keys: Any, *arguments: Any, **named: Any) -> Any:
            self._noted = str(arguments[place]).lower()
            try:
                return overload.redispatch(keys & below, *arguments, **named)
            finally:
                self._noted = None

        return noting


def _name(reduction: Any) -> str:
    """`sum` of `ReduceOp.SUM`, whichever of torch's two types of it."""
    kind = getattr(reduction, "op", reduction)
    return str(getattr(kind, "name", kind)).rpartition(".")[2].lower()
