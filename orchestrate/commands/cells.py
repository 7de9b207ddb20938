"""`orchestrate cells`: list, show and check the cell sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from orchestrate.cells.cell import Cell
from orchestrate.cells.cell_set import SETS_DIR, CellSet, Selection, load_cell_sets, set_names
from orchestrate.cells.check import Disagreement, check_sets, check_templates
from orchestrate.cells.manifest import load_manifest
from orchestrate.commands.selection import cell_selection_options, selected
from orchestrate.errors import OrchestrateError, UsageError
from orchestrate.render.templates import Backend, templates_dir

__all__ = ["command", "disagreements"]

_HARNESS_LIMIT_S = 120

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(no_args_is_help=True)
def command() -> None:
    """List, show and check the cell sets.

    A cell set is chosen by --cell-set or CELL_SET, its groups by --groups or the set's own group variable
    (ELLAVOX_GROUPS, TEXT_GROUPS). An option wins over the environment.

    \b
    Example:
      orchestrate cells list
      orchestrate cells show --cell-set ellavox --groups 1,4
      CELL_SET=ellavox ELLAVOX_GROUPS="1 4" orchestrate cells list --json
      orchestrate cells check
    """


@command.command("list")
@cell_selection_options
@_json_option
def list_cells(cell_set: str | None, groups: str | None, *, as_json: bool) -> int:
    """List the cell sets, or the cells of the selected one.

    \b
    Example:
      orchestrate cells list
      orchestrate cells list --cell-set ellavox --groups 1,4
    """
    selection = _selection(cell_set, groups)
    if as_json:
        chosen = [(one, one.cells) for one in load_cell_sets()] if selection is None else [_chosen(selection)]
        _print_json({"cell_sets": [_set_as_json(one, cells) for one, cells in chosen]})
    elif selection is None:
        click.echo("\n".join(_set_lines(load_cell_sets())))
    else:
        click.echo("\n".join(cell.key for cell in selection.cells))
    return 0


@command.command("show")
@cell_selection_options
@_json_option
def show_cells(cell_set: str | None, groups: str | None, *, as_json: bool) -> int:
    """Show the selected cells: shape, GPUs, and the candidates that each must measure.

    \b
    Example:
      orchestrate cells show --cell-set smoke
    """
    selection = selected(cell_set, groups)
    keys = [cell.key for cell in selection.cells]
    candidates = load_manifest().candidates(selection.cell_set.name, keys)
    if as_json:
        cells = [_cell_as_json(cell, candidates[cell.key]) for cell in selection.cells]
        excluded = [{"key": cell.key, "reason": reason} for cell, reason in selection.excluded]
        chosen = _set_as_json(*_chosen(selection))
        _print_json({**chosen, "cells": cells, "excluded": excluded, "notes": list(selection.notes)})
        return 0
    one = selection.cell_set
    click.echo(f"{one.name}: {_count(len(keys), 'cell')} on {one.device}, up to {one.gpus} {_devices(one)} each")
    for cell in selection.cells:
        labels = candidates[cell.key]
        click.echo(f"\n{cell.key}\n  tp {cell.tp}, cp {cell.cp}: {cell.gpus} {_devices(one)}; evidence in {cell.slug}")
        click.echo(f"  candidates: {'known to the private corpus alone' if labels is None else ', '.join(labels)}")
    return 0


@command.command("check")
@cell_selection_options
@_json_option
def check_cells(cell_set: str | None, groups: str | None, *, as_json: bool) -> int:
    """Check sets, manifest, workloads and templates against each other: exit 0 when they hold, 1 when not.

    With a set selected, only that set is checked (whole: its groups stand or fall together).

    \b
    Example:
      orchestrate cells check
    """
    selection = _selection(cell_set, groups)
    only = None if selection is None else [selection.cell_set.name]
    found = disagreements(only=only)
    names = list(set_names()) if only is None else only
    if as_json:
        problems = [{"place": one.place, "what": one.what} for one in found]
        _print_json({"holds": not found, "cell_sets": names, "disagreements": problems})
    else:
        for one in found:
            click.echo(f"{one.place}: {one.what}")
        held = f"{_count(len(found), 'disagreement')} in" if found else "sets, manifest, workloads and templates agree:"
        click.echo(f"{held} {', '.join(names)}")
    return 1 if found else 0


def disagreements(*, only: Sequence[str] | None = None, root: Path | None = None) -> list[Disagreement]:
    """Whatever disagrees among sets, manifest, workloads and templates.

    `only` narrows it to these sets. `root` is the folder that holds `harness`, and beside it the templates `sky` and
    `k8s`; None is this installation.
    """
    sets_dir = SETS_DIR if root is None else root / "harness" / "sets"
    layouts, refused = _layouts(sets_dir.parents[1])
    found = refused + check_sets(layouts, only=only, sets_dir=sets_dir)
    texts: dict[str, str] = {}
    for backend in Backend:
        try:
            folder = templates_dir(backend) if root is None else root / backend.value
        except OrchestrateError as error:
            found.append(Disagreement(backend.value, error.cause))
            continue
        paths = sorted(folder.glob("*.yaml"))
        if not paths:
            found.append(Disagreement(f"{backend.value}/", "has no template"))
        for path in paths:
            place = f"{backend.value}/{path.name}"
            try:
                texts[place] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                found.append(Disagreement(place, f"not UTF-8 at byte {error.start}"))
            except OSError as error:
                found.append(Disagreement(place, f"can not be read: {error.strerror}"))
    try:
        sets = [one for one in load_cell_sets(sets_dir) if only is None or one.name in only]
    except UsageError:
        return found  # named by check_sets
    return found + check_templates(texts, sets, set_names(sets_dir))


def _layouts(root: Path) -> tuple[dict[str, Any] | None, list[Disagreement]]:
    """What the harness in `root` says of its workloads, in a process of its own: the two never import each other."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    argv = [sys.executable, "-m", "harness", "layouts", "--all"]
    try:
        done = subprocess.run(
            argv, cwd=root, env=environment, capture_output=True, text=True, timeout=_HARNESS_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, [Disagreement("harness", f"did not answer within {_HARNESS_LIMIT_S} s")]
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        lines = [line for line in said if line.startswith("error: ")] or said[-1:]
        return None, [Disagreement("harness", f"refuses its own workloads: {lines[0].removeprefix('error: ')}")]
    document: dict[str, Any] = json.loads(done.stdout)
    return document, []


def _selection(cell_set: str | None, groups: str | None) -> Selection | None:
    """The selection, or None where nothing selects: then all sets stand."""
    if cell_set is None and groups is None and "CELL_SET" not in os.environ:
        return None
    return selected(cell_set, groups)


def _chosen(selection: Selection) -> tuple[CellSet, tuple[Cell, ...]]:
    return selection.cell_set, selection.cells


def _set_as_json(cell_set: CellSet, cells: Sequence[Cell]) -> dict[str, object]:
    return {
        "name": cell_set.name,
        "device": cell_set.device,
        "group_variable": cell_set.group_variable,
        "groups": sorted({cell.group for cell in cells if cell.group is not None}),
        "gpus": max(cell.gpus for cell in cells),
        "cells": [cell.key for cell in cells],
    }


def _cell_as_json(cell: Cell, candidates: Sequence[str] | None) -> dict[str, object]:
    return {
        "key": cell.key,
        "slug": cell.slug,
        "workload": cell.workload,
        "model": cell.model,
        "layers": cell.layers,
        "tp": cell.tp,
        "cp": cell.cp,
        "ep": cell.ep,
        "group": cell.group,
        "gpus": cell.gpus,
        "candidates": candidates,
    }


def _set_lines(cell_sets: Sequence[CellSet]) -> Iterator[str]:
    yield f"{'set':<10}{'device':<8}{'cells':>5}  {'ranks a cell':<14}group variable"
    for one in cell_sets:
        groups = f"{one.group_variable} ({' '.join(str(group) for group in one.groups)})" if one.group_variable else "-"
        yield f"{one.name:<10}{one.device:<8}{len(one.cells):>5}  {one.gpus:<14}{groups}"


def _devices(cell_set: CellSet) -> str:
    return "ranks" if cell_set.device == "cpu" else "GPUs"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _print_json(document: object) -> None:
    click.echo(json.dumps(document, sort_keys=True))
