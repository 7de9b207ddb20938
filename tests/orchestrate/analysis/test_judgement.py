"""Blocks, ablations, intervals, equivalence: what stands beside the table."""

from dataclasses import replace

import numpy as np
import pytest

from orchestrate.analysis.ablation import ablations
from orchestrate.analysis.cost_terms import TERMS
from orchestrate.analysis.equivalence import collinear_terms, compare_tables
from orchestrate.analysis.fit import fit_table
from orchestrate.analysis.gates import Basis, blocks, gates
from orchestrate.analysis.intervals import RESAMPLES, intervals, resample
from orchestrate.analysis.metrics import cell_result, metrics, predictions
from orchestrate.analysis.noise import median_of, simulated_rounds_ms
from orchestrate.analysis.production import production_regret
from orchestrate.analysis.random_bits import Stream
from orchestrate.analysis.reduced_cells import read_reduced_cells
from orchestrate.analysis.study import Selection, make_study


@pytest.fixture
def study(made_up, as_bytes):
    def make(count=24, **options):
        items = read_reduced_cells(as_bytes(made_up(count, **options)), "cells.jsonl", None)[0]
        return make_study(items, Selection(), manifest=None, reasons={})

    return make


def test_blocks_are_never_pooled(study):
    """One cell of one shape goes wrong: too little for the gates over all held-out cells, too much for its shape."""
    made = study(80, candidates=6)
    table = fit_table(made.training).table
    assert all(block.holds for block in blocks(made, table))
    victim = next(cell for cell in made.held_out if cell.shape == "tp2 cp1")
    chosen = cell_result(victim, predictions(victim, table)).selected
    time_ms = next(each.median_ms for each in victim.candidates if each.label == chosen)
    other = next(each.label for each in victim.candidates if each.label != chosen)
    worse = replace(
        victim,
        candidates=tuple(
            replace(each, median_ms=time_ms / 1.08, spread_pct=50.0) if each.label == other else each
            for each in victim.candidates
        ),
    )
    made = replace(made, cells=tuple(worse if cell is victim else cell for cell in made.cells))
    assert all(gate.holds for gate in gates(metrics(made.held_out, table)))
    failing = {(block.by, block.name) for block in blocks(made, table) if not block.holds}
    assert ("shape", "tp2 cp1") in failing
    assert not {name for by, name in failing if by == "shape"} - {"tp2 cp1"}


def test_a_block_with_too_little_held_out_is_gated_on_all_its_cells_and_says_so(shared_study, published):
    found = blocks(shared_study("cp4|g4"), published["integer_table_milli_us"])
    assert {(block.by, block.name): block.basis for block in found} == {
        ("model", "Qwen/Qwen3-4B"): Basis.IN_SAMPLE,
        ("model", "Qwen/Qwen3.5-4B"): Basis.HELD_OUT,
        ("shape", "tp1 cp1"): Basis.HELD_OUT,
        ("shape", "tp1 cp2"): Basis.HELD_OUT,
        ("shape", "tp1 cp4"): Basis.HELD_OUT,
        ("shape", "tp2 cp1"): Basis.IN_SAMPLE,
        ("family", "ellavox"): Basis.HELD_OUT,
        ("family", "grpo"): Basis.IN_SAMPLE,
        ("family", "hetero"): Basis.IN_SAMPLE,
    }
    assert all(block.holds for block in found)
    in_sample = next(block for block in found if block.name == "tp2 cp1")
    assert (in_sample.cells, in_sample.held_out, len(in_sample.metrics.results)) == (7, 0, 7)


def test_an_ablation_fits_without_a_block_and_judges_on_it(study):
    made = study()
    found = ablations(made)
    names = {(entry["by"], entry["left_out"]) for entry in found}
    assert {name for by, name in names if by == "shape"} == {"tp1 cp1", "tp1 cp2", "tp1 cp4", "tp2 cp1"}
    assert {name for by, name in names if by == "model"} == {"Qwen/Qwen3-4B", "Qwen/Qwen3.5-4B"}
    assert not [name for by, name in names if by == "family"]  # one family: leaving it out leaves nothing
    entry = next(entry for entry in found if entry["left_out"] == "tp2 cp1")
    training = [cell for cell in made.training if cell.shape != "tp2 cp1"]
    assert entry["table_sha256"] == fit_table(training).sha256
    left_out = [cell for cell in made.cells if cell.shape == "tp2 cp1"]
    assert entry["metrics"] == metrics(left_out, fit_table(training).table).as_json()
    assert entry["training_cells"] == len(training)
    assert fit_table(training).table["token_tp_collective"] == 0


def test_intervals_hold_the_point_estimates_and_shrink_with_quiet_rounds(study):
    made = study(40)
    table = fit_table(made.training).table
    point = metrics(made.cells, table).as_json()
    found = intervals(made.cells, table, resample(made.cells, seed=1))
    for name in ("pairwise_accuracy", "median_regret_pct", "p95_regret_pct"):
        low, high = found[name]
        assert low <= point[name] <= high
    assert found["resamples"] == RESAMPLES == 1000


