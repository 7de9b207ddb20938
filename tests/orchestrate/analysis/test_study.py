from dataclasses import replace

import pytest

from orchestrate.analysis.measured import Execution, family_of, is_held_out
from orchestrate.analysis.reduced_cells import InputCell, read_reduced_cells
from orchestrate.analysis.study import Selection, make_study, meant_sets
from orchestrate.cells.manifest import Expected, Manifest
from orchestrate.errors import EvidenceDamagedError, NotEnoughEvidenceError

REASONS = {"cal-gone|m|L1|tp1|cp1": "its node lied"}


@pytest.fixture
def inputs(made_up, as_bytes):
    def read(*arguments, **options):
        return read_reduced_cells(as_bytes(made_up(*arguments, **options)), "cells.jsonl", None)[0]

    return read


def refused(items, selection=None, error=NotEnoughEvidenceError, **options):
    with pytest.raises(error) as caught:
        make_study(items, selection or Selection(), **{"manifest": None, "reasons": {}, **options})
    return caught.value


def manifest_of(items, **changes):
    cells = tuple(Expected(item.cell.key, ("layout_00", "layout_01")) for item in items)
    return Manifest({"made": cells, "other": (Expected("cal-b|m|L1|tp1|cp1", None),), **changes}, REASONS, "0" * 64)


@pytest.mark.parametrize(
    ("key", "holdout", "held"),
    [
        ("cal-ellavox|m|L1|tp1|cp4|g1", (), True),
        ("cal-ellavox|m|L1|tp1|cp4|g13", (), True),
        ("cal-ellavox|m|L1|tp1|cp4|g4", (), False),
        ("cal-text|m|L1|tp1|cp4|g7", (), True),
        ("cal-grpo-g1|m|L1|tp1|cp1", (), False),
        ("cal-ellavox|m|L1|tp1|cp4|g4", ("cp4|g4",), True),
        ("cal-grpo-g4|m|L1|tp1|cp4", ("cp4|g4",), False),
        ("cal-ellavox|m|L1|tp1|cp4|g4", ("cp.|g4", "cp[4]", "^cal"), False),
        ("cal-ellavox|m|L1|tp1|cp4|g4", ("tp9", "L1|"), True),
    ],
)
def test_held_out_are_odd_corpus_groups_and_plain_substrings(key, holdout, held):
    assert is_held_out(key, holdout) is held


def test_families_are_the_kind_of_workload():
    names = ["cal-grpo-g16", "cal-grpo-g8-long", "cal-hetero", "cal-hetero3", "cal-ellavox-qwen3", "cal-text"]
    assert [family_of(name) for name in names] == ["grpo", "grpo", "hetero", "hetero", "ellavox", "text"]


def test_cells_stay_in_the_order_of_the_input(inputs):
    study = make_study(inputs(12), Selection(), manifest=None, reasons={})
    assert [cell.key.rsplit("|g")[-1] for cell in study.cells] == [str(n) for n in range(12)]
    assert [cell.key.rsplit("|g")[-1] for cell in study.held_out] == ["1", "3", "5", "7", "9", "11"]
    assert len(study.training) == 6


def test_an_empty_holdout_is_refused(inputs):
    even = [item for item in inputs(16) if int(item.cell.key.rsplit("|g")[-1]) % 2 == 0]
    assert "the holdout: is empty" in str(refused(even))


def test_a_holdout_of_too_few_cells_or_pairs_is_refused(inputs, candidate):
    items = inputs(6)
    assert "the holdout: is too small: 3 cells with a choice" in str(refused(items))
    flat = [
        replace(
            item, cell=replace(item.cell, candidates=tuple(replace(c, median_ms=5.0) for c in item.cell.candidates))
        )
        for item in inputs(12)
    ]
    assert "0 pairs more than 3% apart" in str(refused(flat))


def test_a_holdout_that_leaves_nothing_to_fit_is_refused(inputs):
    error = refused(inputs(12), Selection(holdout=("cal-",)))
    assert "the training cells: are too few: 0" in str(error)


def test_a_holdout_text_that_matches_nothing_is_refused(inputs):
    error = refused(inputs(12), Selection(holdout=("cp4|g44", "")), EvidenceDamagedError)
    assert error.exit_code == 2
    assert len(error.gaps) == 2
    assert "no cell key contains this text" in error.gaps[0]


def test_too_few_rounds_are_named_for_each_candidate(inputs):
    items = inputs(12)
    cell = items[2].cell
    few = (replace(cell.candidates[0], rounds=7), replace(cell.candidates[1], rounds=1), *cell.candidates[2:])
    items[2] = replace(items[2], cell=replace(cell, candidates=few))
    error = refused(items)
    assert error.exit_code == 4
    assert [gap.split("'")[1] for gap in error.gaps] == ["layout_00", "layout_01"]
    assert "cells.jsonl:3" in error.gaps[0]
    assert "7 rounds of 8" in error.gaps[0]
    assert len(refused(items, Selection(repeat=2)).gaps) == 1


