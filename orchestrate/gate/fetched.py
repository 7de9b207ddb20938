"""The run directories that came as an artifact: found by their owner, verified now, believed only that far."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrate.gate.asked import targets_of_plan
from orchestrate.gate.change import Change, attempt_of
from orchestrate.gate.conclusion import Classified, Evidence, Reconciled
from orchestrate.gate.records import CLASSIFIED, RECONCILED, as_classified, as_reconciled, read_record
from orchestrate.receipts.record import RunRecord, load_record
from orchestrate.receipts.signing import PublicKey, SignatureCheck, check_signatures
from orchestrate.receipts.statement import Stage
from orchestrate.receipts.verify import verify_record

__all__ = ["earlier_run_of", "evidence_of", "find_run_of"]

_MAX_RUNS = 1000


def find_run_of(runs_dir: Path, change: Change, *, up_to: int | None = None) -> tuple[RunRecord, int] | None:
    """The newest run in a folder whose owner is an attempt of this change's workflow run, and which attempt.

    None where there is none. `up_to` is the last attempt that counts. Links are not followed.
    """
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
        attempt = attempt_of(record.plan.get("owner"), change.repository, change.run)
        if attempt is not None and (up_to is None or attempt <= up_to):
            return record, attempt
    return None


def earlier_run_of(folder: Path, classified: Classified) -> tuple[RunRecord, int, str, Reconciled] | str:
    """The run that an earlier artifact holds for the same change, its attempt, how to cite it, and the look after it.

    Or why there is none.

    It is of the same repository, branch, head and base, was asked for the same, and a fresh machine confirmed then that
    nothing of it was left. Whether its receipts hold is for whoever reads them.
    """
    before = as_classified(read_record(folder / "records" / CLASSIFIED, "classified"))
    if before is None:
        return "the earlier artifact has no record of what it tested"
    ours, theirs = classified.change, before.change
    for name in ("repository", "branch", "head", "base"):
        if getattr(ours, name) != getattr(theirs, name):
            return f"the earlier run is of another {name}"
    if classified.launch is None or before.launch != classified.launch:
        return "the earlier run was not asked for the same"
    found = find_run_of(folder / "runs", theirs)
    if found is None:
        return "the earlier artifact has no run of its own"
    record, attempt = found
    looked = as_reconciled(read_record(folder / "records" / RECONCILED, "reconciled"), theirs)
    if looked is None or not looked.confirmed or looked.attempt < attempt:
        return "nobody confirmed that nothing of the earlier run was left"
    return record, attempt, f"workflow run {theirs.run}, attempt {attempt}", looked


def evidence_of(
    record: RunRecord,
    attempt: int,
    *,
    keys: tuple[PublicKey, ...] = (),
    reused_from: str | None = None,
    earlier_look: Reconciled | None = None,
) -> Evidence:
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
        attempt=attempt,
        targets=targets_of_plan(record.plan, record.stages.get(Stage.ADMIT, {})),
        ended_at=record.closure.ended_at if record.closure else None,
        ran=Stage.RUN in record.stages,
        reused_from=reused_from,
        earlier_look=earlier_look,
    )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
