"""Verification fails, and says why, on every edit, gap, swap and stale expectation; a whole run holds."""

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrate.cells.cell import slug
from orchestrate.lifecycle.source import pin_files
from orchestrate.receipts.canonical import canonical_bytes, sha256_hex
from orchestrate.receipts.judgement import node_source_digest
from orchestrate.receipts.statement import Stage, Subject
from orchestrate.receipts.verify import verify_run
from orchestrate.verdict import Verdict


def why(run_dir, **expectations):
    found = verify_run(run_dir, **expectations)
    assert found.holds is not bool(found.problems)
    return " | ".join(found.problems)


def receipt_of(run_dir, stage):
    return next(
        path
        for path in sorted((run_dir / "receipts").iterdir())
        if json.loads(path.read_bytes())["predicate"]["stage"] == stage
    )


def rows_of(run_dir, key):
    return run_dir / "evidence" / "cells" / slug(key) / "rows.jsonl"


# Runs that hold.


def test_a_whole_passed_run_holds_and_says_what_it_proves_and_what_not(builder):
    found = verify_run(builder().build())
    assert (found.holds, found.problems, found.uncovered) == (True, (), ())
    assert (found.verdict, found.test_verdict, found.device) == (Verdict.PASSED, Verdict.PASSED, "cpu")
    proves, not_proven = " | ".join(found.proves), " | ".join(found.does_not_prove)
    assert found.closure_sha256 in proves
    assert "2 of 2 expected cells" in proves
    assert "not signed" in not_proven
    assert "no GPU evidence" in not_proven
    assert "--expect-closure" in not_proven


def test_a_failed_run_holds_as_failed_and_is_not_taken_for_passed(builder):
    made = builder()
    run_dir = builder("failed", failed_cells={made.keys[0]: "failed"}).build()
    found = verify_run(run_dir)
    assert (found.holds, found.verdict) == (True, Verdict.FAILED)
    assert "passed is required" in why(run_dir, require_passed=True)
    assert "1 of 2 expected cells" in " | ".join(found.proves)


def test_an_h200_run_does_not_lack_gpu_evidence(builder):
    found = verify_run(builder(device="h200").build())
    assert found.holds
    assert "no GPU evidence" not in " | ".join(found.does_not_prove)


def test_a_further_closure_supersedes_the_first_and_both_stay(builder):
    made = builder()
    made.build()
    first = made.store.tip()
    made.write_stage(Stage.TEARDOWN)
    made.write_stage(Stage.CENSUS)
    second = made.close("a second audit")
    found = verify_run(made.run_dir, expect_closure=second)
    assert (found.holds, found.closure_sha256) == (True, second)
    assert "superseded" in why(made.run_dir, expect_closure=first)


def test_a_census_that_still_found_something_makes_a_run_that_holds_as_unconfirmed(builder):
    left = {"remaining": ["process 4242"], "confirmed": False}
    label = Verdict.TEARDOWN_UNCONFIRMED.label

    def facts(stage, said):
        match stage:
            case Stage.CENSUS:
                said["looks"][-1]["remaining"] = left["remaining"]
                return said | left
            case Stage.CLOSURE:
                return said | {"verdict": label, "exit_code": 70}
            case _:
                return said

    found = verify_run(builder(facts_hook=facts).build())
    assert (found.holds, found.verdict, found.test_verdict) == (True, Verdict.TEARDOWN_UNCONFIRMED, Verdict.PASSED)


def test_a_run_refused_before_it_acquired_anything_holds_as_unsatisfiable(builder):
    def facts(stage, said):
        labels = {"verdict": "unsatisfiable", "test_verdict": "unsatisfiable", "exit_code": 78}
        return said | labels if stage is Stage.CLOSURE else said

    later = (Stage.ACQUIRE, Stage.RUN, Stage.COLLECT, Stage.TEARDOWN, Stage.CENSUS)
    found = verify_run(builder(facts_hook=facts).build(skip=later))
    assert (found.problems, found.verdict) == ((), Verdict.UNSATISFIABLE)


# Edits.


