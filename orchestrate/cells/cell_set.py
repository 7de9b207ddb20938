"""Cell sets, and the cells that options and environment select from them.

The sets are data of the harness, read from its folder. `harness/cells.py` gives the same answers and the same errors
on the node, which has no orchestrate; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from orchestrate.cells.cell import Cell, parse_key
from orchestrate.cells.documents import Place, read_json
from orchestrate.errors import SelectionError, UsageError

__all__ = [
    "CELL_SET_SCHEMA",
    "MANIFEST_SCHEMA",
    "SETS_DIR",
    "CellSet",
    "Selection",
    "load_cell_set",
    "load_cell_sets",
    "load_exclusions",
    "parse_cell",
    "read_exclusions",
    "select",
    "set_names",
]

SETS_DIR = Path(__file__).parents[2] / "harness" / "sets"
"""Where the harness keeps its sets: beside this package, in a checkout as in an installation."""

CELL_SET_SCHEMA = "orchestrate.cell-set/1"
MANIFEST_SCHEMA = "orchestrate.manifest/1"

_NOT_A_SET = ("manifest", "workloads")


@dataclass(frozen=True, slots=True)
class CellSet:
    """A named list of cells for one kind of device. `group_variable` selects among its cells that have a group."""

    name: str
    device: str
    group_variable: str | None
    cells: tuple[Cell, ...]

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups of its corpus cells, ascending."""
        return tuple(sorted({cell.group for cell in self.cells if cell.group is not None}))

    @property
    def gpus(self) -> int:
        """GPUs, or ranks on a CPU, that its largest cell takes."""
        return max(cell.gpus for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Selection:
    """The cells to run, in the order of their set.

    `groups` are the groups that were selected, None where none were and all stand. `excluded` are selected cells that
    the manifest leaves out, each with its reason. `notes` are what a person must be told about how this came about.
    """

    cell_set: CellSet
    groups: tuple[int, ...] | None
    cells: tuple[Cell, ...]
    excluded: tuple[tuple[Cell, str], ...]
    notes: tuple[str, ...]

    @property
    def node_environment(self) -> dict[str, str]:
        """`CELL_SET` and, where groups were selected, the set's group variable: what makes the node select the same."""
        environment = {"CELL_SET": self.cell_set.name}
        if self.groups is not None and self.cell_set.group_variable is not None:
            environment[self.cell_set.group_variable] = " ".join(str(group) for group in self.groups)
        return environment


def select(
    cell_set: str | None,
    groups_text: str | None,
    env: Mapping[str, str],
    *,
    default: str | None = None,
    sets_dir: Path = SETS_DIR,
) -> Selection:
    """The cells that options and environment select.

    `cell_set` and `groups_text` are the options, None where they were not given; what is None comes from `env`:
    `CELL_SET`, and the set's own group variable (`"1 4"` and `"1,4"` are both two groups). An option wins over the
    environment, and a note says so. `default` is the set where nothing names one. Without a group selection all cells
    stand. A group selection keeps the corpus cells of these groups and all cells that have no group.

    Raises:
        SelectionError: no set or an unknown one, an unknown, duplicate or malformed group, an empty selection, or a
            group selection where the set has none, also through the variable of another set. It lists what exists.
        UsageError: a damaged set or manifest.
    """
    chosen, notes = _choose_set(cell_set, env, default, sets_dir)
    text, source = _choose_groups(chosen, groups_text, env, sets_dir, notes)
    groups = None if text is None else _parse_groups(chosen, text, source)
    apart = sum(cell.group is None for cell in chosen.cells)
    if groups is not None and apart:
        what = f"the {apart} cells of set {chosen.name!r} without a group stay"
        notes.append(f"{source} selects among the corpus cells; {what}")
    wanted = [cell for cell in chosen.cells if groups is None or cell.group is None or cell.group in groups]
    reasons = load_exclusions(sets_dir)
    excluded = tuple((cell, reasons[cell.key]) for cell in wanted if cell.key in reasons)
    cells = tuple(cell for cell in wanted if cell.key not in reasons)
    if not cells:
        raise SelectionError(
            f"every selected cell of set {chosen.name!r} is excluded by the manifest",
            remedy="select other groups or another set",
        )
    return Selection(chosen, groups, cells, excluded, tuple(notes))


def set_names(sets_dir: Path = SETS_DIR) -> tuple[str, ...]:
    """The names of all cell sets, ascending."""
    return tuple(sorted(path.stem for path in sets_dir.glob("*.json") if path.stem not in _NOT_A_SET))


def load_cell_sets(sets_dir: Path = SETS_DIR) -> tuple[CellSet, ...]:
    """All cell sets by ascending name; `UsageError` names file and place where one is damaged."""
    return tuple(load_cell_set(name, sets_dir) for name in set_names(sets_dir))


def load_cell_set(name: str, sets_dir: Path = SETS_DIR) -> CellSet:
    """The cell set `name`.

    Raises:
        SelectionError: there is none; it lists those that exist.
        UsageError: its file is damaged; it names file and place.
    """
    known = set_names(sets_dir)
    if name not in known:
        raise SelectionError(f"no cell set {name!r}", remedy=f"choose one of {', '.join(known)}")
    return _cell_set(name, read_json(sets_dir / f"{name}.json"))


def load_exclusions(sets_dir: Path = SETS_DIR) -> dict[str, str]:
    """The cell keys that the manifest beside the sets leaves out, each with its reason."""
    return read_exclusions(sets_dir / "manifest.json")


def read_exclusions(manifest: Path) -> dict[str, str]:
    """The cell keys that the file `manifest` leaves out, each with its reason."""
    document = read_json(manifest).fields(("schema", "sets", "exclusions"))
    document["schema"].schema(MANIFEST_SCHEMA)
    reasons: dict[str, str] = {}
    for place in document["exclusions"].items():
        fields = place.fields(("key", "reason"))
        key = parse_cell(fields["key"]).key
        if key in reasons:
            raise fields["key"].error(f"excludes {key} a second time")
        reasons[key] = fields["reason"].text()
    return reasons


def parse_cell(place: Place) -> Cell:
    """The cell whose key stands at `place` in a document."""
    key = place.text()
    try:
        return parse_key(key)
    except UsageError as error:
        raise place.error(error.cause) from error


_GROUP = re.compile(r"0|[1-9][0-9]{0,5}")


def _choose_set(
    option: str | None, env: Mapping[str, str], default: str | None, sets_dir: Path
) -> tuple[CellSet, list[str]]:
    notes: list[str] = []
    name = option if option is not None else env.get("CELL_SET", default)
    if name is None:
        remedy = f"name one by --cell-set or CELL_SET: {', '.join(set_names(sets_dir))}"
        raise SelectionError("no cell set was named", remedy=remedy)
    if option is not None and env.get("CELL_SET", option) != option:
        notes.append(f"--cell-set {option} wins over CELL_SET={env['CELL_SET']!r}")
    return load_cell_set(name, sets_dir), notes


def _choose_groups(
    chosen: CellSet, option: str | None, env: Mapping[str, str], sets_dir: Path, notes: list[str]
) -> tuple[str | None, str]:
    """The text that selects groups and where it came from."""
    variable = chosen.group_variable
    own = None if variable is None else env.get(variable)
    known = {one.group_variable for one in load_cell_sets(sets_dir) if one.group_variable is not None}
    foreign = sorted(name for name in known if name in env and name != variable)
    if option is not None and variable is None:
        _refuse_groups(chosen, "--groups", sets_dir)
    if option is None and own is None and foreign:
        _refuse_groups(chosen, foreign[0], sets_dir)
    notes += [f"{name}={env[name]!r} is of no use to set {chosen.name!r} and was ignored" for name in foreign]
    if option is None:
        return own, variable or ""
    if own is not None and own != option:
        notes.append(f"--groups {option!r} wins over {variable}={own!r}")
    return option, "--groups"


def _refuse_groups(chosen: CellSet, source: str, sets_dir: Path) -> NoReturn:
    sets = load_cell_sets(sets_dir)
    with_groups = ", ".join(f"{one.name} ({one.group_variable})" for one in sets if one.group_variable)
    if chosen.group_variable is None:
        cause = f"{source} selects groups, but set {chosen.name!r} has none"
    else:
        cause = f"{source} selects groups, but set {chosen.name!r} takes them from {chosen.group_variable}"
    raise SelectionError(cause, remedy=f"drop {source}, or choose a set that it selects in: {with_groups}")


def _parse_groups(chosen: CellSet, text: str, source: str) -> tuple[int, ...]:
    exist = f"groups of set {chosen.name!r}: {' '.join(str(group) for group in chosen.groups)}"
    if not text.strip():
        remedy = f"name groups, or leave it unset; {exist}"
        raise SelectionError(f"{source} is empty: it selects nothing", remedy=remedy)
    groups: list[int] = []
    for part in re.split(r"\s*,\s*|\s+", text.strip()):
        if _GROUP.fullmatch(part) is None:
            remedy = f"separate numbers by commas or spaces; {exist}"
            raise SelectionError(f"{source}={text!r}: {part!r} is not a group number", remedy=remedy)
        group = int(part)
        if group not in chosen.groups:
            cause = f"{source}={text!r}: set {chosen.name!r} has no group {group}"
            raise SelectionError(cause, remedy=f"choose; {exist}")
        if group in groups:
            raise SelectionError(f"{source}={text!r}: group {group} is named twice", remedy=f"name it once; {exist}")
        groups.append(group)
    return tuple(sorted(groups))


def _cell_set(name: str, document: Place) -> CellSet:
    fields = document.fields(("schema", "name", "device", "group_variable", "cells"))
    fields["schema"].schema(CELL_SET_SCHEMA)
    if fields["name"].value != name:
        raise fields["name"].error(f"must be {name!r}, the name of the file")
    device = fields["device"].text()
    if device not in {"h200", "cpu"}:
        raise fields["device"].error(f"unknown device {device!r}; known are h200, cpu")
    variable = None if fields["group_variable"].value is None else fields["group_variable"].text()
    if variable is not None and re.fullmatch(r"[A-Z][A-Z0-9]*_GROUPS", variable) is None:
        raise fields["group_variable"].error("must be null or an upper-case name that ends in _GROUPS")
    cells = tuple(_distinct(fields["cells"].items()))
    if not cells:
        raise fields["cells"].error("a set needs at least one cell")
    if variable is not None and all(cell.group is None for cell in cells):
        raise fields["group_variable"].error("selects groups, but no cell of the set has one")
    return CellSet(name, device, variable, cells)


def _distinct(places: Sequence[Place]) -> Iterator[Cell]:
    seen: set[tuple[object, ...]] = set()
    for place in places:
        key = place.fields(("key",))["key"]
        cell = parse_cell(key)
        identity = (cell.workload, cell.model, cell.layers, cell.tp, cell.cp, cell.group)
        if identity in seen:
            raise key.error(f"lists {cell.key} a second time")
        seen.add(identity)
        yield cell
