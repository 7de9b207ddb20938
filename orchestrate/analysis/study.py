"""A study: the cells that a fit may use, split into training and held out, with everything that was left out and why.

Nothing is dropped in silence: what can not be used is a gap, and a study with a gap is refused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrate.analysis.evidence_rows import LEAST_ROUNDS
from orchestrate.analysis.gaps import Gap, refuse
from orchestrate.analysis.measured import Candidate, MeasuredCell, is_held_out
from orchestrate.analysis.metrics import ORDERED_PCT
from orchestrate.analysis.reduced_cells import InputCell
from orchestrate.cells.manifest import Manifest

__all__ = [
    "DEFAULT_REPEAT",
    "LEAST_HELD_OUT_CELLS",
    "LEAST_HELD_OUT_PAIRS",
    "LEAST_TRAINING_CELLS",
    "Exclusion",
    "Selection",
    "Study",
    "enough_held_out",
    "make_study",
    "meant_sets",
]

DEFAULT_REPEAT = 8
LEAST_HELD_OUT_CELLS = 4
LEAST_HELD_OUT_PAIRS = 20
LEAST_TRAINING_CELLS = 4
"""Fewer cells with a choice, or fewer ordered pairs, say nothing about a percentile or a share of 90%."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A cell that the manifest leaves out, and whether the input had it."""

    key: str
    reason: str
    in_input: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """What the person who asks says about the input.

    `expected_sets` are the cell sets that must be there whole; None is those of the manifest that the input is of
    (`meant_sets`). `repeat` is the number of rounds that a candidate of a reduced cell must have.
    """

    holdout: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    repeat: int = DEFAULT_REPEAT
    expected_sets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """The usable cells in the order of the input. `expected_sets` is None where no manifest said what to expect."""

    cells: tuple[MeasuredCell, ...]
    selection: Selection
    exclusions: tuple[Exclusion, ...]
    expected_sets: tuple[str, ...] | None

    @property
    def training(self) -> tuple[MeasuredCell, ...]:
        """The cells of the fit."""
        return tuple(cell for cell in self.cells if not is_held_out(cell.key, self.selection.holdout))

    @property
    def held_out(self) -> tuple[MeasuredCell, ...]:
        """The cells that the fit never sees."""
        return tuple(cell for cell in self.cells if is_held_out(cell.key, self.selection.holdout))


def make_study(
    inputs: Sequence[InputCell],
    selection: Selection,
    *,
    manifest: Manifest | None,
    reasons: Mapping[str, str],
    gaps: Iterable[Gap] = (),
) -> Study:
    """The study of what was read, or every reason why there is none.

    `manifest` says which cells and candidates to expect, None where nobody says. `reasons` are the exclusions that
    may be asked for. `gaps` are those of reading.

    Raises:
        EvidenceDamagedError: a file is damaged or an option matches nothing.
        NotEnoughEvidenceError: cells or rounds are missing, unexpected, twice there, or too few are held out.
    """
    found = list(gaps)
    present = {item.cell.key for item in inputs}
    kept = [item for item in inputs if item.cell.key not in selection.exclude]
    found += _option_gaps(kept, selection, reasons)
    found += _twice(kept)
    found += _rounds(kept, selection)
    sets = _expected_sets(kept, selection, manifest)
    if manifest is not None:
        found += _against_manifest(kept, selection, manifest, sets or ())
    found += _one_experiment(kept)
    refuse(found)
    study = Study(
        cells=tuple(item.cell for item in kept),
        selection=selection,
        exclusions=tuple(Exclusion(key, reasons[key], key in present) for key in selection.exclude),
        expected_sets=sets,
    )
    refuse(_too_little(study))
    return study


def meant_sets(keys: Iterable[str], manifest: Manifest) -> tuple[str, ...]:
    """The sets of `manifest` that `keys` are of: those with a cell in them that no other set has.

    A cell that several sets have speaks for those of them that are meant anyway, and for all of them where none is.
    """
    sets_of = {
        key: [name for name, cells in manifest.sets.items() if any(one.key == key for one in cells)] for key in keys
    }
    meant = {names[0] for names in sets_of.values() if len(names) == 1}
    for names in sets_of.values():
        if not meant.intersection(names):
            meant.update(names)
    return tuple(name for name in manifest.sets if name in meant)


def enough_held_out(cells: Sequence[MeasuredCell]) -> bool:
    """Whether `cells` can say anything about the gates."""
    return _deciding(cells) >= LEAST_HELD_OUT_CELLS and _ordered_pairs(cells) >= LEAST_HELD_OUT_PAIRS


def _option_gaps(kept: Sequence[InputCell], selection: Selection, reasons: Mapping[str, str]) -> Iterator[Gap]:
    for text in selection.holdout:
        if not text:
            yield Gap("--holdout ''", "an empty text is part of every key: nothing would be left to fit", damaged=True)
        elif not any(text in item.cell.key for item in kept):
            yield Gap(f"--holdout {text!r}", "no cell key contains this text", damaged=True)
    for key, count in Counter(selection.exclude).items():
        if key not in reasons:
            yield Gap(f"--exclude {key!r}", "the manifest does not list it among its exclusions", damaged=True)
        if count > 1:
            yield Gap(f"--exclude {key!r}", "given twice", damaged=True)


