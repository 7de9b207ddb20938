"""A closed run is measured on: only what is missing, as a further attempt whose files lie beside the bound ones."""

import hashlib
import json
import shutil

import pytest

from orchestrate.cells.cell import slug
from orchestrate.receipts.record import load_record
from orchestrate.receipts.statement import Stage
from orchestrate.receipts.verify import verify_run


def half(bed):
    """A run of which half of the cells are complete."""
    run = bed.launch("--behaviour", "half", name="run")
    answer, code = run.answer()
    assert (code, answer["verdict"]) == (5, "infrastructure"), run.err.read_text()
    assert 0 < answer["cells"]["complete"] < answer["cells"]["expected"]
    return run


def resume(bed, run, *arguments):
    return bed.launch("--resume", run.run_id, *arguments, name="run")


def holds(run):
    verification = verify_run(run.path)
    assert verification.holds, verification.problems
    return verification


def files(run):
    return {
        str(path.relative_to(run.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.path.rglob("*"))
        if path.is_file() and path.parts[-2] != "logs" and path.name != "journal.jsonl"
    }


def test_only_what_is_missing_is_measured_and_nothing_that_was_bound_changes(bed):
    run = half(bed)
    before = files(run)
    first = load_record(run.path)
    missing = [cell.key for cell in first.cells if not cell.complete]
    again = resume(bed, run, "--behaviour", "complete")
    answer, code = again.answer()
    assert (code, answer["verdict"], answer["test_verdict"]) == (0, "passed", "passed"), again.err.read_text()
    assert answer["cells"] == {"expected": len(first.cells), "complete": len(first.cells)}
    after = files(run)
    assert {name: after[name] for name in before} == before
    record = load_record(run.path)
    assert sorted(path.name for path in (run.path / "evidence-2" / "cells").iterdir()) == sorted(map(slug, missing))
    assert {key: attempt for key, attempt in record.counted.items() if attempt == 2} == dict.fromkeys(missing, 2)
    assert len(record.closures) == 2
    assert record.closure.facts["supersedes"] == first.closure.sha256
    assert [each["why"] for each in record.closure.facts["attempts"]] == ["first", "resume"]
    assert holds(run).verdict.label == "passed"
    code, out, err = bed.command("verify", str(run.path), "--require-passed", "--json")
    assert code == 0, out + err
    code, out, err = bed.command("report", str(run.path), "-o", str(bed.folder / "page.html"))
    assert code == 0, out + err
    page = (bed.folder / "page.html").read_text()
    assert all(cell.key in page.replace("&#124;", "|") for cell in record.cells)


def test_a_resumption_that_is_refused_keeps_what_was_measured_and_may_be_repeated(bed):
    bed.pretend(**{"*": ["grant", "capacity", "grant"]})
    run = bed.launch("--backend", "k8s", "--behaviour", "half", name="run")
    assert run.answer()[1] == 5
    answer, code = resume(bed, run).answer()
    assert (code, answer["verdict"]) == (75, "capacity")
    assert 0 < answer["cells"]["complete"] < answer["cells"]["expected"]
    assert answer["capacity"]["nothing_ran"] is True
    holds(run)
    answer, code = resume(bed, run, "--behaviour", "complete").answer()
    assert (code, answer["verdict"]) == (0, "passed")
    record = load_record(run.path)
    assert bed.asked()[0]["cells"] == [cell.key for cell in record.cells]
    missing = [cell.key for cell in record.cells if record.counted[cell.key] == 3]
    assert [each["cells"] for each in bed.asked()][1:] == [missing, missing]
    holds(run)


def refused(bed, run, *arguments):
    """What a resumption by the command line answers."""
    code, out, _ = bed.command("launch", "--resume", run.run_id, "--runs-dir", str(run.runs_dir), "--json", *arguments)
    records = len(run.records())
    return code, json.loads(out)["error"]["cause"], records


def test_a_run_from_other_sources_is_not_gone_on_with(bed):
    run = half(bed)
    records = len(run.records())
    code, cause, after = refused(bed, run)
    assert (code, after) == (2, records)
    assert "was launched from another commit" in cause
    (bed.harness / "more.py").write_text("")
    answer, code = resume(bed, run).answer()
    assert code == 2
    assert "another source files of the harness" in answer["error"]["cause"]


def test_nothing_is_measured_where_nothing_is_missing(bed):
    run = bed.launch("--behaviour", "complete", name="run")
    assert run.answer()[1] == 0
    records = len(run.records())
    answer, code = resume(bed, run).answer()
    assert (code, len(run.records())) == (2, records)
    assert "nothing is missing" in answer["error"]["cause"]


def test_a_living_run_and_one_that_was_never_closed_are_not_gone_on_with(bed):
    run = bed.launch("--behaviour", "hold", name="run")
    run.wait_until_up()
    again = bed.launch("--resume", run.run_id, name="run")
    answer, code = again.answer()
    assert (code, answer["error"]["code"]) == (1, "run-is-live")
    run.strike([run.warden(), run.process.pid], 9)
    run.process.wait()
    answer, code = bed.launch("--resume", run.run_id, name="run").answer()
    assert code == 1
    assert "is not closed" in answer["error"]["cause"]


def test_what_may_still_exist_is_settled_first(bed):
    bed.pretend(**{"*": ["stay"]})
    run = bed.launch("--backend", "k8s", name="run")
    assert run.answer()[1] == 70
    answer, code = resume(bed, run).answer()
    assert code == 2
    assert "may still exist" in answer["error"]["cause"]


def test_a_run_whose_receipts_do_not_hold_is_not_gone_on_with(bed):
    run = half(bed)
    (run.path / "evidence" / "preflight.json").write_text("{}")
    answer, code = resume(bed, run).answer()
    assert code == 1
    assert "do not hold" in answer["error"]["cause"]


@pytest.mark.parametrize("option", [["--repeat", "3"], ["--cell-set", "smoke"], ["--backend", "local"]])
def test_an_option_that_would_make_it_another_run_is_refused(bed, option):
    run = half(bed)
    code, cause, _ = refused(bed, run, *option)
    assert code == 2
    assert f"{option[0]} stands beside --resume" in cause


@pytest.fixture
def resumed(bed):
    run = half(bed)
    assert resume(bed, run, "--behaviour", "complete").answer()[1] == 0
    return run


def rows_of(run, attempt):
    folder = run.path / ("evidence" if attempt == 1 else f"evidence-{attempt}") / "cells"
    return next(iter(sorted(folder.iterdir()))) / "rows.jsonl"


def problems_of(run):
    """What does not hold. Digests can be recomputed by whoever forges: each test names another problem."""
    return verify_run(run.path).problems


def test_a_cell_of_another_run_in_the_union_does_not_verify(resumed):
    rows = rows_of(resumed, 2)
    lines = rows.read_text().splitlines()
    header = json.loads(lines[0])
    lines[0] = json.dumps({**header, "run_id": "r20260101-000000-ffffff"})
    rows.write_text("\n".join(lines) + "\n")
    problems = problems_of(resumed)
    assert any("says run_id" in problem for problem in problems), problems


def test_a_cell_of_another_plan_in_the_union_does_not_verify(resumed):
    rows = rows_of(resumed, 2)
    rows.write_text(rows.read_text().replace('"repeat": 2', '"repeat": 3'))
    problems = problems_of(resumed)
    assert any("says repeat" in problem for problem in problems), problems


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_cell_of_another_commit_in_the_union_does_not_verify(resumed, attempt):
    node = resumed.path / ("evidence" if attempt == 1 else "evidence-2") / "node.json"
    document = json.loads(node.read_text())
    document["sources"] = {"start": "0" * 64, "end": "0" * 64}
    node.write_text(json.dumps(document))
    problems = problems_of(resumed)
    who = "the node" if attempt == 1 else "the node of attempt 2"
    assert any(f"{who} ran other source files than the planned ones" in problem for problem in problems), problems


def test_evidence_that_no_attempt_brought_home_does_not_verify(resumed):
    shutil.copytree(resumed.path / "evidence-2", resumed.path / "evidence-3")
    assert any("evidence" in problem for problem in verify_run(resumed.path).problems)


def test_a_removed_attempt_does_not_verify(resumed):
    shutil.rmtree(resumed.path / "evidence-2")
    assert not verify_run(resumed.path).holds


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_launcher_killed_at_any_record_of_a_resumption_leaves_nothing(bed, moment):
    base = half(bed)
    pristine = bed.folder / "pristine"
    shutil.copytree(base.path, pristine)
    assert resume(bed, base, "--behaviour", "complete").answer()[1] == 0
    already = len((pristine / "journal.jsonl").read_text().splitlines())
    complete = sum(cell.complete for cell in load_record(pristine).cells)
    count = len(base.kinds()) - already
    cancelled = 0
    for wave in bed.waves(count):
        runs = {}
        for number in wave:
            name = f"{moment}{number}"
            (bed.folder / name).mkdir()
            shutil.copytree(pristine, bed.folder / name / base.run_id)
            strike = (f"--strike-{moment}", str(number))
            runs[number] = bed.launch("--resume", base.run_id, "--behaviour", "complete", *strike, name=name)
        for number, run in runs.items():
            run.process.wait(60)
            if "warden-started" not in run.kinds()[already:] and not run.alive():
                bed.command("audit", "--runs-dir", str(run.runs_dir), "--run", run.run_id, "--reap")
            closure = run.gone()
            told = (number, run.kinds()[already:], closure)
            assert closure["teardown"]["confirmed"], told
            assert closure["cells"]["complete"] >= complete, told
            # How many steps of progress a launcher sees differs from run to run: whether this one was killed before
            # it had closed is read from its own journal.
            cancelled += closure["verdict"] == "cancelled"
            assert closure["verdict"] == "cancelled" or "takeover" not in run.kinds()[already:], told
            holds(run)
    assert cancelled > count // 2


def test_the_stages_of_a_verdict_are_those_of_the_newest_attempt(resumed):
    record = load_record(resumed.path)
    assert record.stages[Stage.RUN]["exit_code"] == 0
    assert next(each for each in record.receipts if each.stage is Stage.RUN).facts["exit_code"] == 5


def test_calibrate_reads_each_cell_from_the_attempt_that_counts(bed, resumed):
    code, out, err = bed.command("calibrate", "fit", "--run", str(resumed.path), "--json")
    record = load_record(resumed.path)
    names = [f"{slug(cell.key)}/rows.jsonl" for cell in record.cells]
    assert all(name in out for name in names), (code, out[-2000:], err[-2000:])