@pytest.fixture(scope="module")
def pristine(tmp_path_factory, request):
    """A passed run, built once; its files as bytes."""
    builder = request.getfixturevalue("run_builder")
    run_dir = builder(tmp_path_factory.mktemp("pristine") / "run").build()
    (run_dir / "logs").mkdir()
    (run_dir / "logs" / "node.log").write_text("some output\n")
    return run_dir


def all_files(run_dir):
    return sorted(path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*") if path.is_file())


def test_every_file_is_bound_or_named_as_not_bound(pristine):
    found = verify_run(pristine)
    assert found.holds
    assert found.uncovered == ("logs/node.log",)
    assert all(name in " | ".join(found.does_not_prove) for name in found.uncovered)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_of_any_bound_file_is_found(pristine, data):
    uncovered = (*verify_run(pristine).uncovered, "lock")
    path = pristine / data.draw(st.sampled_from([name for name in all_files(pristine) if name not in uncovered]))
    original = path.read_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(changed)
    try:
        found = verify_run(pristine)
        after_closure = path.name == "journal.jsonl" and place == len(original) - 1
        assert not found.holds or (after_closure and "was cut" in " | ".join(found.does_not_prove))
    finally:
        path.write_bytes(original)


def test_an_empty_lock_says_nothing_and_a_full_one_is_named(builder):
    run_dir = builder().build()
    assert verify_run(run_dir).uncovered == ()
    (run_dir / "lock").write_text("something")
    assert verify_run(run_dir).uncovered == ("lock",)


def test_every_kind_of_file_alone_makes_it_fail_when_it_is_changed_cut_grown_or_gone(pristine, tmp_path):
    uncovered = (*verify_run(pristine).uncovered, "lock")
    for name in all_files(pristine):
        if name in uncovered:
            continue
        original = (pristine / name).read_bytes()
        for damaged in (original[:-2], original + b"\n", b"", None):
            copy = shutil.copytree(pristine, tmp_path / "copy")
            (copy / name).unlink() if damaged is None else (copy / name).write_bytes(damaged)
            found = verify_run(copy)
            # A copy for others has no token, and a line of the journal after the closure may be torn.
            allowed = (name, damaged) in [("token", None), ("journal.jsonl", original[:-2])]
            assert not found.holds or allowed, (name, damaged and len(damaged))
            shutil.rmtree(copy)


def test_a_receipt_under_another_name_is_found(builder):
    run_dir = builder().build()
    path = receipt_of(run_dir, Stage.RUN)
    path.rename(path.with_name(f"{'0' * 64}.json"))
    assert "does not have the content that its name promises" in why(run_dir)


@pytest.mark.parametrize("stage", list(Stage))
def test_a_removed_stage_is_found(builder, stage):
    run_dir = builder().build()
    receipt_of(run_dir, stage).unlink()
    found = why(run_dir)
    assert {"plan": "gap", "closure": "no closure: it is incomplete"}.get(stage, "gap") in found


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in (Stage.PLAN, Stage.CLOSURE)])
def test_a_chain_recomputed_without_a_stage_can_not_say_passed(builder, stage):
    def claim_passed(at, said):
        labels = {"verdict": "passed", "test_verdict": "passed", "exit_code": 0, "missing": []}
        return said | labels | {"cells": {"expected": 2, "complete": 2}} if at is Stage.CLOSURE else said

    assert f"there is no {stage} receipt" in why(builder(facts_hook=claim_passed).build(skip=(stage,)))


def test_stages_in_another_order_are_found(builder):
    made = builder()
    made.build(until=Stage.RUN)
    for stage in (Stage.TEARDOWN, Stage.COLLECT, Stage.CENSUS):
        made.write_stage(stage)
    made.close()
    assert "collect receipt" in why(made.run_dir)
    assert "can not follow a teardown receipt" in why(made.run_dir)


def test_a_stage_that_had_to_be_done_again_is_a_further_attempt(builder):
    made = builder()
    made.build(until=Stage.TEARDOWN)
    made.write_stage(Stage.TEARDOWN, attempt=2)
    made.write_stage(Stage.CENSUS, attempt=2)
    made.close(attempt=2)
    assert why(made.run_dir) == ""