def _twice(kept: Sequence[InputCell]) -> Iterator[Gap]:
    by_key: dict[str, list[InputCell]] = defaultdict(list)
    for item in kept:
        by_key[item.cell.key].append(item)
    for key, items in by_key.items():
        if len(items) < 2:
            continue
        prints = list(dict.fromkeys(_fingerprint(item.cell) for item in items))
        places = " and ".join(item.place for item in items)
        if len(prints) > 1:
            yield Gap(key, f"has {len(prints)} execution fingerprints ({', '.join(prints)}): {places}")
        else:
            yield Gap(key, f"is there {len(items)} times: {places}")


def _fingerprint(cell: MeasuredCell) -> str:
    return ((cell.execution and cell.execution.fingerprint) or "none")[:16]


def _rounds(kept: Sequence[InputCell], selection: Selection) -> Iterator[Gap]:
    """Evidence has been judged against its own REPEAT; a reduced cell says only how many rounds there were."""
    least = max(LEAST_ROUNDS, selection.repeat)
    for item in kept:
        for candidate in item.cell.candidates:
            if candidate.samples_ms is None and candidate.rounds < least:
                place = f"{item.place} {item.cell.key}"
                yield Gap(place, f"{candidate.label!r} has {candidate.rounds} rounds of {least}")


def _expected_sets(
    kept: Sequence[InputCell], selection: Selection, manifest: Manifest | None
) -> tuple[str, ...] | None:
    if manifest is None:
        return None
    if selection.expected_sets is not None:
        return selection.expected_sets
    return meant_sets([item.cell.key for item in kept], manifest)


def _against_manifest(
    kept: Sequence[InputCell], selection: Selection, manifest: Manifest, sets: Sequence[str]
) -> Iterator[Gap]:
    for name in sets:
        if name not in manifest.sets:
            yield Gap(f"--cell-set {name}", f"the manifest has {', '.join(manifest.sets)}", damaged=True)
    expected = {one.key: one.candidates for name in sets for one in manifest.sets.get(name, ())}
    for item in kept:
        key = item.cell.key
        if key in manifest.exclusions:
            yield Gap(key, f"the manifest excludes it ({manifest.exclusions[key]}); say so with --exclude")
        elif key not in expected:
            yield Gap(key, f"is unexpected: the manifest has no such cell in {', '.join(sets) or 'any set'}")
        else:
            labels = {candidate.label for candidate in item.cell.candidates}
            missing = [label for label in expected[key] or () if label not in labels]
            if missing and item.cell.candidates[0].samples_ms is None:  # evidence knows which labels are equal
                yield Gap(f"{item.place} {key}", f"the mandatory candidates {', '.join(missing)} are missing")
    present = {item.cell.key for item in kept}
    for key in expected:
        if key not in present and key not in manifest.exclusions and key not in selection.exclude:
            yield Gap(key, "the manifest expects it, the input does not have it")


def _one_experiment(kept: Sequence[InputCell]) -> Iterator[Gap]:
    """A table belongs to one device class, dtype and hidden size: cells of two can not make one."""
    for name in ("device", "dtype", "hidden"):
        values: dict[object, str] = {}
        for item in kept:
            value = None if item.cell.execution is None else getattr(item.cell.execution, name)
            values.setdefault(value, item.cell.key)
        if len(values) > 1:
            listed = ", ".join(f"{value or 'unknown'} ({key})" for value, key in values.items())
            yield Gap("the cells", f"were measured with more than one {name}: {listed}")


def _too_little(study: Study) -> Iterator[Gap]:
    held_out, training = study.held_out, study.training
    if not held_out:
        yield Gap("the holdout", "is empty: no corpus cell has an odd group and no --holdout was given")
    else:
        if (deciding := _deciding(held_out)) < LEAST_HELD_OUT_CELLS:
            yield Gap(
                "the holdout", f"is too small: {deciding} cells with a choice, needs at least {LEAST_HELD_OUT_CELLS}"
            )
        if (pairs := _ordered_pairs(held_out)) < LEAST_HELD_OUT_PAIRS:
            yield Gap(
                "the holdout",
                f"is too small: {pairs} pairs more than {ORDERED_PCT:g}% apart, needs at least {LEAST_HELD_OUT_PAIRS}",
            )
    if (deciding := _deciding(training)) < LEAST_TRAINING_CELLS:
        yield Gap("the training cells", f"are too few: {deciding} with a choice, needs at least {LEAST_TRAINING_CELLS}")


def _deciding(cells: Iterable[MeasuredCell]) -> int:
    return sum(len(cell.candidates) > 1 for cell in cells)


def _ordered_pairs(cells: Iterable[MeasuredCell]) -> int:
    return sum(_ordered_pairs_of(cell.candidates) for cell in cells)


def _ordered_pairs_of(candidates: Sequence[Candidate]) -> int:
    times_ms = sorted(candidate.median_ms for candidate in candidates)
    return sum(
        (slower - faster) / faster * 100 > ORDERED_PCT
        for place, faster in enumerate(times_ms)
        for slower in times_ms[place + 1 :]
    )
