"""Do sets, manifest, workloads and templates agree? Each disagreement is named.

The workloads are what the harness itself says of them (`python -m harness layouts --all`), given as its JSON document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrate.cells.cell import canonical_key, parse_key
from orchestrate.cells.cell_set import SETS_DIR, CellSet, load_cell_set, set_names
from orchestrate.cells.documents import read_json
from orchestrate.cells.manifest import Expected, Manifest, load_manifest
from orchestrate.errors import UsageError

__all__ = ["NODE_ENVIRONMENT", "Disagreement", "check_sets", "check_templates"]

NODE_ENVIRONMENT = ("CELL_SET", "RUN_ID", "REPEAT")
"""What every template hands to the node; a set's group variable comes on top."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two pieces that say different things: `place` is where to look, `what` is wrong there."""

    place: str
    what: str


@dataclass(frozen=True, slots=True)
class _Workload:
    """A recipe as far as cells care: `groups` is 0 without groups, `private` when only its owner has the rows."""

    groups: int
    private: bool


def check_sets(
    layouts: Mapping[str, Any] | None, *, only: Sequence[str] | None = None, sets_dir: Path = SETS_DIR
) -> list[Disagreement]:
    """Compare the sets with the manifest, and both with the workloads.

    `layouts` is the document of `python -m harness layouts --all`, None where the harness could not make it (which the
    caller reports); `only` narrows the check to these sets. A damaged file is a disagreement like any other.
    """
    try:
        manifest = load_manifest(sets_dir)
        workloads = _workloads(sets_dir)
    except UsageError as error:
        return [Disagreement("harness/sets", error.cause)]
    labels = None if layouts is None else _labels(layouts)
    found = list(_exclusions(manifest))
    for name in set_names(sets_dir) if only is None else only:
        try:
            cell_set = load_cell_set(name, sets_dir)
        except UsageError as error:
            found.append(Disagreement(f"harness/sets/{name}.json", error.cause))
            continue
        if all(cell.key in manifest.exclusions for cell in cell_set.cells):
            place = "harness/sets/manifest.json"
            found.append(Disagreement(place, f"excludes every cell of set {name!r}: nothing can select it"))
        found += _against_manifest(cell_set, manifest)
        found += _against_workloads(cell_set, workloads)
        found += _candidates(cell_set.name, manifest.sets.get(name, ()), workloads, labels)
    missing = sorted(set(manifest.sets) - set(set_names(sets_dir))) if only is None else []
    place = "harness/sets/manifest.json"
    return found + [Disagreement(place, f"expects set {name!r}, which does not exist") for name in missing]


def check_templates(texts: Mapping[str, str], cell_sets: Sequence[CellSet], known: Sequence[str]) -> list[Disagreement]:
    """Compare templates (place to YAML text) with the `h200` sets among `cell_sets`.

    Each template that runs cells must hand the node what it selects by, name each group variable (so that a reader
    knows it) but preset none (a set without groups refuses it), and ask for as many GPUs as the largest cell takes.
    The set that it names by itself is one of `known`. A file whose name says neither task nor Job (a Role, a quota)
    must be a manifest, and need run nothing.
    """
    sets = [cell_set for cell_set in cell_sets if cell_set.device == "h200"]
    return [
        Disagreement(place, what)
        for place, text in texts.items()
        for what in _template(text, sets, known, runs_cells=place.endswith(_RUN_CELLS))
    ]


def _workloads(sets_dir: Path) -> dict[str, _Workload]:
    document = read_json(sets_dir / "workloads.json").fields(("schema", "workloads"))
    found = {}
    for name, place in document["workloads"].members().items():
        recipe = {key: member.value for key, member in place.members().items()}
        groups = recipe.get("groups", 0)
        found[name] = _Workload(groups if isinstance(groups, int) else 0, recipe.get("private") is True)
    return found


def _exclusions(manifest: Manifest) -> Iterator[Disagreement]:
    """An exclusion holds for the cell whose key is spelt exactly so; one of a cell in no set is of a published list."""
    place = "harness/sets/manifest.json"
    for key, reason in manifest.exclusions.items():
        spelt = canonical_key(parse_key(key))
        if key != spelt:
            yield Disagreement(place, f"excludes {key}, which no cell is called: write {spelt}")
        if not reason.strip():
            yield Disagreement(place, f"excludes {key} for a blank reason")


def _labels(layouts: Mapping[str, Any]) -> dict[tuple[str, int | None], tuple[str, ...]]:
    return {
        (one["workload"], one["group"]): tuple(candidate["label"] for candidate in one["candidates"])
        for one in layouts["workloads"]
    }


def _against_manifest(cell_set: CellSet, manifest: Manifest) -> Iterator[Disagreement]:
    place = "harness/sets/manifest.json"
    if cell_set.name not in manifest.sets:
        yield Disagreement(place, f"does not list set {cell_set.name!r}")
        return
    listed = [cell.key for cell in cell_set.cells]
    expected = [one.key for one in manifest.sets[cell_set.name]]
    for key in listed:
        if key not in expected:
            yield Disagreement(place, f"set {cell_set.name!r}: does not expect {key}, which the set lists")
    for key in expected:
        if key not in listed:
            yield Disagreement(place, f"set {cell_set.name!r}: expects {key}, which the set does not list")


