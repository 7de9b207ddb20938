"""What every rank did around a disagreement: a second look at the traces, for the picture of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from orchestrate.analysis.trace.findings import Finding
from orchestrate.analysis.trace.folder import Job
from orchestrate.analysis.trace.model import RECORD, Block

__all__ = ["around"]

_BLOCK = 16_384


def around(job: Job, finding: Finding, *, before: int = 8, after: int = 4) -> Mapping[int, Block]:
    """By rank, the last `before` records up to the disagreement, that record, and the `after` next ones, of all groups.

    A rank that has no such record is shown where it was when the first of the others began it.
    """
    found = {}
    for rank, trace in job.traces.items():
        record = finding.records.get(rank)
        kept, wanted = np.zeros(0, RECORD), 0
        for block in trace.blocks(_BLOCK):
            if wanted:
                kept = np.concatenate([kept, block[:wanted]])
                wanted -= min(wanted, len(block))
            else:
                here = block["start"] >= finding.start_ns if record is None else block["ref"] == record["ref"]
                joined = np.concatenate([kept, block])
                if not here.any():
                    kept = joined[-before:]
                    continue
                place = len(kept) + int(np.argmax(here))
                kept = joined[max(0, place - before) : place + after + 1]
                wanted = place + after + 1 - len(joined)
            if wanted <= 0:
                break
        found[rank] = kept
    return found
