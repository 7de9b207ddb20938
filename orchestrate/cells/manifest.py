"""The manifest: exactly which cells each set must yield, with which candidates, and what is left out and why."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrate.cells.cell_set import MANIFEST_SCHEMA, SETS_DIR, parse_cell, read_exclusions
from orchestrate.cells.documents import Place, read_json
from orchestrate.errors import UsageError

__all__ = ["Expected", "Manifest", "load_manifest", "read_manifest"]


@dataclass(frozen=True, slots=True)
class Expected:
    """A cell that a set must yield.

    `candidates` are its mandatory labels in family order, None where only a private corpus can tell.
    """

    key: str
    candidates: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """`sets` maps a set to what it must yield, `exclusions` a cell key to the reason why it is left out.

    `sha256` is the digest of the file.
    """

    sets: Mapping[str, tuple[Expected, ...]]
    exclusions: Mapping[str, str]
    sha256: str

    def candidates(self, cell_set: str, keys: Iterable[str]) -> dict[str, list[str] | None]:
        """The mandatory candidate labels of `keys`, which are cells of `cell_set`.

        Raises:
            UsageError: the manifest does not expect one of them there.
        """
        expected = {one.key: one.candidates for one in self.sets.get(cell_set, ())}
        found: dict[str, list[str] | None] = {}
        for key in keys:
            if key not in expected:
                raise UsageError(
                    f"the manifest does not expect {key} in set {cell_set!r}", remedy="run orchestrate cells check"
                )
            labels = expected[key]
            found[key] = None if labels is None else list(labels)
        return found


def load_manifest(sets_dir: Path = SETS_DIR) -> Manifest:
    """The manifest beside the sets.

    Raises:
        UsageError: it is damaged; file and place are named.
    """
    return read_manifest(sets_dir / "manifest.json")


def read_manifest(path: Path) -> Manifest:
    """The manifest in the file `path`.

    Raises:
        UsageError: it can not be read or is damaged; file and place are named.
    """
    document = read_json(path).fields(("schema", "sets", "exclusions"))
    document["schema"].schema(MANIFEST_SCHEMA)
    sets = {name: _expected(place) for name, place in document["sets"].members().items()}
    return Manifest(sets, read_exclusions(path), hashlib.sha256(path.read_bytes()).hexdigest())


def _expected(place: Place) -> tuple[Expected, ...]:
    found: dict[str, Expected] = {}
    for item in place.fields(("cells",))["cells"].items():
        fields = item.fields(("key", "candidates"))
        key = parse_cell(fields["key"]).key
        if key in found:
            raise fields["key"].error(f"expects {key} a second time")
        found[key] = Expected(key, _labels(fields["candidates"]))
    return tuple(found.values())


def _labels(place: Place) -> tuple[str, ...] | None:
    if place.value is None:
        return None
    labels = tuple(item.text() for item in place.items())
    if not labels or len(set(labels)) < len(labels):
        raise place.error("must be null or a list of distinct candidate labels")
    return labels