def test_a_second_plan_is_found(builder):
    made = builder()
    made.build(until=Stage.CENSUS)
    made.write_stage(Stage.PLAN, attempt=2)
    made.close()
    assert "does not begin with its only plan receipt" in why(made.run_dir)


def test_a_run_without_a_closure_is_incomplete(builder):
    found = verify_run(builder().build(until=Stage.CENSUS))
    assert (found.holds, found.verdict) == (False, Verdict.INCOMPLETE)
    assert "the run has no closure: it is incomplete" in found.problems


def test_a_receipt_of_another_run_is_found(builder):
    run_dir = builder().build()
    other = receipt_of(builder("other", run_id="r20260102-030405-ffffff").build(), Stage.RUN)
    receipt_of(run_dir, Stage.RUN).unlink()
    shutil.copy(other, run_dir / "receipts")
    assert "a receipt of the run 'r20260102-030405-ffffff' lies in the run" in why(run_dir)


def test_a_whole_foreign_receipts_folder_is_found(builder):
    run_dir, other = builder().build(), builder("other", repeat=2).build()
    shutil.rmtree(run_dir / "receipts")
    shutil.copytree(other / "receipts", run_dir / "receipts")
    assert "plan.json is not the plan that the plan receipt binds" in why(run_dir)


def test_exchanged_evidence_files_are_found(builder):
    made = builder()
    run_dir = made.build()
    one, two = (rows_of(run_dir, key) for key in made.keys)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    found = why(run_dir)
    assert "it was changed" in found
    assert "complete=True" in found


def test_evidence_exchanged_before_it_was_collected_is_found_by_its_own_rows(builder):
    made = builder(rows_hook=lambda key, _rows: made.cell_rows(next(other for other in made.keys if other != key)))
    assert "the plan says" in why(made.build())


@pytest.mark.parametrize("name", ["evidence/cells/more.jsonl", "evidence/.hidden", "receipts/note.txt"])
def test_a_file_that_nothing_lists_is_found(builder, name):
    run_dir = builder().build()
    (run_dir / name).write_text("{}")
    assert name.rpartition("/")[2] in why(run_dir)


def test_a_second_closure_beside_the_first_is_found(builder):
    made = builder()
    made.build()
    closure = json.loads(receipt_of(made.run_dir, Stage.CLOSURE).read_bytes())
    closure["predicate"]["facts"]["reason"] = "another story"
    data = canonical_bytes(closure)
    (made.run_dir / "receipts" / f"{sha256_hex(data)}.json").write_bytes(data)
    assert "forks" in why(made.run_dir)


def test_a_closure_that_does_not_supersede_the_one_before_is_found(builder):
    made = builder()
    made.build()
    made.close("a quiet correction", supersedes=None)
    assert "two closures" in why(made.run_dir)


def test_a_run_chain_recomputed_whole_is_caught_by_the_expected_closure_alone(builder):
    honest = builder().build()
    closure = verify_run(honest).closure_sha256
    forged = builder("forged", repeat=2).build()
    assert verify_run(forged).holds
    assert "is not in this run" in why(forged, expect_closure=closure)
    assert why(honest, expect_closure=closure.upper()) == ""


# Expectations about the commit.


@pytest.mark.parametrize("commit", ["c0ffee0", "C0FFEE0", "c0ffee" + "0" * 34])
def test_the_commit_that_ran_satisfies_its_own_name(builder, commit):
    assert why(builder().build(), expect_commit=commit) == ""


@pytest.mark.parametrize("commit", ["deadbeef", "c0ffee0" + "1" * 33, "c0ffee" + "0" * 35])
def test_another_commit_is_found(builder, commit):
    assert "not the expected" in why(builder().build(), expect_commit=commit)


@pytest.mark.parametrize("commit", ["c0ffe", "", "HEAD", "c0ffee0 "])
def test_a_name_too_short_or_not_a_commit_satisfies_nothing(builder, commit):
    assert "is not 7 to 64 hex digits" in why(builder().build(), expect_commit=commit)


