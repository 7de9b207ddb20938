"""Numeric parity: a parallel, packed forward and backward against one rank that shares nothing.

    torchrun --nproc-per-node 4 -m harness checks --cell 'cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4' [--dtype float64] ...

Every layout of the cell's workload runs on all ranks; rank 0 also runs the workload unsharded and unshared, compares
outputs and LoRA gradients, and prints one JSON object. The exit code is 0 where every layout holds, 1 where one does
not.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.cells import parse_key
from harness.errors import InputError
from harness.model.block import HybridModel, sync_gradients
from harness.model.config import ModelConfig, model_config
from harness.packing import PackedGroup, pack
from harness.parallel import collectives
from harness.parallel.plan import compare_digests, make_plan
from harness.parallel.topology import CollectiveRecorder, Topology
from harness.prefix_tree import Layout, PrefixTree, Row, candidate_family
from harness.workloads import load_rows

__all__ = [
    "CHECK_SCHEMA",
    "DTYPES",
    "LayoutParity",
    "OrderRecorder",
    "Result",
    "check_layouts",
    "compare",
    "main",
    "run_layout",
    "unsharded",
]

CHECK_SCHEMA = "harness.check/1"

DTYPES = {"float64": (torch.float64, 1e-9), "float32": (torch.float32, 1e-4)}
"""Name -> type and the tolerance of its parity: max |a - b| / max |b|, for each tensor.

Not bfloat16: at its precision a wrong shard and an honest rounding can not be told apart.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """Outputs and gradients put together from all ranks.

    `log_probs` (terms,) in the order of `PackedGroup.terms`, which is that of rows and positions for every layout;
    `gradients` whole, by parameter name; `loss` summed over context parallel ranks.
    """

    loss: float
    log_probs: torch.Tensor
    gradients: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class LayoutParity:
    """How far one layout is from the unsharded, unshared result.

    `outputs` and `gradients` are the largest max |a - b| / max |b|, `worst` the parameter that gives the latter.
    `zero_gradients` names the parameters whose reference gradient is all zero: they would agree with anything.
    `same_order` says whether every rank issued the same collectives in the same order, backward included;
    `collectives` is their number on rank 0.
    """

    label: str
    packed_tokens: int
    outputs: float
    gradients: float
    worst: str
    zero_gradients: tuple[str, ...]
    same_order: bool
    collectives: int

    def holds(self, tolerance: float) -> bool:
        """Whether the layout gives the reference within `tolerance`, by gradients that could differ."""
        # Written so that a NaN does not hold.
        close = self.outputs <= tolerance and self.gradients <= tolerance
        return close and self.same_order and not self.zero_gradients


class OrderRecorder:
    """Keeps what each collective was, in order: operation, group, direction and call site.

    `inner`, where given, records too.
    """

    def __init__(self, inner: CollectiveRecorder | None = None) -> None:
        self.calls: list[tuple[str, str, str, str]] = []
        self._inner = inner

    @contextmanager
    def record(self, **facts: Any) -> Iterator[None]:
        """See `CollectiveRecorder`."""
        self.calls.append((facts["op"], facts["group"], facts["direction"], facts["tag"]))
        if self._inner is None:
            yield
        else:
            with self._inner.record(**facts):
                yield


def check_layouts(
    config: ModelConfig,
    topology: Topology,
    recorder: OrderRecorder,
    rows: Sequence[Row],
    *,
    dtype: torch.dtype,
    seed: int = 0,
    compile_backend: str | None = None,
    reference: Result | None = None,
) -> tuple[LayoutParity, ...]:
    """Run every layout of `rows` on all ranks, which all call this; the parities on rank 0, nothing on the others.

    `recorder` is the topology's. `reference` is the result of `unsharded`, computed here on rank 0 where not given.
    """
    tree = PrefixTree.from_rows(rows)
    if reference is None and topology.rank == 0:
        reference = unsharded(config, rows, device=topology.device, dtype=dtype, seed=seed)
    model = HybridModel(config, topology, dtype=dtype, seed=seed, compile_backend=compile_backend)
    parities = []
    for layout in candidate_family(tree):
        packed = pack(rows, tree, layout)
        recorder.calls.clear()
        result, orders = run_layout(model, packed, recorder)
        if reference is not None and topology.rank == 0:
            parities.append(compare(layout.label, len(packed.tokens), result, reference, orders))
    return tuple(parities)


def unsharded(
    config: ModelConfig, rows: Sequence[Row], *, device: torch.device | str, dtype: torch.dtype, seed: int = 0
) -> Result:
    """The reference: this rank alone, no compilation, every row packed for itself."""
    packed = pack(rows, PrefixTree.from_rows(rows), Layout("no_sharing", frozenset()))
    model = HybridModel(config, Topology.single(device), dtype=dtype, seed=seed)
    result, _ = run_layout(model, packed, OrderRecorder())
    return result


