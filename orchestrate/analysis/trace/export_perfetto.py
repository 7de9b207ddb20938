"""Traces as events of the Chrome trace format, which Perfetto and `chrome://tracing` open.

A process of the picture is a rank, a thread one of its groups; each record is a slice with its sizes as arguments. What
never completed lasts to the end of the picture. The first disagreement, if there is one, is marked on each rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from orchestrate.analysis.trace.calls import describe
from orchestrate.analysis.trace.findings import Finding
from orchestrate.analysis.trace.folder import Job
from orchestrate.analysis.trace.model import State

__all__ = ["perfetto_json"]

_BLOCK = 16_384


def perfetto_json(job: Job, finding: Finding | None) -> Iterator[str]:
    """The file, piece by piece: one JSON object with `traceEvents`, times in microseconds."""
    last_ns = 0
    for trace in job.traces.values():
        for block in trace.blocks(_BLOCK):
            last_ns = max(last_ns, int(block["end"].max(initial=0)), int(block["start"].max(initial=0)))
    yield '{"displayTimeUnit": "ns", "traceEvents": ['
    separator = "\n"
    for event in _events(job, finding, last_ns):
        yield separator + json.dumps(event)
        separator = ",\n"
    yield "\n]}\n"


def _events(job: Job, finding: Finding | None, last_ns: int) -> Iterator[dict[str, Any]]:
    for rank, trace in job.traces.items():
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        named: set[int] = set()
        for block in trace.blocks(_BLOCK):
            for record in block:
                group = int(record["group"])
                if group not in named:
                    named.add(group)
                    name = str(job.interned.groups[group])
                    yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": group, "args": {"name": name}}
                yield _slice(job, rank, record, last_ns)
        marked = None if finding is None else finding.records.get(rank)
        if finding is not None and marked is not None:
            yield {
                "ph": "i", "s": "p", "name": f"first disagreement: {finding.kind.value}", "pid": rank,
                "tid": int(marked["group"]), "ts": int(marked["start"]) / 1000,
            }  # fmt: skip


def _slice(job: Job, rank: int, record: np.void, last_ns: int) -> dict[str, Any]:
    call, context = job.interned.calls[int(record["call"])], job.interned.contexts[int(record["context"])]
    start, end = int(record["start"]), int(record["end"])
    state = State(int(record["state"]))
    arguments = {
        "call": describe(call),
        "sequence": int(record["key"]) if record["p2p"] else int(record["key"]) >> 12,
        "send_splits": call.send_splits,
        "recv_splits": call.recv_splits,
        "layout": context.layout,
        "phase": context.phase,
        "forward": int(record["forward"]) if record["forward"] >= 0 else None,
        "state": state.name.lower(),
    }
    stuck = state in {State.PENDING, State.WAITING, State.RAISED} and not end
    return {
        "ph": "X",
        "name": call.op,
        "cat": "backward" if context.backward else "forward",
        "pid": rank,
        "tid": int(record["group"]),
        "ts": start / 1000,
        "dur": max((last_ns if stuck else end) - start, 0) / 1000,
        "args": {name: value for name, value in arguments.items() if value is not None},
    }
