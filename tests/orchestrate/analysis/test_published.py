"""The published fit comes out bit for bit, and so does the second optimum that exercises the search."""

import os
import subprocess
import sys

import pytest

from orchestrate.analysis.fit import fit_table, table_sha256
from orchestrate.analysis.metrics import metrics

SECOND_OPTIMUM = "50b7cac2f64323670c6b13507e4610de4366a356238296587ac189ed1f591412"


def test_the_published_table_and_hash_come_out_of_the_45_training_cells(shared_study, published):
    study = shared_study("cp4|g4")
    assert len(study.training) == 45
    fit = fit_table(study.training)
    assert fit.table == published["integer_table_milli_us"]
    assert fit.sha256 == published["integer_table_sha256"]
    assert fit.search.loss == fit.search.start_loss  # already a local optimum


def test_the_published_metrics_come_out_to_the_last_digit(shared_study, published):
    study = shared_study("cp4|g4")
    table = published["integer_table_milli_us"]
    found = {
        "all": metrics(study.cells, table).as_json(),
        "held_out": metrics(study.held_out, table).as_json(),
        "train": metrics(study.training, table).as_json(),
    }
    assert found == published["metrics"]


def test_without_the_published_holdout_the_search_finds_the_second_optimum(shared_study, published):
    study = shared_study()
    assert len(study.training) == 46
    fit = fit_table(study.training)
    assert fit.sha256 == SECOND_OPTIMUM
    assert fit.search.loss < fit.search.start_loss
    assert metrics(study.cells, fit.table).as_json() == published["metrics"]["all"]


def test_a_published_table_is_named_by_its_sorted_json(published):
    table = published["integer_table_milli_us"]
    assert table_sha256(dict(reversed(table.items()))) == published["integer_table_sha256"]
    assert table_sha256(table | {"gdn_level": 1}) != published["integer_table_sha256"]


def test_the_plain_loop_of_the_same_method_gives_the_same_table(shared_study, plain_fit, plain_cells):
    study = shared_study("cp4|g4")
    assert plain_fit.fit(plain_cells(study.training)) == list(fit_table(study.training).table.values())


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("ORCHESTRATE_CERTIFICATE_REFIT") != "1",
    reason="the long check of the fit: set ORCHESTRATE_CERTIFICATE_REFIT=1",
)
@pytest.mark.parametrize("features", ["", "AVX2 AVX512F AVX512CD AVX512_SKX AVX512_ICL FMA3", "X86_V3 X86_V4"])
def test_the_fit_and_its_certificate_do_not_depend_on_vector_units_or_threads(shared_cells, features, tmp_path):
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": features, "OPENBLAS_NUM_THREADS": "1" if features else "2"}
    calibrate = [sys.executable, "-W", "ignore", "-m", "orchestrate", "calibrate"]
    for name, holdout in (("published.json", ["--holdout", "cp4|g4"]), ("second.json", [])):
        answer = subprocess.run(
            [*calibrate, "certify", "--cells", str(shared_cells), *holdout, "-o", str(tmp_path / name)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
    for name in ("published.json", "second.json"):
        answer = subprocess.run(
            [*calibrate, "check", str(tmp_path / name)], capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stdout


@pytest.fixture(scope="module")
def plain_cells():
    from orchestrate.analysis.cost_terms import SCALE, cost_terms

    return lambda cells: [
        (
            [tuple(term / SCALE for term in cost_terms(each.features, cell.facts)) for each in cell.candidates],
            [each.median_ms for each in cell.candidates],
        )
        for cell in cells
    ]
