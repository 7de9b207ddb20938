"""A rank of a hybrid decoder at CP4 with one fault and no guard: `faulty_rank.py FAULT --evidence FILE ...`.

The guards (the digest of the plan, checked mode) are off, as they would be for a fault that nobody thought of.
"""

import os
import sys
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from harness.evidence import EvidenceFile
from harness.model.block import HybridModel, sync_gradients
from harness.model.config import model_config
from harness.packing import pack
from harness.parallel import collectives
from harness.parallel.collectives import Direction
from harness.parallel.plan import make_plan
from harness.parallel.topology import Topology
from harness.prefix_tree import PrefixTree, candidate_family
from harness.processes import die_with_parent
from harness.trace.recorder import Recorder
from harness.trace.watchdog import Heart, Phase, answer_with_stacks
from harness.workloads import load_rows

CONFIG = model_config("tiny-hybrid", 4)
FORWARDS = 4


def main():
    fault, directory = sys.argv[1], Path(sys.argv[sys.argv.index("--evidence") + 1]).parent
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    die_with_parent()
    answer_with_stacks(directory / "stacks", rank)
    heart = Heart(directory / "trace", rank)
    heart.beat(Phase.LOAD)
    dist.init_process_group("gloo", timeout=timedelta(seconds=200))
    recorder = Recorder(directory / "trace", rank, world, facts={"torch": torch.__version__})
    topology = Topology.create(1, world, "cpu", recorder=recorder, checked=False)
    model = HybridModel(CONFIG, topology, dtype=torch.float32)
    rows = load_rows("cal-grpo-tiny", None)
    tree = PrefixTree.from_rows(rows)
    layouts = candidate_family(tree)
    for forward in range(FORWARDS):
        layout = layouts[forward % len(layouts)]
        recorder.context(layout=layout.label, forward=forward, phase=Phase.MEASURE)
        heart.beat(Phase.MEASURE, candidate=layout.label, round_index=forward, rounds=FORWARDS)
        plan = make_plan(pack(rows, tree, layout), CONFIG, topology)
        step(fault, forward, model, plan, topology)
    recorder.close()
    if rank == 0:
        evidence = EvidenceFile(directory / "rows.jsonl")
        evidence.write("end", outcome="complete", rows=0, reason="")
        evidence.close()
    heart.beat(Phase.DONE)
    dist.destroy_process_group()


def step(fault, forward, model, plan, topology):
    """One forward, backward and sum of the gradients, with the fault where it belongs."""
    with last_backward_exchange_skipped(fault == "skips-backward" and forward == 2 and topology.rank == 1):
        torch.autograd.backward(model(plan))
    if not (fault == "skips-all-reduce" and forward == 1 and topology.rank == 3):
        sync_gradients(model, topology)
    groups = [topology.cp_group, topology.world]
    if fault == "opposite-order" and forward == 2 and topology.rank == 0:
        groups.reverse()
    for group in groups:
        collectives.all_reduce(topology, group, torch.zeros(5), tag=f"statistics.{group.name}")


@contextmanager
def last_backward_exchange_skipped(skipped):
    """In this block the exchange that comes last in the backward, the first of the forward, gives zeros instead."""
    exchange, first = collectives.all_to_all, []

    def all_to_all(topology, group, rows, send, recv, *, tag, direction=Direction.FORWARD):
        first.append(tag)
        if direction is Direction.BACKWARD and tag == first[0]:
            return rows.new_zeros((sum(recv), *rows.shape[1:]))
        return exchange(topology, group, rows, send, recv, tag=tag, direction=direction)

    if skipped:
        collectives.all_to_all = all_to_all
    try:
        yield
    finally:
        collectives.all_to_all = exchange


main()
