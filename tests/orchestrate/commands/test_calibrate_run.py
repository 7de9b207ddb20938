"""A certificate of a run: its evidence, bound by its receipts, linked by its closure, shown on its page."""

import json

import pytest
from click.testing import CliRunner

from orchestrate.cli import cli
from orchestrate.errors import OrchestrateError

KEYS = tuple(f"cal-text|tiny-hybrid|L4|tp1|cp4|g{group}" for group in range(16))


@pytest.fixture
def run(builder):
    return builder(keys=KEYS).build()


def invoke(*arguments):
    """Exit code and JSON; an error of ours is its exit code and its JSON."""
    answer = CliRunner().invoke(cli, [*map(str, arguments)], standalone_mode=False)
    if isinstance(answer.exception, OrchestrateError):
        return answer.exception.exit_code, answer.exception.as_json()
    if answer.exception is not None:
        raise answer.exception
    return answer.return_value, json.loads(answer.stdout.splitlines()[0])  # click 8.1 mixes standard error in


def test_a_run_is_certified_and_linked_by_the_digest_of_its_closure(run, builder, tmp_path):
    from orchestrate.receipts.verify import verify_run

    path = tmp_path / "certificate.json"
    code, answer = invoke("calibrate", "certify", "--run", run, "-o", path, "--json")
    assert (code, answer["verdict"]) == (0, "certified")
    closure = verify_run(run).closure_sha256
    (receipt,) = answer["receipts"]
    assert receipt == {"run_id": run.name, "closure_sha256": closure, "verdict": "passed", "files_bound": 16}
    assert answer["admitted"]["device_names"] == ["a processor"]
    assert answer["admitted"]["shapes"] == [{"cp": 4, "tp": 1}]
    assert answer["production"]["max_regret_pct"] == pytest.approx(0.1 / 17.5 * 100)
    assert answer["production"]["fitted"]["max_regret_pct"] == 0.0
    assert not any("receipt" in limit and "no receipt" in limit for limit in answer["does_not_prove"])
    assert invoke("calibrate", "check", path, "--json")[0] == 0


def test_the_page_of_the_run_shows_its_certificate_and_no_other(run, builder, tmp_path):
    path, page = tmp_path / "certificate.json", tmp_path / "report.html"
    invoke("calibrate", "certify", "--run", run, "-o", path, "--json")
    assert invoke("report", run, "--certificate", path, "-o", page, "--json")[0] == 0
    text = page.read_text()
    assert text.count("<figure>") == 16
    assert text.count('<line class="automatic"') == 16
    assert 'href="#certificate"' in text
    other = builder("r20260102-030405-ffffff", keys=KEYS, run_id="r20260102-030405-ffffff").build()
    code, error = invoke("report", other, "--certificate", path, "-o", page, "--json")
    assert code == 2
    assert "does not link the run" in error["cause"]
    path.write_bytes(path.read_bytes().replace(b"certified", b"certifieD"))
    assert invoke("report", run, "--certificate", path, "-o", page, "--json")[0] == 2


def test_evidence_that_was_edited_after_the_run_is_refused(run):
    rows = next((run / "evidence").rglob("rows.jsonl"))
    rows.write_text(rows.read_text().replace('"elapsed_ms": 21.5', '"elapsed_ms": 20.5').replace("21.5", "20.5"))
    code, error = invoke("calibrate", "certify", "--run", run, "--json")
    assert code == 4
    assert any("do not hold" in gap for gap in error["gaps"])
    assert any("no receipt of a named run binds it" in gap for gap in error["gaps"])


def test_evidence_of_another_run_is_not_covered(run, builder):
    other = builder("r20260102-030405-ffffff", keys=KEYS, run_id="r20260102-030405-ffffff").build()
    code, error = invoke("calibrate", "certify", "--run", run, "--evidence", other / "evidence", "--json")
    assert code == 4
    assert any("bind none of the evidence files" in gap for gap in error["gaps"])


def test_a_run_without_a_closure_is_refused(builder):
    from orchestrate.receipts.statement import Stage

    cut = builder(keys=KEYS).build(until=Stage.TEARDOWN)
    code, error = invoke("calibrate", "fit", "--run", cut, "--json")
    assert code == 4
    assert any("do not hold" in gap for gap in error["gaps"])


def test_a_cell_that_failed_is_a_gap(builder):
    run = builder(keys=KEYS, failed_cells={KEYS[3]: "failed"}).build()
    code, error = invoke("calibrate", "fit", "--run", run, "--json")
    assert code == 4
    assert any(KEYS[3] in gap and "no end row" in gap for gap in error["gaps"])


def test_several_evidence_files_may_follow_one_option(run, tmp_path):
    files = sorted((run / "evidence").rglob("rows.jsonl"))
    manifest = ["--manifest", manifest_of(tmp_path / "manifest.json")]
    code, answer = invoke("calibrate", "fit", "--evidence", *files, *manifest, "--json")
    assert (code, answer["metrics"]["all"]["cells"]) == (0, 16)
    assert invoke("calibrate", "fit", "--evidence", run / "evidence", *manifest, "--json")[1] == answer


def manifest_of(path, keys=KEYS):
    cells = [{"key": key, "candidates": None} for key in keys]
    path.write_text(
        json.dumps({"schema": "orchestrate.manifest/1", "sets": {"made": {"cells": cells}}, "exclusions": []})
    )
    return path


def test_evidence_is_held_to_the_manifest_that_ships_without_another_word(run):
    code, error = invoke("calibrate", "fit", "--evidence", run / "evidence", "--json")
    assert code == 4
    unexpected = {gap.partition(": is unexpected")[0] for gap in error["gaps"] if "is unexpected" in gap}
    assert unexpected == set(KEYS[8:])
    assert any("mandatory candidate 'uniform_depth_5' is not among" in gap for gap in error["gaps"])


def test_a_run_is_held_to_its_own_plan(run):
    one = next((run / "evidence").rglob("rows.jsonl"))
    code, error = invoke("calibrate", "fit", "--run", run, "--evidence", one, "--json")
    assert code == 4
    assert sum("the manifest expects it, the input does not have it" in gap for gap in error["gaps"]) == 15


def test_evidence_of_cells_that_no_set_has_is_held_to_no_manifest(builder):
    keys = tuple(f"cal-own|tiny-hybrid|L4|tp1|cp4|g{group}" for group in range(16))
    run = builder(keys=keys).build()
    assert invoke("calibrate", "fit", "--evidence", run / "evidence", "--json")[0] == 0


def test_runs_of_two_manifests_need_a_word_on_which_one_holds(run, builder):
    other = builder("r20260102-030405-ffffff", keys=KEYS, run_id="r20260102-030405-ffffff").build()
    plan = other / "plan.json"
    plan.write_text(plan.read_text().replace('"manifest_sha256":"', '"manifest_sha256":"0'))
    code, error = invoke("calibrate", "fit", "--run", run, "--run", other, "--json")
    assert code == 2
    assert "planned by 2 manifests" in error["cause"]
