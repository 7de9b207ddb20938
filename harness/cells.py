"""Cells, cell sets and the selection that `CELL_SET` and a group variable make, for the node, which has no orchestrate.

`orchestrate/cells/` gives the same answers and the same errors on the workstation; a test compares the two.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from harness.documents import Place, read_json
from harness.errors import InputError
from harness.workloads import SETS_DIR

__all__ = [
    "CELL_SET_SCHEMA",
    "MANIFEST_SCHEMA",
    "NOT_A_SET",
    "Cell",
    "CellSet",
    "Selection",
    "load_cell_set",
    "load_exclusions",
    "main",
    "parse_key",
    "resolve",
    "set_names",
    "slug",
]

CELL_SET_SCHEMA = "orchestrate.cell-set/1"
MANIFEST_SCHEMA = "orchestrate.manifest/1"

NOT_A_SET = ("manifest", "workloads")
"""Names of the JSON files beside the sets that are no sets."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload x model x layers x parallel shape; `key` is how it is written."""

    key: str
    workload: str
    model: str
    layers: int
    tp: int
    cp: int
    ep: int
    group: int | None

    @property
    def gpus(self) -> int:
        """GPUs, or ranks on a CPU, that the cell takes."""
        return self.tp * self.cp


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


def parse_key(key: str) -> Cell:
    """The cell that `key` names: `workload|model|L<layers>|tp<T>|cp<C>[|ep<E>][|g<G>]`.

    Raises:
        InputError: `key` is not of that form, or asks for expert parallelism.

    >>> parse_key("cal-grpo-g8|Qwen/Qwen3.5-4B|L32|tp2|cp1").gpus
    2
    """
    match = _KEY.fullmatch(key)
    if match is None:
        raise InputError(
            f"not a cell key: {key!r}",
            remedy="write workload|model|L<layers>|tp<T>|cp<C>, then |g<group> for a corpus cell",
        )
    ep = int(match["ep"] or 1)
    if ep > 1:
        raise InputError(f"cell {key!r} asks for EP {ep}", remedy="use a shape without expert parallelism (EP 1)")
    group = None if match["group"] is None else int(match["group"])
    numbers = (int(match["layers"]), int(match["tp"]), int(match["cp"]))
    return Cell(key, match["workload"], match["model"], *numbers, ep, group)