def test_a_dirty_tree_satisfies_no_commit(builder):
    assert "not committed" in why(builder(dirty=True).build(), expect_commit="c0ffee0")


def test_a_closure_that_names_another_commit_than_the_plan_is_found(builder):
    made = builder(facts_hook=lambda stage, said: said | ({"commit": "f" * 40} if stage is Stage.CLOSURE else {}))
    assert "says commit" in why(made.build())


# Verdicts that do not follow.


def closing(**changes):
    return lambda stage, said: said | changes if stage is Stage.CLOSURE else said


@pytest.mark.parametrize(
    ("stage", "change", "why_not"),
    [
        (Stage.RUN, {"exit_code": 1}, "exit code is 1"),
        (Stage.RUN, {"exit_code": False}, "exit code is False"),
        (Stage.RUN, {"signal": 9}, "signal 9"),
        (Stage.RUN, {"ended": "deadline"}, "ended 'deadline'"),
        (Stage.COLLECT, {"sources": {"start": "6" * 64, "end": "7" * 64}}, "sources"),
        (Stage.COLLECT, {"sources": None}, "sources"),
        (Stage.COLLECT, {"sources": {"start": "6" * 64, "end": "6" * 64}}, "at the start are not the planned"),
        (Stage.COLLECT, {"sources": {"node": {"start": "6" * 64, "end": "6" * 64}}}, "that the node ran are not"),
        (Stage.COLLECT, {"device": "h200"}, "device"),
        (Stage.COLLECT, {"files": 1}, "files of evidence"),
        (Stage.CENSUS, {"confirmed": False}, "not confirmed"),
        (Stage.CENSUS, {"remaining": ["process 7"]}, "process 7"),
        (Stage.CENSUS, {"unknown": ["ports"]}, "could not tell"),
        (Stage.CENSUS, {"looks": []}, "0 looks"),
        (Stage.CENSUS, {"remaining": None}, "does not say what is remaining"),
        (Stage.CLOSURE, {"exit_code": 1}, "exit code 1"),
        (Stage.CLOSURE, {"verdict": "fine"}, "no verdict of the table"),
        (Stage.CLOSURE, {"test_verdict": "failed"}, "the cells said failed"),
        (Stage.CLOSURE, {"cells": {"expected": 3, "complete": 3}}, "counts cells"),
        (Stage.CLOSURE, {"device": "h200"}, "device"),
        (Stage.CLOSURE, {"journal": {"records": 3, "head": "0" * 64}}, "not the head"),
        (Stage.CLOSURE, {"journal": {"records": 999, "head": "0" * 64}}, "not the head"),
        (Stage.CLOSURE, {"journal": {"records": 0, "head": "0" * 64}}, "does not name the head"),
        (Stage.CLOSURE, {"receipts": []}, "does not list exactly the receipts"),
        (Stage.CLOSURE, {"verdict": "failed", "test_verdict": "failed", "exit_code": 1}, "nothing in the receipts"),
        (Stage.CLOSURE, {"verdict": "hung", "test_verdict": "hung", "exit_code": 3}, "nothing in the receipts"),
        (Stage.CLOSURE, {"verdict": "capacity", "test_verdict": "capacity", "exit_code": 75}, "nothing in the"),
        (Stage.CLOSURE, {"verdict": "infrastructure", "exit_code": 5}, "nothing in the receipts"),
        (Stage.CLOSURE, {"verdict": "teardown-unconfirmed", "exit_code": 70}, "nothing is left"),
    ],
)
def test_a_verdict_that_does_not_follow_from_the_facts_is_found(builder, stage, change, why_not):
    made = builder(facts_hook=lambda at, said: said | change if at is stage else said)
    assert why_not in why(made.build())


def test_looks_at_one_and_the_same_time_prove_nothing(builder):
    def facts(stage, said):
        if stage is Stage.CENSUS:
            said["looks"][1]["at"] = said["looks"][0]["at"]
        return said

    assert "separate, rising times" in why(builder(facts_hook=facts).build())


