"""One rank of the numeric tests: `python ranks.py RANK STORE_FILE OUTPUT_FILE`, four of them, which end together.

All that needs real ranks runs in this one job, for starting torch four times takes longer than any of it. Each part
leaves facts in the output; the tests judge them.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from harness.checks import DTYPES, OrderRecorder, check_layouts, run_layout, unsharded
from harness.model.block import HybridModel
from harness.model.config import model_config
from harness.packing import pack
from harness.parallel import collectives
from harness.parallel.chain import ExchangeChain
from harness.parallel.collectives import CollectiveMismatch
from harness.parallel.plan import PlanMismatch, compare_digests, make_plan
from harness.parallel.topology import Topology
from harness.prefix_tree import PrefixTree, candidate_family
from harness.workloads import load_rows

CONFIG = model_config("tiny-hybrid", 4)

COUNTED = tuple(range(100, 140))

ROWS = {
    "grpo-tiny": load_rows("cal-grpo-tiny", None),
    "hetero-tiny": load_rows("cal-hetero-tiny", None),
    "text g0": load_rows("cal-text", 0),
    "identical rows": (COUNTED[:19], COUNTED[:19], COUNTED[:19]),
    "a row that is a prefix of another": (COUNTED[:21], (*COUNTED[:21], 7, 8, 9), COUNTED[:9], (*COUNTED[:9], 5)),
    # Nested nodes of one or two tokens: a convolution of four taps reaches through three ancestors.
    "segments shorter than the convolution": ((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 9), (1, 2, 3, 8), (1, 2, 7, 7), (1, 6)),
    "fewer tokens than ranks": ((3, 4, 5),),
    "one token": ((3,),),
    "a single row": (COUNTED,),
}
SMOKE = ("grpo-tiny", "hetero-tiny", "text g0")


def main(rank: int, store_file: Path, output: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(store_file), 4)
    facts: dict[str, object] = {"parity": [], "orders": []}
    references: dict[tuple[str, str], object] = {}
    for tp, cp in ((1, 4), (2, 2)):
        with job(store, f"tp{tp}cp{cp}", rank, 4):
            facts["parity"] += parity(tp, cp, references)
            facts["orders"] += model_order(tp, cp)
            if cp == 4:
                facts["faults"] = faults()
                facts["chain"] = chain_order()
    tp, cp = ((1, 2), (2, 1))[rank // 2]
    with job(store, f"tp{tp}cp{cp}", rank % 2, 2):
        facts["parity"] += parity(tp, cp, references)
        facts["orders"] += model_order(tp, cp)
    output.write_text(json.dumps(facts))


@contextmanager
def job(store: dist.FileStore, name: str, rank: int, ranks: int):
    where = dist.PrefixStore(name, store)
    dist.init_process_group("gloo", store=where, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    try:
        yield
    finally:
        dist.destroy_process_group()


def parity(tp: int, cp: int, references: dict[tuple[str, str], object]) -> list[dict[str, object]]:
    """Checked mode is on in float64 and off in float32: neither may need the other."""
    recorder = OrderRecorder()
    checked = Topology.create(tp, cp, "cpu", recorder=recorder)
    found = []
    for name, rows in ROWS.items():
        for dtype in ("float64", "float32") if name in SMOKE else ("float64",):
            topology = replace(checked, checked=dtype == "float64")
            if topology.rank == 0 and (name, dtype) not in references:
                references[name, dtype] = unsharded(CONFIG, rows, device="cpu", dtype=DTYPES[dtype][0])
            reference = references.get((name, dtype)) if topology.rank == 0 else None
            results = check_layouts(CONFIG, topology, recorder, rows, dtype=DTYPES[dtype][0], reference=reference)
            shape = {"rows": name, "tp": tp, "cp": cp, "dtype": dtype}
            found += [shape | asdict(result) | {"holds": result.holds(DTYPES[dtype][1])} for result in results]
    return found


def model_order(tp: int, cp: int) -> list[dict[str, object]]:
    """What every rank issued in one forward and backward of each layout."""
    recorder = OrderRecorder()
    topology = Topology.create(tp, cp, "cpu", recorder=recorder)
    model = HybridModel(CONFIG, topology, dtype=torch.float32)
    found = []
    for name in ("segments shorter than the convolution", "fewer tokens than ranks", "hetero-tiny"):
        tree = PrefixTree.from_rows(ROWS[name])
        for layout in candidate_family(tree):
            recorder.calls.clear()
            _, orders = run_layout(model, pack(ROWS[name], tree, layout), recorder)
            found.append({"rows": name, "label": layout.label, "tp": tp, "cp": cp, "orders": orders})
    return found


def faults() -> dict[str, object]:
    """Rank 2 takes another layout than its peers, with and without the digest."""
    topology = Topology.create(1, 4, "cpu")
    rows = ROWS["grpo-tiny"]
    tree = PrefixTree.from_rows(rows)
    family = candidate_family(tree)
    plan = make_plan(pack(rows, tree, family[2 if topology.rank == 2 else 1]), CONFIG, topology)
    model = HybridModel(CONFIG, topology, dtype=torch.float32)
    peers = collectives.all_gather_object(topology, topology.world, plan.digest, tag="test")
    found: dict[str, object] = {"digests": peers}
    found["digest"] = raised(PlanMismatch, lambda: compare_digests(plan, topology))
    found["checked"] = raised(CollectiveMismatch, lambda: model(plan))
    same = make_plan(pack(rows, tree, family[1]), CONFIG, topology)
    found["agreed digest"] = raised(PlanMismatch, lambda: compare_digests(same, topology))

    def skip_backward() -> None:
        loss = model(same)
        if topology.rank == 1:
            collectives.all_reduce(topology, topology.world, torch.zeros(3), tag="ahead")
        loss.backward()

    found["skipped backward"] = raised(CollectiveMismatch, skip_backward)
    return found


def raised(kind: type[Exception], call) -> dict[str, object] | None:
    try:
        call()
    except kind as error:
        return {"ranks": list(error.ranks), "text": str(error)}
    return None


def chain_order() -> dict[str, object]:
    """Three exchanges that do not depend on each other; each rank's loss uses another part of them.

    Rank 0 uses none, rank 1 the first and third, in that order, rank 2 the third and first, rank 3 all.
    """
    recorder = OrderRecorder()
    topology = Topology.create(1, 4, "cpu", recorder=recorder)
    chain = ExchangeChain(topology)
    leaves = [torch.full((4, 2), float(topology.rank + 1), requires_grad=index != 1) for index in range(3)]
    moved = [
        chain.all_to_all(topology.cp_group, leaf, [1] * 4, [1] * 4, tag=f"exchange {index}")
        for index, leaf in enumerate(leaves)
    ]
    used = ((), (0, 2), (2, 0), (0, 1, 2))[topology.rank]
    loss = torch.zeros(())
    for index in used:
        loss = loss + moved[index].sum() * (topology.rank + 1)
    chain.close(loss).backward()
    gradients = [None if leaf.grad is None else leaf.grad[:, 0].tolist() for leaf in leaves]
    return {"calls": recorder.calls, "gradients": gradients}


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
