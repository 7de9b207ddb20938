"""Hand-made jobs: what each rank does as a list of steps, written in our format or as flight recorder dumps."""

import json
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from harness.trace.format import Flag, TraceWriter
from orchestrate.analysis.trace.answer import make_answer
from orchestrate.analysis.trace.compare import compare
from orchestrate.analysis.trace.folder import open_job


@dataclass(frozen=True)
class Step:
    """One collective of one rank. `done`: True, False (never), or 'raised'."""

    op: str = "all_reduce"
    size: tuple = (8,)
    out: tuple | None = None
    dtype: str = "float32"
    group: str = "world"
    ranks: tuple | None = None
    send: tuple | None = None
    recv: tuple | None = None
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    layout: str | None = None
    forward: int = -1
    phase: str | None = None
    caller: int = 1
    done: object = True
    ends: int = 50  # ns after its start

    def but(self, **changes):
        return replace(self, **changes)


@dataclass
class Writers:
    folder: Path
    world: int
    backend: str = "gloo"
    formats: dict = field(default_factory=dict)

    def own(self, steps_by_rank, *, closed=True, facts=None, gave_up=None):
        for rank, steps in steps_by_rank.items():
            said = {"host": "here", **(facts or {})}
            writer = TraceWriter(self.folder, rank, world_size=self.world, facts=said, chunk_slots=256)
            sequence, channels = {}, {}
            slots = []
            for place, step in enumerate(steps):
                ranks = step.ranks or tuple(range(self.world))
                group = writer.group(step.group, ranks, backend=self.backend)
                p2p = step.op in {"send", "recv"}
                call = writer.signature(
                    op=step.op, input_sizes=[] if step.op == "recv" else [step.size], input_dtypes=[step.dtype],
                    output_sizes=[] if step.op == "send" else [step.out or step.size], output_dtypes=[step.dtype],
                    send_splits=step.send, recv_splits=step.recv, reduce_op=step.reduce_op, root=step.root,
                    peer=step.peer, tag=step.tag, stack=writer.stack([("train.py", step.caller, "step")]),
                )  # fmt: skip
                key = (group, step.op, step.peer) if p2p else group
                counts = channels if p2p else sequence
                number = counts.get(key, 0)
                counts[key] = number + 1
                slot = writer.begin(
                    group, call, sequence=sequence.get(group, 0) if p2p else number, start_ns=1000 + 100 * place,
                    flags=Flag.P2P if p2p else 0, context=writer.context(step.layout, step.phase),
                    forward=step.forward, channel=number if p2p else 0,
                )  # fmt: skip
                slots.append((slot, step, 1000 + 100 * place + step.ends))
            for slot, step, end in slots:
                if step.done:
                    writer.complete(slot, end, raised=step.done == "raised")
            if gave_up:
                writer.give_up(gave_up)
            elif closed:
                writer.close()
        return self.folder

    def uneven(self, op, parts):
        """An all-gather or reduce-scatter of lists whose part `rank` has 2 + rank rows; `parts` are the ranks' own."""
        lists = [(2 + rank,) for rank in range(self.world)]
        for rank, part in parts.items():
            inputs, outputs = ([(part,)], lists) if op == "all_gather" else (lists, [(part,)])
            with_rank = TraceWriter(self.folder, rank, world_size=self.world, facts={}, chunk_slots=256)
            call = with_rank.signature(
                op=op, input_sizes=inputs, input_dtypes=["float32"], output_sizes=outputs, output_dtypes=["float32"],
                stack=with_rank.stack([("train.py", 1, "step")]),
            )  # fmt: skip
            group = with_rank.group("world", tuple(range(self.world)))
            with_rank.complete(with_rank.begin(group, call, sequence=0, start_ns=1000), 1050)
            with_rank.close()
        return self.folder

    def dumps(
        self, steps_by_rank, *, version="2.10", backend="nccl", as_json=False, from_record=None, name="fr_trace_"
    ):
        for rank, steps in steps_by_rank.items():
            dump = self.dump(rank, steps, version=version, backend=backend)
            if from_record:
                dump["entries"] = dump["entries"][from_record.get(rank, 0) :]
            path = self.folder / f"{name}{rank}"
            if as_json:
                path.write_text(json.dumps(dump))
            else:
                path.write_bytes(pickle.dumps(dump, protocol=2))
        return self.folder

    def dump(self, rank, steps, *, version="2.10", backend="nccl"):
        groups, sequence, p2p, entries = {}, {}, {}, []
        for place, step in enumerate(steps):
            ranks = step.ranks or tuple(range(self.world))
            groups[step.group] = {"name": step.group, "desc": "a group", "ranks": str(list(ranks))}
            is_p2p = step.op in {"send", "recv"}
            name = f"{backend}:{step.op}"
            if is_p2p:
                name += f" {ranks.index(rank)}{'->' if step.op == 'send' else '<-'}{ranks.index(step.peer)}"
                p2p[step.group] = p2p.get(step.group, 0) + 1
            else:
                sequence[step.group] = sequence.get(step.group, 0) + 1
            entries.append({
                "frames": [{"name": "step", "filename": "/home/me/train.py", "line": step.caller}],
                "record_id": place, "pg_id": 0, "process_group": (step.group, "a group"),
                "collective_seq_id": sequence.get(step.group, 0), "p2p_seq_id": p2p.get(step.group, 0),
                "op_id": place + 1, "profiling_name": name, "time_created_ns": 1000 + 100 * place,
                "input_sizes": [list(step.size)], "input_dtypes": [_FR[step.dtype]],
                "output_sizes": [list(step.out or step.size)], "output_dtypes": [_FR[step.dtype]],
                "state": "completed" if step.done else "scheduled",
                "time_discovered_started_ns": None, "time_discovered_completed_ns": 1050 + 100 * place,
                "retired": bool(step.done), "timeout_ms": 600000, "is_p2p": is_p2p,
            })  # fmt: skip
        return {"version": version, "pg_config": groups, "pg_status": {}, "entries": entries}


_FR = {"float32": "Float", "bfloat16": "BFloat16", "int64": "Long"}


@pytest.fixture
def step():
    return Step


@pytest.fixture
def writers(tmp_path):
    def make(world=4, name="traces"):
        folder = tmp_path / name
        folder.mkdir()
        return Writers(folder, world)

    return make


@pytest.fixture
def answer():
    def give(folder, **options):
        return make_answer(compare(open_job(folder), **options))

    return give