def test_looks_within_one_second_are_one_look(builder):
    def facts(stage, said):
        if stage is Stage.CENSUS:
            said["looks"][0]["at"], said["looks"][1]["at"] = "2026-01-02T03:04:49.500Z", "2026-01-02T03:04:50.400Z"
        return said

    assert "less than a second apart" in why(builder(facts_hook=facts).build())


def test_a_run_whose_sources_changed_holds_as_failed_though_every_cell_is_complete(builder):
    def facts(stage, said):
        match stage:
            case Stage.COLLECT:
                return said | {"sources": {"start": "6" * 64, "end": "7" * 64}}
            case Stage.CLOSURE:
                return said | {"verdict": "failed", "test_verdict": "failed", "exit_code": 1}
            case _:
                return said

    assert why(builder(facts_hook=facts).build()) == ""


def test_the_node_and_the_plan_digest_the_same_source_files():
    harness = pytest.importorskip("harness")
    node_run = pytest.importorskip("harness.node_run")
    pins = pin_files(Path(harness.__file__).parent)
    assert len(pins) > 20
    assert node_source_digest(pins) == node_run.source_digest()


def test_another_token_than_the_planned_one_is_found(builder):
    run_dir = builder().build()
    (run_dir / "token").write_text("another\n")
    assert "the token is not the one" in why(run_dir)


def test_a_look_that_asked_nothing_proves_nothing(builder):
    def facts(stage, said):
        if stage is Stage.CENSUS:
            said["looks"][1]["asked"] = []
        return said

    assert "asked nothing" in why(builder(facts_hook=facts).build())


@pytest.mark.parametrize("status", ["failed", "hung", "infrastructure", "unsettled"])
def test_passed_does_not_follow_from_a_cell_that_ended_otherwise(builder, status):
    made = builder()
    forged = builder(
        "forged",
        failed_cells={made.keys[0]: status},
        facts_hook=closing(verdict="passed", test_verdict="passed", exit_code=0, cells={"expected": 2, "complete": 2}),
    )
    assert "the verdict is passed, but the cell" in why(forged.build())


def test_a_missing_cell_is_found(builder):
    def facts(stage, said):
        if stage in (Stage.RUN, Stage.COLLECT):
            said["cells"] = said["cells"][:1]
        return said

    assert "is missing from the collect receipt" in why(builder(facts_hook=facts).build())


def test_a_cell_that_left_no_evidence_is_not_complete(builder):
    made = builder()
    made.build(until=Stage.RUN)
    shutil.rmtree(rows_of(made.run_dir, made.keys[1]).parent)
    for stage in (Stage.COLLECT, Stage.TEARDOWN, Stage.CENSUS):
        made.write_stage(stage)
    made.close()
    assert "it left no evidence" in why(made.run_dir)


def test_a_cell_that_nobody_planned_is_found(builder):
    def facts(stage, said):
        if stage is Stage.COLLECT:
            said["cells"].append(said["cells"][0] | {"key": "cal-more|tiny-hybrid|L4|tp1|cp4"})
        return said

    assert "which is not in the plan" in why(builder(facts_hook=facts).build())


def test_a_run_of_no_cells_can_not_pass(builder):
    assert "no cell was expected" in why(builder(keys=()).build())


def test_rows_that_were_measured_on_a_cpu_are_no_evidence_for_an_h200(builder):
    def on_cpu(_key, rows):
        rows[0]["device"] = {"kind": "cpu", "name": "a processor"}
        return rows

    assert "were measured on 'cpu'" in why(builder(device="h200", rows_hook=on_cpu).build())


def test_a_plan_whose_pins_do_not_match_their_digest_is_found(builder):
    def other_pins(plan):
        plan["source"]["pins"] = {"harness/node.py": "f" * 64}
        return plan

    assert "source pins" in why(builder(plan_hook=other_pins).build())


# Second accounts of the same run.