def _against_workloads(cell_set: CellSet, workloads: Mapping[str, _Workload]) -> Iterator[Disagreement]:
    place = f"harness/sets/{cell_set.name}.json"
    for cell in cell_set.cells:
        recipe = workloads.get(cell.workload)
        if recipe is None:
            yield Disagreement(place, f"{cell.key}: there is no workload {cell.workload!r}")
        elif recipe.groups and cell.group is None:
            yield Disagreement(place, f"{cell.key}: workload {cell.workload!r} needs a group")
        elif cell.group is not None and cell.group >= recipe.groups:
            yield Disagreement(place, f"{cell.key}: workload {cell.workload!r} has no group {cell.group}")


def _candidates(
    name: str,
    expected: Sequence[Expected],
    workloads: Mapping[str, _Workload],
    labels: Mapping[tuple[str, int | None], tuple[str, ...]] | None,
) -> Iterator[Disagreement]:
    place = "harness/sets/manifest.json"
    for one in expected:
        cell = parse_key(one.key)
        private = cell.workload in workloads and workloads[cell.workload].private
        if private and one.candidates is not None:
            yield Disagreement(place, f"set {name!r}: {one.key}: lists candidates of a private corpus")
        if private or labels is None:
            continue
        made = labels.get((cell.workload, cell.group))
        if made is not None and made != one.candidates:
            have = "null" if one.candidates is None else " ".join(one.candidates)
            yield Disagreement(
                place, f"set {name!r}: {one.key}: candidates are {have}; the harness makes {' '.join(made)}"
            )


_RUN_CELLS = (".sky.yaml", ".job.yaml")
"""The names of templates that run cells; what else lies beside them are manifests of another kind."""


def _template(text: str, sets: Sequence[CellSet], known: Sequence[str], *, runs_cells: bool) -> Iterator[str]:
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        yield "not YAML" if mark is None else f"not YAML at line {mark.line + 1} column {mark.column + 1}"
        return
    for document in documents:
        if not isinstance(document, dict):
            yield f"holds {document!r:.40} where a task or a manifest belongs"
        elif document.get("kind") == "Job":
            yield from _against_sets(text, *_kubernetes(document), sets, known)
        elif "run" in document:
            yield from _against_sets(text, *_skypilot(document), sets, known)
        elif "kind" not in document:
            yield "is neither a SkyPilot task, which has 'run', nor a Kubernetes manifest, which has 'kind'"
    if not documents:
        yield "is empty"
    kinds = [document.get("kind", "Job") for document in documents if isinstance(document, dict)]
    if runs_cells and documents and len(kinds) == len(documents) and "Job" not in kinds:
        yield "runs no cells: no document is a task or a Job"


def _skypilot(task: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The variables that a task hands to its node, and the GPUs that it asks for."""
    asked = _member(task, "resources", "accelerators")
    if isinstance(asked, str):
        kind, _, count = asked.partition(":")
        asked = {kind: count or "1"}
    counts = [_whole(count) for count in asked.values()] if isinstance(asked, dict) else []
    envs = _member(task, "envs")
    return dict(envs) if isinstance(envs, dict) else {}, min(counts, default=0)


def _kubernetes(job: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The variables that a Job hands to its containers, and the GPUs that they ask for."""
    containers = _list(_member(job, "spec", "template", "spec", "containers"))
    variables = [variable for container in containers for variable in _list(_member(container, "env"))]
    handed = {str(_member(variable, "name")): _member(variable, "value") for variable in variables}
    return handed, sum(_whole(_member(container, "resources", "limits", "nvidia.com/gpu")) for container in containers)


def _against_sets(
    text: str, handed: Mapping[str, Any], gpus: int, sets: Sequence[CellSet], known: Sequence[str]
) -> Iterator[str]:
    for name in NODE_ENVIRONMENT:
        if name not in handed:
            yield f"does not hand {name} to the node"
    if "CELL_SET" in handed and handed["CELL_SET"] not in known:
        yield f"CELL_SET is {handed['CELL_SET']!r:.40}, which is no cell set"
    for variable in sorted({one.group_variable for one in sets if one.group_variable is not None}):
        if variable in handed:
            yield f"presets {variable}, which a set without groups refuses"
        if re.search(rf"\b{variable}\b", text) is None:
            yield f"does not name the group variable {variable}"
    for one in sets:
        if one.gpus > gpus:
            yield f"asks for {gpus} GPUs, but the largest cell of set {one.name!r} takes {one.gpus}"


def _member(value: Any, *path: str) -> Any:
    """What `path` leads to in a tree of mappings, None where it leads nowhere."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(count: object) -> int:
    return int(text) if (text := str(count)).isascii() and text.isdigit() else 0
