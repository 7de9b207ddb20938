"""The run directories that came as an artifact: found by their owner, verified now, believed only that far."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrate.gate.conclusion import Evidence
from orchestrate.receipts.record import RunRecord, load_record
from orchestrate.receipts.signing import PublicKey, SignatureCheck, check_signatures
from orchestrate.receipts.statement import Stage
from orchestrate.receipts.verify import verify_record

__all__ = ["evidence_of", "find_run_of"]

_MAX_RUNS = 1000


def find_run_of(runs_dir: Path, owner: str) -> RunRecord | None:
    """The newest run in a folder that names this owner; None where there is none. Links are not followed."""
    try:
        with os.scandir(runs_dir) as entries:
            names = sorted(
                (entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[:1] != "."),
                reverse=True,
            )
    except OSError:
        return None
    for name in names[:_MAX_RUNS]:
        record = load_record(runs_dir / name)
        if record.plan.get("owner") == owner:
            return record
    return None


def evidence_of(record: RunRecord, *, keys: tuple[PublicKey, ...] = (), reused_from: str | None = None) -> Evidence:
    """A run as evidence, verified now, with the signatures of `keys` where some are required."""
    signatures: SignatureCheck | None = None
    if keys and record.closure is not None:
        signatures = check_signatures(record.run_dir, record.closure.sha256, keys)
    found = verify_record(record, require_passed=False, signatures=signatures)
    source = record.plan.get("source")
    tree = source.get("tree") if isinstance(source, Mapping) else None
    return Evidence(
        found=found,
        closure=record.closure.facts if record.closure else {},
        census=record.stages.get(Stage.CENSUS, {}),
        image=_object(record.stages.get(Stage.RUN, {}).get("image")),
        tree=tree if isinstance(tree, str) else None,
        cells=record.cells,
        reused_from=reused_from,
    )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