def node_says(**changes):
    def change(evidence):
        node = json.loads((evidence / "node.json").read_bytes())
        for cell in node["cells"] if "status" in changes else ():
            cell["status"] = changes["status"]
        (evidence / "node.json").write_text(json.dumps(node | changes))

    return change


@pytest.mark.parametrize(
    ("hook", "why_not"),
    [
        (node_says(status="failed"), "the node says that"),
        (node_says(exit_code=1), "exit code was 1"),
        (node_says(exit_code=None), "exit code was None"),
        (node_says(stopped="SIGTERM"), "it was stopped"),
        (node_says(cells=[]), "the node does not name exactly the cells"),
        (node_says(run_id="r20260102-030405-ffffff"), "the node ran"),
        (lambda evidence: (evidence / "node.json").unlink(), "there is no evidence/node.json"),
        (lambda evidence: (evidence / "preflight.json").unlink(), "there is no evidence/preflight.json"),
    ],
)
def test_passed_is_refused_where_the_node_says_otherwise(builder, hook, why_not):
    assert why_not in why(builder(evidence_hook=hook).build())


LOOK = {"at": "1990-01-01T00:00:00Z", "asked": [{"what": "x", "answer": "y"}], "remaining": [], "unknown": []}


@pytest.mark.parametrize(
    ("stage", "change", "why_not"),
    [
        (Stage.RUN, {"cells": []}, "the run receipt does not name exactly the cells"),
        (Stage.RUN, {"fault": "oom"}, "has the fault 'oom'"),
        (Stage.COLLECT, {"problem": "disk full"}, "has the problem 'disk full'"),
        (Stage.ADMIT, {"device": "h200"}, "the device 'h200' was admitted"),
        (Stage.CLOSURE, {"teardown": {"confirmed": False, "remaining": []}}, "says of the teardown"),
        (Stage.CLOSURE, {"teardown": {"confirmed": True, "remaining": ["process 7"]}}, "says of the teardown"),
        (Stage.CENSUS, {"looks": [LOOK, LOOK | {"at": "1990-01-01T00:00:03Z"}]}, "outside of the time of the census"),
        (Stage.CENSUS, {"looks": [LOOK | {"asked": [None]}] * 2}, "asked nothing"),
    ],
)
def test_passed_is_refused_where_a_receipt_says_otherwise(builder, stage, change, why_not):
    made = builder(facts_hook=lambda at, said: said | change if at is stage else said)
    assert why_not in why(made.build())


@pytest.mark.parametrize("ending", [{"ended": "deadline"}, {"exit_code": 1}, {"fault": "oom"}])
def test_passed_is_refused_where_the_journal_says_otherwise(builder, ending):
    assert "the journal says that the payload ended" in why(builder(ending=ending).build())


def test_a_plan_that_pins_nothing_or_contradicts_itself_can_not_pass(builder):
    def no_pins(plan):
        return plan | {"source": plan["source"] | {"pins": {}, "pins_sha256": sha256_hex(canonical_bytes({}))}}

    def other_manifest(plan):
        pins = {"harness/sets/manifest.json": "5" * 64}
        return plan | {"source": plan["source"] | {"pins": pins, "pins_sha256": sha256_hex(canonical_bytes(pins))}}

    assert "pins no source file" in why(builder("a", plan_hook=no_pins).build())
    assert "is not the manifest among its source pins" in why(builder("b", plan_hook=other_manifest).build())
    environment = {"environment": {"REPEAT": "7"}}
    assert "REPEAT='7'" in why(builder("c", plan_hook=lambda plan: plan | environment).build())


def test_a_receipt_that_ends_before_it_starts_is_found(builder):
    made = builder()
    made.build(until=Stage.CENSUS)
    data = json.loads(receipt_of(made.run_dir, Stage.CENSUS).read_bytes())
    receipt_of(made.run_dir, Stage.CENSUS).unlink()
    data["predicate"]["ended_at"] = "1999-01-01T00:00:00Z"
    canonical = canonical_bytes(data)
    (made.run_dir / "receipts" / f"{sha256_hex(canonical)}.json").write_bytes(canonical)
    assert "ends before it starts" in why(made.run_dir)


