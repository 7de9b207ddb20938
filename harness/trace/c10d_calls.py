"""The operators `c10d::*` of the installed torch, and what a call of one says: from their schemas, not from a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Operator", "operators"]

_NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_single",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_coalesced",
    "_reduce_scatter_base_": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "recv_any_source_": "recv",
}
_GROUP = "__torch__.torch.classes.c10d.ProcessGroup"
_NOT_DATA = frozenset({"barrier", "monitored_barrier"})  # their tensor only says where to run


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: where in a call its facts are, None where it has no such fact.

    Of tensors also how deep they lie: 0 a tensor, 1 a list of tensors, 2 a list of lists.
    """

    name: str
    op: str
    group: int
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]
    root: int | None
    peer: int | None
    tag: int | None
    send_splits: int | None
    recv_splits: int | None
    async_op: int | None
    reduces: bool

    @property
    def is_p2p(self) -> bool:
        """Whether it concerns two ranks only."""
        return self.op in {"send", "recv"}

    @property
    def overload(self) -> Any:
        """The operator itself."""
        return getattr(torch.ops.c10d, self.name).default

    def is_async(self, arguments: Sequence[Any]) -> bool:
        """Whether the caller means to wait later. A default argument may be left out: it is True."""
        if self.async_op is None:
            return self.is_p2p
        return bool(arguments[self.async_op]) if len(arguments) > self.async_op else True

    def tensors(self, arguments: Sequence[Any], places: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
        """The tensors at `places`, those of lists in their order."""
        found: list[torch.Tensor] = []
        for place, depth in places:
            value = arguments[place]
            if depth == 0:
                found.append(value)
            elif depth == 1:
                found += value
            else:
                for each in value:
                    found += each
        return found


def operators() -> tuple[Operator, ...]:
    """Every operator of this torch that a process group takes part in."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::"))  # noqa: SLF001 - torch has no public list of operators
    found = (_operator(name) for name in sorted(names) if "." not in name)
    return tuple(operator for operator in found if operator is not None)


def _operator(qualified: str) -> Operator | None:
    arguments = [(each.name, str(each.type)) for each in torch._C._get_schema(qualified, "").arguments]  # noqa: SLF001
    names = [name for name, _ in arguments]
    kinds = [kind for _, kind in arguments]
    if _GROUP not in kinds:
        return None
    name = qualified.removeprefix("c10d::")
    op = _NAMES.get(name, name.strip("_"))

    def place(*wanted: str) -> int | None:
        return next((names.index(each) for each in wanted if each in names), None)

    tensors = [
        (index, kind.count("List[")) for index, kind in enumerate(kinds) if "Tensor" in kind and "Optional" not in kind
    ]
    results = [each for each in tensors if names[each[0]].startswith("output")]
    sources = [each for each in tensors if names[each[0]].startswith("input")]
    in_place = [each for each in tensors if each not in results and each not in sources]
    return Operator(
        name=name,
        op=op,
        group=kinds.index(_GROUP),
        inputs=() if op in _NOT_DATA or op == "recv" else (*sources, *in_place),
        outputs=() if op in _NOT_DATA or op == "send" else (*results, *in_place),
        root=place("root_rank"),
        peer=place("dst", "src"),
        tag=place("tag"),
        send_splits=place("input_split_sizes"),
        recv_splits=place("output_split_sizes"),
        async_op=place("async_op"),
        reduces="reduce_op" in names,
    )
