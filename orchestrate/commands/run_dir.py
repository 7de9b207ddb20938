"""How every command that takes a run finds it: by id in the runs directory, or by path."""

from __future__ import annotations

import os
from pathlib import Path

import click

from orchestrate.errors import UsageError
from orchestrate.lifecycle.run_directory import find_run

__all__ = ["RUNS_DIR_OPTION", "default_runs_dir", "locate_run"]


def default_runs_dir() -> Path:
    """The user's own state folder, `$XDG_STATE_HOME/orchestrate/runs`.

    Raises:
        UsageError: it would be in a home folder, and there is none.
    """
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Path(state).expanduser() / "orchestrate" / "runs"
    except RuntimeError as error:
        raise UsageError(
            f"the runs are kept in {state}, but there is no home folder of that user",
            remedy="name the folder of the runs by --runs-dir or ORCHESTRATE_RUNS_DIR, or set HOME",
        ) from error


RUNS_DIR_OPTION = click.option(
    "--runs-dir",
    envvar="ORCHESTRATE_RUNS_DIR",
    type=click.Path(path_type=Path),
    default=default_runs_dir,
    show_default="$XDG_STATE_HOME/orchestrate/runs",
    help="Where the runs are kept.",
)


def locate_run(run: str, runs_dir: Path) -> Path:
    """The run directory that `run` names, for reading: any folder by path, else an id as `find_run` takes it.

    A path need not be a whole run directory: what is missing in it is for the reader to say. Raises
    `RunNotFoundError` when neither is there.
    """
    as_path = Path(run)
    if as_path.is_dir() and (len(as_path.parts) > 1 or run in {".", ".."} or (as_path / "receipts").is_dir()):
        return as_path
    return find_run(runs_dir, run).path