# The journal.


def test_what_happened_after_the_closure_must_be_closed_too(builder):
    made = builder()
    made.build()
    made.note("note", text="somebody looked at it")
    assert why(made.run_dir) == ""
    made.note("teardown-intent")
    assert "the journal goes on after the newest closure with 'teardown-intent'" in why(made.run_dir)
    made.close("a reap")
    assert why(made.run_dir) == ""


def test_a_journal_that_announces_another_closure_is_found(builder):
    made = builder()
    made.build()
    made.note("closure", closure_sha256="0" * 64)
    assert "announces another closure" in why(made.run_dir)


def test_a_journal_rewritten_with_a_whole_chain_of_its_own_is_found(builder):
    made = builder()
    made.build()
    made.journal.clear()
    (made.run_dir / "journal.jsonl").unlink()
    for _ in range(40):
        made.note("note")
    assert "is not the head that the closure" in why(made.run_dir)


def test_a_torn_last_line_of_the_journal_is_said(builder):
    run_dir = builder().build()
    with (run_dir / "journal.jsonl").open("ab") as stream:
        stream.write(b'{"seq":')
    found = verify_run(run_dir)
    assert found.holds
    assert "was cut" in " | ".join(found.does_not_prove)


# Hostile run directories.


def replace_with_link(path, tmp_path):
    target = tmp_path / f"outside-{path.name}"
    shutil.move(path, target)
    path.symlink_to(target)


@pytest.mark.parametrize("name", ["plan.json", "journal.jsonl", "evidence", "receipts", "evidence/node.json"])
def test_a_link_to_the_very_same_content_elsewhere_is_refused(builder, tmp_path, name):
    run_dir = builder().build()
    replace_with_link(run_dir / name, tmp_path)
    assert "is a symbolic link" in why(run_dir)


def test_a_linked_receipt_is_refused(builder, tmp_path):
    run_dir = builder().build()
    replace_with_link(receipt_of(run_dir, Stage.RUN), tmp_path)
    assert "is a symbolic link" in why(run_dir)


@pytest.mark.parametrize(
    "name", ["plan.json", "journal.jsonl", "evidence/node.json", "evidence/x", "logs", "receipts/x"]
)
@pytest.mark.timeout(20)
def test_a_fifo_in_place_of_a_file_does_not_make_it_wait(builder, name):
    run_dir = builder().build()
    (run_dir / name).unlink(missing_ok=True)
    os.mkfifo(run_dir / name)
    assert "is a FIFO" in why(run_dir)


@pytest.mark.parametrize("name", ["plan.json", "journal.jsonl", "evidence/big", "receipts/big"])
@pytest.mark.timeout(60)
def test_a_giant_file_is_refused_unread(builder, name):
    run_dir = builder().build()
    with (run_dir / name).open("ab") as stream:
        stream.truncate(1 << 40)
    assert "larger than" in why(run_dir)


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "evidence/../plan.json"])
def test_a_subject_that_leads_outside_is_refused(builder, name):
    run_dir = builder().build()
    path = receipt_of(run_dir, Stage.COLLECT)
    tree = json.loads(path.read_bytes())
    tree["subject"][0]["name"] = name
    data = canonical_bytes(tree)
    (run_dir / "receipts" / f"{sha256_hex(data)}.json").write_bytes(data)
    assert "not a plain path inside" in why(run_dir)


@pytest.mark.parametrize(
    "data",
    [b"[" * 200_000, b'{"a":1,"a":2}', b"\xff\xfe", b"", b"null", b"[]", b"7", b'{"schema":"orchestrate.plan/1"}'],
)
@pytest.mark.parametrize("name", ["plan.json", "journal.jsonl", "evidence/node.json", "receipt"])
def test_no_content_makes_it_fall_over(builder, name, data):
    run_dir = builder().build()
    path = run_dir / ("receipts/" + sha256_hex(data) + ".json" if name == "receipt" else name)
    path.write_bytes(data)
    assert why(run_dir)


