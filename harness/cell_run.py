"""One cell on one rank: process group, model, the family of layouts, and the rows that say what was measured."""

from __future__ import annotations

import gc
import hashlib
import os
from array import array
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo.callback import callback_handler

from harness.admission.cuda import open_probe
from harness.admission.gate import CellGate
from harness.calibrate import Settings
from harness.compile_watch import CompileWatch, DynamoTelemetry, raise_recompile_limit
from harness.cost_table import Facts, automatic, load_tables
from harness.errors import InputError
from harness.evidence import EvidenceFile
from harness.instruments import instruments
from harness.measure import Calibration, CellOutcome, Item, Rules
from harness.model.block import HybridModel
from harness.model.config import ModelConfig, model_config
from harness.packing import pack
from harness.parallel.topology import Topology
from harness.prefix_tree import PrefixTree, Row, candidate_family, equal_labels, features
from harness.preflight import look
from harness.trace.compile_beats import beat_on_compilations
from harness.trace.job_identity import shared_identity
from harness.trace.recorder import Recorder
from harness.trace.watchdog import Heart, Phase
from harness.workloads import load_rows

__all__ = ["run_cell"]

_SEED = 0


def run_cell(
    settings: Settings, heart: Heart, *, rules: Rules | None = None, checked: bool | None = None
) -> CellOutcome:
    """Measure the cell of `settings` as one of its ranks; every rank of the process group calls it.

    `rules` and `checked` (the checked mode of the collectives) are as production has them where they are None.

    Raises:
        InputError: the cell, its corpus or the device is not to be had.
        ValueError: the loss is not finite, or depends on the layout.
        PlanMismatch, CollectiveMismatch: the ranks have parted.
    """
    cell = settings.cell
    device, dtype = _device(settings)
    config = model_config(cell.model, cell.layers)
    config.refuse_uneven_heads(cell.tp, cell.cp)
    rows = load_rows(cell.workload, cell.group, settings.corpus, settings.corpus_sha256)
    raise_recompile_limit()
    beat_on_compilations(callback_handler, heart.compiling)
    timeout = timedelta(seconds=settings.process_group_timeout_s)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    job = shared_identity(dist.distributed_c10d._get_default_store())  # noqa: SLF001 - no public way
    facts = {"torch": torch.__version__, "job": job}
    recorder = Recorder(settings.evidence.parent / "trace", settings.rank, settings.world_size, facts=facts)
    recorder.context(layout=None, forward=None, phase=Phase.LOAD)
    heart.beat(Phase.LOAD)
    topology = Topology.create(cell.tp, cell.cp, device, recorder=recorder, checked=checked)
    backend = "inductor" if device.type == "cuda" else "eager"
    model = HybridModel(config, topology, dtype=dtype, device=device, seed=_SEED, compile_backend=backend)
    items, header = _family(rows, config, settings, _device_name(device), dtype)
    evidence = _evidence(settings) if settings.rank == 0 else None
    if evidence is not None:
        evidence.write("cell", **header)
    # A rank that decides by itself, which only the test of that fault does, has nobody to vote with.
    gate = CellGate(topology, open_probe(device, cell.gpus)) if rules is None or rules.world_wide else None
    calibration = Calibration(
        rows,
        items,
        model,
        topology,
        watch=CompileWatch(DynamoTelemetry()),
        instruments=instruments(device),
        recorder=recorder,
        heart=heart,
        evidence=evidence,
        gate=gate,
        rules=rules,
    )
    gc.collect()
    gc.freeze()  # what is loaded by now lives for ever: no later collection needs to look at it
    gc.enable()
    outcome = _run_to_end_row(calibration, settings, evidence, gate)
    dist.destroy_process_group()
    recorder.close()
    return outcome


