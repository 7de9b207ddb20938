"""What the traces of a hung cell say: the first collective in which its ranks disagree, in one line."""

from __future__ import annotations

from pathlib import Path

from orchestrate.cells.cell import slug

__all__ = ["first_divergence"]

_MOST_CHARACTERS = 400


def first_divergence(evidence: Path, key: str) -> str:
    """The answer of `orchestrate trace diff` about the cell `key`, in words; why there is none otherwise."""
    folder = evidence / "cells" / slug(key) / "trace"
    if not folder.is_dir():
        return "no trace was left"
    # Only a hung cell needs them, and numpy is slow to import.
    from orchestrate.analysis.trace.answer import make_answer  # noqa: PLC0415
    from orchestrate.analysis.trace.compare import compare  # noqa: PLC0415
    from orchestrate.analysis.trace.folder import open_job  # noqa: PLC0415

    try:
        said = make_answer(compare(open_job(folder))).summary
    except Exception as error:  # noqa: BLE001  # whatever a damaged trace does to the comparison, a run has to be closed
        said = f"its traces can not be compared: {error}"
    return said[:_MOST_CHARACTERS]
