"""Operations by one name, and what they mean: what each moves, and which none leaves before all have entered."""

from __future__ import annotations

from math import prod

from orchestrate.analysis.trace.model import Call

__all__ = ["canonical_dtype", "canonical_op", "describe", "flight_recorder_dtype", "needs_everybody", "numel", "rows"]

_OPS = {
    "_all_gather_base": "all_gather_single",
    "all_gather_into_tensor": "all_gather_single",
    "all_gather_into_tensor_coalesced": "all_gather_coalesced",
    "ALLGATHER_coalesced": "all_gather_coalesced",
    "_allgather_base": "all_gather_single",
    "allgather": "all_gather",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_coalesced",
    "REDUCE_SCATTER_coalesced": "reduce_scatter_coalesced",
    "all_to_all_v_single": "all_to_all_single",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_reduce_barrier": "barrier",
    "monitored_barrier": "barrier",
}
_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
}  # fmt: skip
_FLIGHT_RECORDER_DTYPES = {ours: theirs for theirs, ours in _DTYPES.items()}
_EVERYBODY = {
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_single", "all_gather_coalesced",
    "all_gather_object", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_coalesced", "all_to_all",
    "all_to_all_single", "barrier",
}  # fmt: skip


def canonical_op(name: str) -> str:
    """One name for an operation, whatever version of torch named it."""
    return _OPS.get(name, name)


def canonical_dtype(name: str) -> str:
    """The name that torch gives a dtype, for the flight recorder's; without `torch.`."""
    return _DTYPES.get(name, name.removeprefix("torch."))


def flight_recorder_dtype(name: str) -> str:
    """The flight recorder's name of a dtype."""
    return _FLIGHT_RECORDER_DTYPES.get(name, name)


def needs_everybody(op: str) -> bool:
    """Whether no rank's part of `op` can complete unless every rank of the group has joined."""
    return op in _EVERYBODY


def numel(sizes: tuple[tuple[int, ...], ...]) -> int:
    """Elements of all tensors of these sizes."""
    return sum(prod(size) for size in sizes)


def rows(call: Call, ranks: int, *, sent: bool) -> tuple[int, ...] | None:
    """What `call` sends to, or expects from, each rank of the group; None where it does not say.

    Rows (dimension 0) for `all_to_all_single`, elements for `all_to_all`, whose parts are tensors of any shape.
    """
    splits, sizes = (call.send_splits, call.input_sizes) if sent else (call.recv_splits, call.output_sizes)
    if splits is not None:
        return splits
    if len(sizes) == ranks and ranks > 1:
        return tuple(map(prod, sizes))
    if call.even and len(sizes) == 1 and sizes[0]:
        return (sizes[0][0] // ranks,) * ranks
    return None


def describe(call: Call) -> str:
    """One call in few words: `all_to_all_single of 7,216 x 64 bfloat16`."""
    sizes = call.input_sizes or call.output_sizes
    words = call.op
    if sizes and any(sizes):
        words += " of " + ", ".join(" x ".join(f"{n:,}" for n in size) or "a scalar" for size in sizes[:4])
        words += f" and {len(sizes) - 4} more" if len(sizes) > 4 else ""
    dtypes = call.input_dtypes or call.output_dtypes
    words += f" {dtypes[0]}" if dtypes else ""
    words += f", {call.reduce_op}" if call.reduce_op else ""
    words += f", root {call.root}" if call.root is not None else ""
    return words