def slug(key: str) -> str:
    """`key` as a file name: anything unusual replaced, and eight digits of its SHA-256 so that no two keys meet."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", key) + "-" + hashlib.sha256(key.encode()).hexdigest()[:8]


def resolve(
    cell_set: str | None, groups_text: str | None, env: Mapping[str, str], *, sets_dir: Path = SETS_DIR
) -> Selection:
    """The cells that options and environment select.

    `cell_set` and `groups_text` are the options, None where they were not given; what is None comes from `env`:
    `CELL_SET`, and the set's own group variable (`"1 4"` and `"1,4"` are both two groups). An option wins over the
    environment, and a note says so. Without a group selection all cells stand. A group selection keeps the corpus
    cells of these groups and all cells that have no group. `CELL_KEYS` (keys, with spaces between them) narrows what
    was selected to exactly those cells: a later attempt of a run measures only what is missing.

    Raises:
        InputError: no set or an unknown one, an unknown, duplicate or malformed group, an empty selection, a group
            selection where the set has none, also through the variable of another set, or a key in `CELL_KEYS` that
            is named twice or was not selected. It lists what exists.
    """
    chosen, notes = _choose_set(cell_set, env, sets_dir)
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
        raise InputError(
            f"every selected cell of set {chosen.name!r} is excluded by the manifest",
            remedy="select other groups or another set",
        )
    if "CELL_KEYS" in env:
        cells = _narrowed(cells, env["CELL_KEYS"])
        excluded = ()
        notes.append(f"CELL_KEYS leaves {len(cells)} of the selected cells")
    return Selection(chosen, groups, cells, excluded, tuple(notes))


def set_names(sets_dir: Path = SETS_DIR) -> tuple[str, ...]:
    """The names of all cell sets, ascending."""
    return tuple(sorted(path.stem for path in sets_dir.glob("*.json") if path.stem not in NOT_A_SET))


def load_cell_set(name: str, sets_dir: Path = SETS_DIR) -> CellSet:
    """The cell set `name`.

    Raises:
        InputError: there is none (it lists those that exist), or its file is damaged (it names file and place).
    """
    known = set_names(sets_dir)
    if name not in known:
        raise InputError(f"no cell set {name!r}", remedy=f"choose one of {', '.join(known)}")
    return _cell_set(name, read_json(sets_dir / f"{name}.json"))


def load_exclusions(sets_dir: Path = SETS_DIR) -> dict[str, str]:
    """The cell keys that the manifest leaves out, each with its reason."""
    document = read_json(sets_dir / "manifest.json").fields(("schema", "sets", "exclusions"))
    document["schema"].schema(MANIFEST_SCHEMA)
    reasons: dict[str, str] = {}
    for place in document["exclusions"].items():
        fields = place.fields(("key", "reason"))
        key = _cell(fields["key"]).key
        if key in reasons:
            raise fields["key"].error(f"excludes {key} a second time")
        reasons[key] = fields["reason"].text()
    return reasons


def main(argv: Sequence[str]) -> int:
    """`python -m harness cells`: print the cells that options and environment select."""
    parser = argparse.ArgumentParser(
        prog="python -m harness cells",
        description="Print the cells that CELL_SET and its group variable select.",
        epilog='example: CELL_SET=ellavox ELLAVOX_GROUPS="1 4" python -m harness cells',
    )
    parser.add_argument("--cell-set", metavar="SET", help="wins over CELL_SET")
    parser.add_argument("--groups", metavar="GROUPS", help='"1,4" or "1 4"; wins over the group variable')
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    selection = resolve(arguments.cell_set, arguments.groups, os.environ)
    for note in selection.notes:
        print(f"note: {note}", file=sys.stderr)
    for cell, reason in selection.excluded:
        print(f"note: {cell.key} is excluded: {reason}", file=sys.stderr)
    keys = [cell.key for cell in selection.cells]
    if arguments.json:
        found = {"cell_set": selection.cell_set.name, "device": selection.cell_set.device, "cells": keys}
        print(json.dumps(found, sort_keys=True))
    else:
        print("\n".join(keys))
    return 0


_NUMBER = r"[1-9][0-9]{0,5}"
_KEY = re.compile(
    r"(?P<workload>[a-z0-9][a-z0-9-]*)\|(?P<model>[A-Za-z0-9][A-Za-z0-9._/-]*)"
    rf"\|L(?P<layers>{_NUMBER})\|tp(?P<tp>{_NUMBER})\|cp(?P<cp>{_NUMBER})"
    rf"(?:\|ep(?P<ep>{_NUMBER}))?(?:\|g(?P<group>0|{_NUMBER}))?"
)
_GROUP = re.compile(rf"0|{_NUMBER}")


def _choose_set(option: str | None, env: Mapping[str, str], sets_dir: Path) -> tuple[CellSet, list[str]]:
    notes: list[str] = []
    name = option if option is not None else env.get("CELL_SET")
    if name is None:
        remedy = f"name one by --cell-set or CELL_SET: {', '.join(set_names(sets_dir))}"
        raise InputError("no cell set was named", remedy=remedy)
    if option is not None and env.get("CELL_SET", option) != option:
        notes.append(f"--cell-set {option} wins over CELL_SET={env['CELL_SET']!r}")
    return load_cell_set(name, sets_dir), notes


def _choose_groups(
    chosen: CellSet, option: str | None, env: Mapping[str, str], sets_dir: Path, notes: list[str]
) -> tuple[str | None, str]:
    """The text that selects groups and where it came from."""
    variable = chosen.group_variable
    own = None if variable is None else env.get(variable)
    foreign = sorted(name for name in _group_variables(sets_dir) if name in env and name != variable)
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


def _narrowed(cells: tuple[Cell, ...], text: str) -> tuple[Cell, ...]:
    """Exactly the cells whose keys are in `text`, in the order of the set."""
    keys = text.split()
    known = {cell.key for cell in cells}
    for key in keys:
        if key not in known:
            raise InputError(f"CELL_KEYS: {key!r} is not selected", remedy=f"choose among {' '.join(sorted(known))}")
        if keys.count(key) > 1:
            raise InputError(f"CELL_KEYS names {key} twice", remedy="name each cell once")
    if not keys:
        raise InputError("CELL_KEYS is empty: it selects nothing", remedy="name cells, or leave it unset")
    return tuple(cell for cell in cells if cell.key in keys)


def _refuse_groups(chosen: CellSet, source: str, sets_dir: Path) -> NoReturn:
    sets = [load_cell_set(name, sets_dir) for name in set_names(sets_dir)]
    with_groups = ", ".join(f"{one.name} ({one.group_variable})" for one in sets if one.group_variable)
    if chosen.group_variable is None:
        cause = f"{source} selects groups, but set {chosen.name!r} has none"
    else:
        cause = f"{source} selects groups, but set {chosen.name!r} takes them from {chosen.group_variable}"
    raise InputError(cause, remedy=f"drop {source}, or choose a set that it selects in: {with_groups}")


def _group_variables(sets_dir: Path) -> set[str]:
    sets = [load_cell_set(name, sets_dir) for name in set_names(sets_dir)]
    return {one.group_variable for one in sets if one.group_variable is not None}


def _parse_groups(chosen: CellSet, text: str, source: str) -> tuple[int, ...]:
    exist = f"groups of set {chosen.name!r}: {' '.join(str(group) for group in chosen.groups)}"
    if not text.strip():
        raise InputError(f"{source} is empty: it selects nothing", remedy=f"name groups, or leave it unset; {exist}")
    groups: list[int] = []
    for part in re.split(r"\s*,\s*|\s+", text.strip()):
        if _GROUP.fullmatch(part) is None:
            raise InputError(
                f"{source}={text!r}: {part!r} is not a group number",
                remedy=f"separate numbers by commas or spaces; {exist}",
            )
        group = int(part)
        if group not in chosen.groups:
            raise InputError(f"{source}={text!r}: set {chosen.name!r} has no group {group}", remedy=f"choose; {exist}")
        if group in groups:
            raise InputError(f"{source}={text!r}: group {group} is named twice", remedy=f"name it once; {exist}")
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
        cell = _cell(key)
        identity = (cell.workload, cell.model, cell.layers, cell.tp, cell.cp, cell.group)
        if identity in seen:
            raise key.error(f"lists {cell.key} a second time")
        seen.add(identity)
        yield cell


def _cell(place: Place) -> Cell:
    key = place.text()
    try:
        return parse_key(key)
    except InputError as error:
        raise place.error(error.cause) from error