@pytest.mark.timeout(60)
def test_a_plan_of_endless_rounds_or_of_no_candidates_is_refused_at_once(builder):
    assert "no number of rounds from 1 to" in why(builder(plan_hook=lambda plan: plan | {"repeat": 2**53 - 1}).build())
    nothing = dict.fromkeys(builder().keys, ())
    assert "are not labels" in why(builder("b", plan_hook=lambda plan: plan | {"candidates": nothing}).build())
    assert "which reads no corpus" in why(builder("c", plan_hook=lambda plan: plan | {"candidates": {}}).build())


@pytest.mark.timeout(60)
def test_endless_records_objects_and_lists_are_refused_at_once(builder):
    run_dir = builder().build()
    keys = b",".join(b'"%d":1' % number for number in range(300_000))
    (run_dir / "journal.jsonl").write_bytes(b"{" + keys + b',"299999":1}\n')
    rows_of(run_dir, builder().keys[0]).write_bytes(b"{" + keys + b',"299999":1}\n')
    data = b'{"a":[' + b"[]," * 600_000 + b"1]}"
    (run_dir / "receipts" / f"{sha256_hex(data)}.json").write_bytes(data)
    found = why(run_dir)
    assert "appears twice in one object" in found
    assert "it holds more than 500000 values" in found
    (run_dir / "journal.jsonl").write_bytes(b"[" * (5 << 20) + b"\n")
    assert "is longer than 4194304 bytes" in why(run_dir)


def test_two_cells_that_share_one_folder_of_evidence_are_found(builder, monkeypatch):
    run_dir = builder().build()
    monkeypatch.setattr("orchestrate.receipts.record.slug", lambda _key: slug(builder().keys[0]))
    found = verify_run(run_dir)
    assert "two cells of the plan share one folder of evidence" in found.problems


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_in_any_fact_of_a_well_formed_chain_makes_it_fall_over(run_builder, tmp_path, data):
    stage = data.draw(st.sampled_from(list(Stage)))

    def facts(at, said):
        if at is stage:
            said[data.draw(st.sampled_from(sorted(said)))] = data.draw(JUNK)
        return said

    run_dir = tmp_path / "fuzzed"
    shutil.rmtree(run_dir, ignore_errors=True)
    found = verify_run(run_builder(run_dir, facts_hook=facts).build())
    assert isinstance(canonical_bytes(found.as_json()), bytes)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_in_any_field_of_a_plan_makes_it_fall_over(run_builder, tmp_path, data):
    def plan(tree):
        changed = dict(tree)
        changed[data.draw(st.sampled_from(sorted(set(tree) - {"source"})))] = data.draw(JUNK)
        return changed

    run_dir = tmp_path / "fuzzed"
    shutil.rmtree(run_dir, ignore_errors=True)
    verify_run(run_builder(run_dir, plan_hook=plan).build())


def test_an_empty_folder_does_not_hold(tmp_path):
    found = verify_run(tmp_path)
    assert not found.holds
    assert "there are no receipts" in found.problems


def test_a_problem_text_can_not_steer_a_terminal(builder):
    made = builder()
    made.build()
    plan = Subject("plan.json", sha256_hex((made.run_dir / "plan.json").read_bytes()))
    made.put(Stage.CENSUS, {"looks": "\x1b[2J\n\x07"}, [plan])
    made.close(device="\x1b]0;owned\x07")
    assert "\x1b" not in why(made.run_dir)


def test_an_older_state_of_a_run_is_whole_and_only_the_expected_closure_tells(builder):
    made = builder()
    made.build()
    before = {path: path.read_bytes() for path in made.run_dir.rglob("*") if path.is_file()}
    made.write_stage(Stage.CENSUS, attempt=2)
    newest = made.close("a later look", attempt=2)
    for path in list(made.run_dir.rglob("*.json*")):
        path.write_bytes(before[path]) if path in before else path.unlink()
    found = verify_run(made.run_dir)
    assert found.holds
    assert "later closures may have been taken away" in " | ".join(found.does_not_prove)
    assert "is not in this run" in why(made.run_dir, expect_closure=newest)