def _run_to_end_row(
    calibration: Calibration, settings: Settings, evidence: EvidenceFile | None, gate: CellGate | None
) -> CellOutcome:
    try:
        outcome, reason = calibration.run(settings.repeat, settings.schedule)
    except Exception as error:
        _end(evidence, CellOutcome.ERROR, f"{type(error).__name__}: {error}", gate)
        raise
    _end(evidence, outcome, reason, gate)
    return outcome


def _end(evidence: EvidenceFile | None, outcome: CellOutcome, reason: str, gate: CellGate | None) -> None:
    if evidence is None:
        return
    facts: dict[str, Any] = {}
    if gate is not None:  # a release whose run was refused or failed has no row of its own
        facts["admission"] = {"ledger": gate.account(), "releases": gate.take_records()}
    evidence.write("end", outcome=outcome, rows=evidence.rows, reason=reason, **facts)
    evidence.close()


def _evidence(settings: Settings) -> EvidenceFile:
    try:
        return EvidenceFile(settings.evidence)
    except FileExistsError as error:
        raise InputError(f"{settings.evidence} already exists", remedy="name a new file for the rows") from error


def _device(settings: Settings) -> tuple[torch.device, torch.dtype]:
    if settings.device == "cpu":
        return torch.device("cpu"), torch.float32
    if not torch.cuda.is_available() or settings.local_rank >= torch.cuda.device_count():
        raise InputError(
            f"rank {settings.rank} needs CUDA device {settings.local_rank}, there are {torch.cuda.device_count()}",
            remedy="run it where the GPUs are, or choose a cell of a cpu set",
        )
    device = torch.device("cuda", settings.local_rank)
    torch.cuda.set_device(device)
    return device, torch.bfloat16


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _family(
    rows: Sequence[Row], config: ModelConfig, settings: Settings, device_name: str, dtype: torch.dtype
) -> tuple[tuple[Item, ...], dict[str, Any]]:
    """The layouts to measure, `automatic` last, and the cell row."""
    cell = settings.cell
    tree = PrefixTree.from_rows(rows)
    family = candidate_family(tree)
    shapes = [features(tree, layout) for layout in family]
    items = [Item("candidate", layout, pack(rows, tree, layout).digest) for layout in family]
    picked = automatic(
        shapes,
        Facts(cell.tp, cell.cp, cell.layers, config.gdn_layers),
        load_tables(),
        device_name=device_name,
        hidden=config.hidden,
        dtype=str(dtype),
    )
    chosen = items[picked.index]
    header = {
        "run_id": settings.run_id,
        "cell": cell.key,
        "workload": {
            "name": cell.workload,
            "group": cell.group,
            "rows": len(rows),
            "tokens": sum(len(row) for row in rows),
            "sha256": _rows_sha256(rows),
        },
        "model": {
            "name": config.name,
            "layers": config.layers,
            "gdn_layers": config.gdn_layers,
            "hidden": config.hidden,
            "seed": _SEED,
        },
        "shape": {"tp": cell.tp, "cp": cell.cp, "ep": cell.ep, "world": settings.world_size},
        "device": {"kind": settings.device, "name": device_name},
        "dtype": str(dtype),
        "torch": torch.__version__,
        "fingerprint": settings.fingerprint or _fingerprint(settings),
        "repeat": settings.repeat,
        "schedule": settings.schedule,
        "candidates": [
            {"label": item.layout.label, "layout_sha256": item.sha256, "features": asdict(shape)}
            for item, shape in zip(items, shapes, strict=True)
        ],
        "equal": equal_labels(tree),
        "automatic": {"label": chosen.layout.label, "rule": picked.rule},
    }
    return (*items, Item("automatic", chosen.layout, chosen.sha256)), header


def _fingerprint(settings: Settings) -> str | None:
    """The node's fingerprint, found by the one rank that writes it."""
    if settings.rank != 0:
        return None
    found: str = look(settings.device, settings.world_size, os.environ).facts["fingerprint"]
    return found


def _rows_sha256(rows: Sequence[Row]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(len(row).to_bytes(8, "little") + array("q", row).tobytes())
    return digest.hexdigest()
