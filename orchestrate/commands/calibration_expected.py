"""Which cells an input of `calibrate` must have: what the person names, else what its runs planned, else what ships."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrate.analysis.reduced_cells import InputCell, canonical_key
from orchestrate.cells.manifest import Expected, Manifest, load_manifest, read_manifest
from orchestrate.errors import UsageError
from orchestrate.receipts.record import RunRecord

__all__ = ["Expectation", "expectation"]


class Expectation:
    """The manifest that an input is held to. `manifest` is None where nobody says what to expect.

    A manifest that is only assumed is dropped for an input of which it knows no cell.
    """

    def __init__(self, manifest: Manifest | None, *, assumed: bool) -> None:
        self.manifest = manifest
        self._assumed = assumed

    def mandatory(self, key: str) -> tuple[str, ...] | None:
        """The candidate labels that cell `key` must have, None where nobody can tell."""
        if self.manifest is None:
            return None
        found = (one.candidates for cells in self.manifest.sets.values() for one in cells if one.key == key)
        return next(found, None)

    def of(self, inputs: Sequence[InputCell]) -> Manifest | None:
        """The manifest that `inputs` are held to."""
        if not self._assumed or self.manifest is None:
            return self.manifest
        known = {one.key for cells in self.manifest.sets.values() for one in cells} | set(self.manifest.exclusions)
        return self.manifest if any(item.cell.key in known for item in inputs) else None


def expectation(
    manifest: Path | None, cell_sets: Sequence[str], records: Sequence[RunRecord], *, evidence: bool
) -> Expectation:
    """What to expect of an input: of `--manifest`; or of the plans of its runs; or of the manifest that ships.

    The last is assumed for evidence, which comes from cells of this repository, and where `--cell-set` names a set.
    Reduced cells come from anywhere: nobody says what to expect of them.
    """
    if manifest is not None:
        return Expectation(read_manifest(manifest), assumed=False)
    if records:
        return Expectation(_planned(records), assumed=False)
    if cell_sets:
        return Expectation(load_manifest(), assumed=False)
    return Expectation(load_manifest() if evidence else None, assumed=True)


def _planned(records: Sequence[RunRecord]) -> Manifest:
    """The cells and candidates that the runs were planned with, under the names of their sets."""
    sets: dict[str, dict[str, Expected]] = {}
    exclusions = dict(load_manifest().exclusions)
    digests: set[str] = set()
    for record in records:
        plan = record.plan
        candidates = plan.get("candidates")
        labels = candidates if isinstance(candidates, dict) else {}
        cells = sets.setdefault(str(plan.get("cell_set")), {})
        for judged in record.cells:
            key = canonical_key(judged.key)
            cells[key] = Expected(key, _labels(labels.get(judged.key)))
        exclusions |= _excluded(plan)
        digests.add(str(plan.get("manifest_sha256")))
    if len(digests) > 1:
        raise UsageError(
            f"the runs were planned by {len(digests)} manifests", remedy="say which one holds with --manifest FILE"
        )
    return Manifest({name: tuple(cells.values()) for name, cells in sets.items()}, exclusions, digests.pop())


def _labels(value: object) -> tuple[str, ...] | None:
    return tuple(str(label) for label in value) if isinstance(value, list) and value else None


def _excluded(plan: Mapping[str, object]) -> dict[str, str]:
    items = plan.get("exclusions")
    listed = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return {str(item["key"]): str(item["reason"]) for item in listed if "key" in item and "reason" in item}
