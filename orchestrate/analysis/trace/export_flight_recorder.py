"""Traces written as flight recorder dumps, so that `torchfrtrace` can read what we recorded, and we can read it back.

Names of operations, shapes of gathered results and states are those that NCCL's dumps have: the analyser knows no
others. A message goes to a group of its two ranks: in a larger group the analyser would miss all the others. What the
flight recorder has no field for (splits, root, reduce op, layout, forward) stands in a field of its own, `orchestrate`,
which the analyser passes over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod
from typing import Any

import numpy as np

from orchestrate.analysis.trace.calls import flight_recorder_dtype
from orchestrate.analysis.trace.folder import Job
from orchestrate.analysis.trace.model import Call, Context, Group, Interned, RankTrace, State

__all__ = ["VERSION", "dumps_of"]

VERSION = "2.10"
_BLOCK = 65_536
_STUCK = {State.PENDING, State.WAITING, State.RAISED}
_OPS = {
    "all_gather_single": "_all_gather_base",
    "all_gather_coalesced": "all_gather_into_tensor_coalesced",
    "all_gather_object": "all_gather",
    "all_reduce_coalesced": "allreduce_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "all_to_all",
}
_KNOWN = {
    "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "barrier",
    *_OPS.values(),
}  # fmt: skip
"""What the analyser knows; it ends with an error on anything else, which is written as a barrier."""


def dumps_of(job: Job) -> Iterator[tuple[int, dict[str, Any]]]:
    """(rank, dump) for every trace that can be read. Messages to a rank that receives from anyone are left out.

    Whose messages such a rank received is not known, and the analyser has no notion of it.
    """
    for trace in job.traces.values():
        for _ in trace.blocks(_BLOCK):
            pass  # until every group is known
    pairs = [(group.name, group.pair) for group in job.interned.groups.items if group.pair is not None]
    anyone = {(name, receiver) for name, (sender, receiver) in pairs if sender < 0}
    for rank, trace in job.traces.items():
        if trace.format != "unreadable":
            yield rank, _dump_of(job, trace, anyone)


def _dump_of(job: Job, trace: RankTrace, anyone: Collection[tuple[str, int]]) -> dict[str, Any]:
    made = _Dump(job, trace, anyone)
    for block in trace.blocks(_BLOCK):
        for record in block:
            made.add(record)
    return {
        "version": VERSION,
        "comm_lib_version": "",
        "pg_config": made.config,
        "pg_status": {},
        "entries": made.entries,
    }


class _Dump:
    def __init__(self, job: Job, trace: RankTrace, anyone: Collection[tuple[str, int]]) -> None:
        self.entries: list[dict[str, Any]] = []
        self.config: dict[str, dict[str, str]] = {}
        self._job = job
        self._trace = trace
        self._anyone = anyone
        self._interned: Interned = job.interned
        self._names: dict[int, tuple[str, Group, tuple[int, ...]]] = {}
        self._stacks: dict[int, list[dict[str, Any]]] = {}

    def add(self, record: np.void) -> None:
        """Take one record."""
        group = self._interned.groups[int(record["group"])]
        if group.pair is not None and (group.name, group.pair[1]) in self._anyone:
            return
        name, group, ranks = self._named(int(record["group"]))
        call = self._interned.calls[int(record["call"])]
        place = len(self.entries)
        inputs, outputs = _sizes(call, len(ranks))
        state = State(int(record["state"]))
        sequence = _sequence(record, group)
        # A stream that lost its start keeps its numbers: the first one tells that something is missing.
        number = int(record["ref"]) if self._trace.starts_late else place
        self.entries.append({
            "frames": self._frames(record),
            "record_id": number,
            "pg_id": int(record["group"]),
            "process_group": (name, group.desc or "undefined"),
            "collective_seq_id": sequence,
            "p2p_seq_id": sequence if group.pair is not None else 0,
            "op_id": number + 1,
            "profiling_name": f"nccl:{_operation(call, group, ranks)}",
            "time_created_ns": int(record["start"]),
            "input_sizes": inputs,
            "input_dtypes": [flight_recorder_dtype(dtype) for dtype in call.input_dtypes],
            "output_sizes": outputs,
            "output_dtypes": [flight_recorder_dtype(dtype) for dtype in call.output_dtypes],
            "state": "scheduled" if state in _STUCK else "completed",
            "time_discovered_started_ns": int(record["start"]),
            "time_discovered_completed_ns": int(record["end"]) or None,
            "retired": state not in _STUCK,
            "timeout_ms": 0,
            "is_p2p": group.pair is not None,
            "orchestrate": _extra(call, self._interned.contexts[int(record["context"])], int(record["forward"]), state),
        })  # fmt: skip
        if _OPS.get(call.op, call.op) not in _KNOWN and group.pair is None:
            self.entries[-1] |= {"profiling_name": "nccl:barrier", "input_sizes": [], "output_sizes": []}
        if call.op == "all_gather_object":  # its sizes are not known, but the analyser divides by them
            dtypes = {"input_dtypes": ["Byte"], "output_dtypes": ["Byte"]}
            self.entries[-1] |= {"input_sizes": [[1]], "output_sizes": [[len(ranks)]], **dtypes}

    def _named(self, number: int) -> tuple[str, Group, tuple[int, ...]]:
        known = self._names.get(number)
        if known is not None:
            return known
        group = self._interned.groups[number]
        if group.pair is not None:
            ranks = tuple(sorted(set(group.pair)))
            name = f"{group.name} messages {'-'.join(map(str, ranks))}" + (f" tag {group.tag}" if group.tag else "")
        else:
            ranks = group.ranks or self._users(group)
            name = group.name
        while name in self.config and self.config[name]["ranks"] != str(list(ranks)):
            name += "'"  # the same name for other ranks: another group
        self.config[name] = {"name": name, "desc": group.desc or "undefined", "ranks": str(list(ranks))}
        self._names[number] = name, group, ranks
        return self._names[number]

    def _users(self, group: Group) -> tuple[int, ...]:
        """The ranks of a group that the trace does not list: all for the default group, else those that use it."""
        if group.desc == "default_pg":
            return tuple(self._job.traces)
        groups = self._interned.groups
        return tuple(
            rank
            for rank, trace in self._job.traces.items()
            if any(groups[number].name == group.name and groups[number].ranks is None for number in trace.groups)
        )

    def _frames(self, record: np.void) -> list[dict[str, Any]]:
        local = int(record["local"])
        if local not in self._stacks:
            self._stacks[local] = [
                {"name": frame.function, "filename": frame.file, "line": frame.line}
                for frame in self._trace.frames(record)
            ]
        return self._stacks[local]


def _operation(call: Call, group: Group, ranks: tuple[int, ...]) -> str:
    if group.pair is None:
        return _OPS.get(call.op, call.op)
    sender, receiver = (ranks.index(rank) for rank in group.pair)
    return f"send {sender}->{receiver}" if call.op == "send" else f"recv {receiver}<-{sender}"


def _sequence(record: np.void, group: Group) -> int:
    """From 1 on; both ways between two ranks share one count of numbers, so that no two messages have the same."""
    key = int(record["key"])
    if group.pair is None:
        return (key >> 12) + 1
    return 2 * key + (group.pair[0] > group.pair[1]) + 1


def _sizes(call: Call, ranks: int) -> tuple[list[list[int]], list[list[int]]]:
    """Sizes as NCCL's dumps have them: the parts of a list, if equal, are one tensor with the ranks in front."""
    inputs, outputs = [list(size) for size in call.input_sizes], [list(size) for size in call.output_sizes]
    if call.op == "all_to_all":  # no lists of sizes are compared, only the elements of the first tensor
        return [[sum(map(prod, inputs))]], [[sum(map(prod, outputs))]]
    if call.op in {"send", "recv"}:
        size = inputs or outputs
        return size, size
    return _joined(inputs, ranks), _joined(outputs, ranks)


def _joined(sizes: list[list[int]], ranks: int) -> list[list[int]]:
    if len(sizes) == ranks > 1 and all(size == sizes[0] for size in sizes):
        return [[ranks, *sizes[0]]]
    return sizes


def _extra(call: Call, context: Context, forward: int, state: State) -> dict[str, Any]:
    return {
        "op": call.op,
        "send_splits": None if call.send_splits is None else list(call.send_splits),
        "recv_splits": None if call.recv_splits is None else list(call.recv_splits),
        "reduce_op": call.reduce_op,
        "root": call.root,
        "peer": call.peer,
        "even": call.even,
        "layout": context.layout,
        "phase": context.phase,
        "backward": context.backward,
        "tag": context.tag,
        "forward": forward,
        "state": state.name,
    }
