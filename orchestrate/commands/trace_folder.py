"""How a command that reads traces finds them: a folder of traces, or a run and one of its cells."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrate.cells.cell import slug
from orchestrate.commands.run_dir import locate_run
from orchestrate.errors import UsageError

__all__ = ["CELL_OPTION", "PREFIX_OPTION", "trace_folder"]

CELL_OPTION = click.option("--cell", metavar="KEY", help="The cell of the run, where it has several with traces.")
PREFIX_OPTION = click.option(
    "--prefix", metavar="TEXT", help="Only files whose names begin so: where several dumps of a rank are in the folder."
)


def trace_folder(named: str, runs_dir: Path, cell: str | None) -> Path:
    """The folder of traces that `named` means: itself, or that of a run's cell.

    Raises:
        UsageError: there is none, or the run has several cells with traces and `cell` names none of them.
    """
    folder = Path(named)
    if not folder.is_dir():
        folder = locate_run(named, runs_dir)
    cells = folder / "evidence" / "cells"
    if not cells.is_dir():
        if cell is not None:
            raise UsageError(f"{folder} is no run, so it has no cell {cell}", remedy="leave --cell out")
        return folder
    traced = sorted(path.parent.name for path in cells.glob("*/trace") if path.is_dir() and any(path.iterdir()))
    if not traced:
        raise UsageError(f"no cell of {folder} left a trace", remedy="name the folder of the traces")
    if cell is None and len(traced) > 1:
        raise UsageError(
            f"{len(traced)} cells of {folder} left traces: {', '.join(traced)}", remedy="choose one with --cell"
        )
    chosen = traced[0] if cell is None else cell if cell in traced else slug(cell)
    if chosen not in traced:
        raise UsageError(f"cell {cell} of {folder} left no trace", remedy=f"one of: {', '.join(traced)}")
    return cells / chosen / "trace"