def run_layout(
    model: HybridModel, packed: PackedGroup, recorder: OrderRecorder
) -> tuple[Result, list[list[tuple[str, str, str, str]]]]:
    """One forward and backward of `packed` on all ranks of the model, which all call this; the whole result on each.

    Beside it, each rank's calls in `recorder` up to the end of the gradient sums.
    """
    topology = model.topology
    for parameter in model.lora_parameters().values():
        parameter.grad = None
    plan = make_plan(packed, model.config, topology)
    compare_digests(plan, topology)
    decoded = model.decode(plan)
    decoded.loss.backward()  # type: ignore[no-untyped-call]
    sync_gradients(model, topology)
    gradients = {
        name: (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).cpu()
        for name, parameter in model.lora_parameters().items()
    }
    calls = list(recorder.calls)
    own = (plan.terms.index, decoded.log_probs.detach().cpu(), float(decoded.loss.detach()), gradients, calls)
    everyone = collectives.all_gather_object(topology, topology.world, own, tag="checks.results")
    log_probs = torch.full((len(packed.terms),), torch.nan, dtype=decoded.log_probs.dtype)
    for index, values, *_ in everyone:
        log_probs[index] = values
    losses = [loss for _, _, loss, *_ in everyone][:: topology.tp]
    whole = {
        name: _whole([rank[3][name] for rank in everyone], factor.shard_dim, topology.tp)
        for name, factor in model.lora_factors().items()
    }
    return Result(sum(losses), log_probs, whole), [rank[4] for rank in everyone]


def compare(
    label: str, packed_tokens: int, result: Result, reference: Result, orders: Sequence[Sequence[object]]
) -> LayoutParity:
    """The parity of `result`; `orders` are the ranks' calls."""
    errors = {name: _error(result.gradients[name], gradient) for name, gradient in reference.gradients.items()}
    worst = max(errors, key=lambda name: (errors[name] != errors[name], errors[name]))
    return LayoutParity(
        label=label,
        packed_tokens=packed_tokens,
        outputs=_error(result.log_probs, reference.log_probs),
        gradients=errors[worst],
        worst=worst,
        zero_gradients=tuple(name for name, gradient in reference.gradients.items() if not gradient.any()),
        same_order=all(order == orders[0] for order in orders),
        collectives=len(orders[0]),
    )


def main(argv: Sequence[str]) -> int:
    """Check one cell under torchrun; see the module. 0 where it holds, 1 where it does not.

    Raises:
        InputError: an argument is wrong, or the number of ranks is not tp x cp.
    """
    arguments = _parser().parse_args(argv)
    cell = parse_key(arguments.cell)
    config = model_config(cell.model, cell.layers)
    config.refuse_uneven_heads(cell.tp, cell.cp)
    rows = load_rows(cell.workload, cell.group, arguments.corpus, arguments.corpus_sha256)
    dtype, tolerance = DTYPES[arguments.dtype]
    tolerance = tolerance if arguments.tolerance is None else arguments.tolerance
    recorder = OrderRecorder()
    torch.set_num_threads(1)
    with _topology(cell.tp, cell.cp, arguments.device, recorder) as topology:
        backend = arguments.compile_backend
        parities = check_layouts(
            config, topology, recorder, rows, dtype=dtype, seed=arguments.seed, compile_backend=backend
        )
        if topology.rank != 0:
            return 0
    holds = bool(parities) and all(parity.holds(tolerance) for parity in parities)
    facts = {"schema": CHECK_SCHEMA, "cell": cell.key, "dtype": arguments.dtype, "tolerance": tolerance}
    facts |= {"device": arguments.device, "compile_backend": backend, "seed": arguments.seed}
    layouts = [asdict(parity) | {"holds": parity.holds(tolerance)} for parity in parities]
    print(json.dumps(facts | {"holds": holds, "layouts": layouts}), flush=True)
    return 0 if holds else 1


def _whole(parts: Sequence[torch.Tensor], shard_dim: int | None, tp: int) -> torch.Tensor:
    """One tensor from every rank's; ranks that hold the same part must hold the same values."""
    unequal = torch.full_like(parts[0], torch.nan)
    if shard_dim is None:
        return parts[0] if all(torch.equal(part, parts[0]) for part in parts) else unequal
    whole = [torch.cat(list(parts[first : first + tp]), dim=shard_dim) for first in range(0, len(parts), tp)]
    return whole[0] if all(torch.equal(part, whole[0]) for part in whole) else torch.full_like(whole[0], torch.nan)


def _error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Max |a - b| / max |b|; 0 where both are empty or all zero, NaN where a value is missing."""
    if torch.equal(value, reference):
        return 0.0
    value, reference = value.double(), reference.double()
    return float((value - reference).abs().max() / reference.abs().max())


@contextmanager
def _topology(tp: int, cp: int, device: str, recorder: OrderRecorder) -> Iterator[Topology]:
    """The topology under torchrun's environment; a single rank needs none."""
    if "RANK" not in os.environ:
        if tp * cp != 1:
            raise InputError(f"{tp * cp} ranks are needed and none was started", remedy="start it under torchrun")
        yield Topology.single(device)
        return
    place = torch.device(device, int(os.environ["LOCAL_RANK"])) if device == "cuda" else torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Topology.create(tp, cp, place, recorder=recorder)
    finally:
        dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness checks", description="numeric parity of one cell")
    parser.add_argument("--cell", required=True, metavar="KEY", help="workload|model|L<layers>|tp<T>|cp<C>[|g<group>]")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float64")
    parser.add_argument("--tolerance", type=float, help="instead of the dtype's own")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile-backend", help="a backend of torch.compile, default none")
    parser.add_argument("--corpus", type=Path, help="a private corpus")
    parser.add_argument("--corpus-sha256")
    return parser