def test_the_same_cell_twice_is_refused_and_two_fingerprints_are_named(inputs):
    items = inputs(12)
    assert "is there 2 times: cells.jsonl:1 and again.jsonl:1" in str(
        refused([*items, InputCell(items[0].cell, "again.jsonl:1")])
    )
    where = [Execution("cpu", "float32", 8, print_) for print_ in ("a" * 64, "b" * 64)]
    both = [InputCell(replace(item.cell, execution=where[0]), item.place) for item in items]
    both.append(InputCell(replace(items[0].cell, execution=where[1]), "again.jsonl:1"))
    assert "has 2 execution fingerprints (aaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbb)" in str(refused(both))


def test_cells_of_two_devices_are_refused(inputs):
    items = inputs(12)
    mixed = [
        InputCell(replace(item.cell, execution=Execution("H200" if n else "H100", "bf16", 2560)), item.place)
        for n, item in enumerate(items)
    ]
    assert "more than one device: H100" in str(refused(mixed))


def test_the_manifest_names_missing_and_unexpected_cells_and_candidates(inputs):
    items = inputs(12)
    manifest = manifest_of(items)
    assert make_study(items, Selection(), manifest=manifest, reasons={}).expected_sets == ("made",)
    error = refused(items[:-1], manifest=manifest)
    assert error.gaps == (f"{items[-1].cell.key}: the manifest expects it, the input does not have it",)
    stranger = InputCell(replace(items[0].cell, key="cal-new|m|L32|tp1|cp1"), "cells.jsonl:13")
    assert "cal-new|m|L32|tp1|cp1: is unexpected" in str(refused([*items, stranger], manifest=manifest))
    thin = replace(items[0].cell, candidates=items[0].cell.candidates[1:])
    error = refused([InputCell(thin, "cells.jsonl:1"), *items[1:]], manifest=manifest)
    assert "the mandatory candidates layout_00 are missing" in str(error)


def test_a_named_set_must_be_there_whole(inputs):
    items = inputs(12)
    error = refused(items, Selection(expected_sets=("made", "other")), manifest=manifest_of(items))
    assert "cal-b|m|L1|tp1|cp1: the manifest expects it" in str(error)
    error = refused(items, Selection(expected_sets=("nowhere",)), EvidenceDamagedError, manifest=manifest_of(items))
    assert "the manifest has made, other" in str(error)


def test_an_exclusion_must_be_listed_and_is_recorded_also_when_the_input_does_not_have_it(inputs):
    items = inputs(12)
    selection = Selection(exclude=("cal-gone|m|L1|tp1|cp1",))
    study = make_study(items, selection, manifest=None, reasons=REASONS)
    assert [(each.key, each.reason, each.in_input) for each in study.exclusions] == [
        ("cal-gone|m|L1|tp1|cp1", "its node lied", False)
    ]
    error = refused(items, Selection(exclude=(items[0].cell.key,)), EvidenceDamagedError, reasons=REASONS)
    assert "the manifest does not list it among its exclusions" in str(error)
    present = InputCell(replace(items[0].cell, key="cal-gone|m|L1|tp1|cp1"), "cells.jsonl:13")
    study = make_study([*items, present], selection, manifest=None, reasons=REASONS)
    assert study.exclusions[0].in_input
    assert len(study.cells) == 12


def test_a_cell_that_the_manifest_excludes_is_never_dropped_in_silence(inputs):
    items = inputs(12)
    present = InputCell(replace(items[0].cell, key="cal-gone|m|L1|tp1|cp1"), "cells.jsonl:13")
    assert "say so with --exclude" in str(refused([*items, present], manifest=manifest_of(items)))


def test_all_gaps_come_at_once(inputs):
    items = inputs(6)
    items.append(items[0])
    assert len(refused(items, Selection(repeat=9), manifest=manifest_of(items[:6])).gaps) == 1 + 7 * 5


@pytest.mark.parametrize(
    ("keys", "meant"),
    [
        (("a", "shared"), ("one",)),
        (("shared", "b", "c"), ("two",)),
        (("a", "b"), ("one", "two")),
        (("shared",), ("one", "two")),
        (("unheard",), ()),
    ],
)
def test_a_cell_of_several_sets_does_not_call_for_all_of_them(keys, meant):
    sets = {"one": ("a", "shared"), "two": ("b", "c", "shared")}
    cells = {name: tuple(Expected(key, None) for key in keys) for name, keys in sets.items()}
    assert meant_sets(keys, Manifest(cells, {}, "0" * 64)) == meant
