"""How a command that reads traces finds them: a folder of traces, or a run and one of its cells."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrate.cells.cell import slug
from orchestrate.commands.run_dir import locate_run
from orchestrate.errors import UsageError
from orchestrate.receipts.attempts import attempt_of_evidence

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
    attempts = sorted(folder.glob("evidence*/cells"), key=lambda path: attempt_of_evidence(f"{path.parent.name}/") or 0)
    if not attempts:
        if cell is not None:
            raise UsageError(f"{folder} is no run, so it has no cell {cell}", remedy="leave --cell out")
        return folder
    # Of a cell that several attempts ran, the newest trace: it is the one that says what went wrong last.
    found = [path for cells in attempts for path in cells.glob("*/trace") if path.is_dir() and any(path.iterdir())]
    places = {path.parent.name: path for path in found}
    traced = sorted(places)
    if not traced:
        raise UsageError(f"no cell of {folder} left a trace", remedy="name the folder of the traces")
    if cell is None and len(traced) > 1:
        raise UsageError(
            f"{len(traced)} cells of {folder} left traces: {', '.join(traced)}", remedy="choose one with --cell"
        )
    chosen = traced[0] if cell is None else cell if cell in traced else slug(cell)
    if chosen not in traced:
        raise UsageError(f"cell {cell} of {folder} left no trace", remedy=f"one of: {', '.join(traced)}")
    return places[chosen]