def test_intervals_are_the_same_every_time_and_depend_on_the_seed(study):
    made = study(16, noise=0.3)
    table = fit_table(made.training).table
    one, again, other = (intervals(made.cells, table, resample(made.cells, seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_measured_rounds_are_drawn_where_they_are_known(make_cell, candidate):
    known = replace(candidate("a", median_ms=2.0, rounds=3), samples_ms=(1.0, 2.0, 9.0))
    cell = make_cell("cal-a|m|L1|tp1|cp1", [known])
    assert set(np.unique(resample([cell], seed=1).median_ms[cell.key])) == {1.0, 2.0, 9.0}


def test_the_noise_model_keeps_the_median_and_the_expected_spread(candidate):
    one = candidate("a", median_ms=100.0, spread_pct=2.0, rounds=8)
    rounds = simulated_rounds_ms(one, Stream(5).normals(20_000, 8))
    spread = (rounds.max(axis=1) - rounds.min(axis=1)) / median_of(rounds) * 100
    assert abs(float(spread.mean()) - 2.0) < 0.02
    assert abs(float(np.median(rounds)) - 100.0) < 0.02
    wild = simulated_rounds_ms(candidate("a", median_ms=100.0, spread_pct=200.0), Stream(5).normals(20_000, 8))
    assert float(wild.min()) > 0


def test_random_numbers_are_pinned():
    """SplitMix64 from published constants: these digits are part of every certificate."""
    assert [int(value * 2**53) for value in Stream(1).uniforms(2)] == [3316356330981164, 8498871037046174]
    normals = Stream(7).normals(200_000)
    assert abs(float(normals.mean())) < 0.01
    assert abs(float(normals.var()) - 1) < 0.01
    places = Stream(7).places(5, 10_000)
    assert set(places.tolist()) == {0, 1, 2, 3, 4}
    assert (Stream(1, 2).uniforms(4) != Stream(2, 1).uniforms(4)).all()


def test_the_second_optimum_is_equivalent_to_the_published_table(shared_study, published):
    cells = shared_study().cells
    refit = fit_table(shared_study().training).table
    found = compare_tables(cells, published["integer_table_milli_us"], refit, resample(cells, seed=1))
    assert found["standing"] == "equivalent"
    assert not found["measurable"]
    assert found["cells_that_differ"] == []
    assert found["coefficients_that_differ"]["gdn_token_per_rank"] == [594, 0]
    collinear = collinear_terms(shared_study().training)
    assert collinear["collinear"] == ["token_per_rank", "token_cp_exchange", "gdn_token_per_rank"]
    trades = {tuple(trade["terms"]): trade["coefficient_correlation"] for trade in collinear["trades"]}
    assert trades["token_per_rank", "gdn_token_per_rank"] < -0.7


def test_a_refit_is_better_or_worse_where_it_can_be_measured(study):
    made = study(40, noise=0.0)
    good = fit_table(made.training).table
    bad = dict.fromkeys(TERMS, 0) | {"gdn_level": 1_000_000, "token_per_rank": 1}
    resampled = resample(made.cells, seed=1)
    better = compare_tables(made.cells, bad, good, resampled)
    worse = compare_tables(made.cells, good, bad, resampled)
    assert (better["standing"], better["measurable"]) == ("better", True)
    assert (worse["standing"], worse["measurable"]) == ("worse", True)
    assert better["regret_difference_pct"] == -worse["regret_difference_pct"] < 0
    assert compare_tables(made.cells, good, good, resampled)["standing"] == "identical"


def test_selections_that_noise_can_not_tell_apart_are_equivalent(make_cell, candidate):
    pair = [
        candidate("a", median_ms=100.0, spread_pct=30.0, packed=1000, depth=2),
        candidate("b", median_ms=104.0, spread_pct=30.0, packed=2000, depth=1),
    ]
    cells = [make_cell(f"cal-a|m|L1|tp1|cp1|g{n}", pair, gdn_layers=1) for n in range(6)]
    tokens = dict.fromkeys(TERMS, 0) | {"token_per_rank": 1}
    levels = dict.fromkeys(TERMS, 0) | {"gdn_level": 1}
    found = compare_tables(cells, tokens, levels, resample(cells, seed=1))
    assert len(found["cells_that_differ"]) == 6
    assert found["standing"] == "equivalent"
    quiet = [replace(cell, candidates=tuple(replace(c, spread_pct=0.1) for c in cell.candidates)) for cell in cells]
    assert compare_tables(quiet, tokens, levels, resample(quiet, seed=1))["standing"] == "worse"


def test_terms_that_never_vary_are_absent_and_those_that_always_go_together_are_collinear(study):
    made = study(24, tps=((1, 1), (1, 2)))
    found = collinear_terms(made.training)
    assert {"token_tp_collective", "level_tp_per_layer", "gdn_level_tp"} <= set(found["absent"])
    only_hybrid = [cell for cell in made.training if cell.facts.gdn_layers]
    found = collinear_terms(only_hybrid)
    assert {"token_per_rank", "gdn_token_per_rank"} & set(found["collinear"])  # one is 4/3 of the other
    assert found["explained"]["gdn_token_per_rank"] > 0.999999


def test_production_regret_stands_beside_that_of_the_table(make_cell, candidate):
    from orchestrate.analysis.measured import Production

    cell = make_cell(
        "cal-a|m|L1|tp1|cp1",
        [candidate("a", median_ms=100.0, packed=10), candidate("b", median_ms=150.0, packed=20)],
        production=Production("b", "fewest-tokens", 151.0, 8),
    )
    tokens = dict.fromkeys(TERMS, 0) | {"token_per_rank": 1}
    found = production_regret([cell], tokens)
    assert found["max_regret_pct"] == 51.0
    assert found["fitted"]["max_regret_pct"] == 0.0
    assert found["cells"][0]["picked"] == "b"
    assert production_regret([replace(cell, production=None)], tokens) is None


def test_a_perfect_table_has_no_failing_gate(study):
    made = study(40, noise=0.0)
    table = fit_table(made.training).table
    assert all(gate.holds for gate in gates(metrics(made.held_out, table)))
    assert predictions(made.cells[0], table)
