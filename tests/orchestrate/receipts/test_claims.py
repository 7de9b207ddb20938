"""What is said of a run is so, also where a part of it is missing: nothing ran, no closure, another source."""

import json

import pytest

from orchestrate.receipts.claims import not_proven, proven
from orchestrate.receipts.record import load_record
from orchestrate.receipts.statement import Stage
from orchestrate.receipts.verify import verify_run

AFTER_ADMISSION = (Stage.ACQUIRE, Stage.RUN, Stage.COLLECT, Stage.TEARDOWN, Stage.CENSUS)
COMMIT = "c0ffee" + "0" * 34


def refused(stage, said):
    labels = {"verdict": "capacity", "test_verdict": "capacity", "exit_code": 75, "device": "none"}
    return said | labels if stage is Stage.CLOSURE else said


def groups_plan(reports):
    rows = [{"name": name, "report": report} for name, report in reports.items()]
    more = {"payload": "groups", "qualification": {"groups": rows}, "cells": list(reports), "candidates": {}}
    more["qualified"] = {"archive_sha256": "a" * 64, "files": {"readme.txt": "b" * 64}, "working_tree_differs": True}
    return lambda plan: plan | more


def groups_evidence(reports, *, changed=(), started=True, failed=(), added=()):
    """Evidence of groups of which each but `failed` passed one test, or none where its exit code is its report."""

    def write(evidence):
        cells = []
        for name, report in reports.items():
            status = "failed" if name in failed else "complete"
            at = "2026-01-02T03:04:06Z" if started else None
            cells.append({"key": name, "status": status, "reason": "", "exit_code": 0, "started_at": at})
            if name in added:
                cells[-1]["added"] = {"count": len(added[name]), "first": added[name]}
            if report == "pytest":
                head = {"schema": "harness.pytest-report/1", "session": "a"}
                rows = [{"kind": "start"}, {"kind": "collected", "count": 1}]
                rows += [
                    {"kind": "test", "test": "t", "when": when, "outcome": "passed"}
                    for when in ("setup", "call", "teardown")
                ]
                rows.append({"kind": "finish", "exit_status": 0})
                (evidence / "groups" / name).mkdir(parents=True)
                text = "".join(json.dumps(head | row) + "\n" for row in rows)
                (evidence / "groups" / name / "tests.jsonl").write_text(text)
        qualified = {"archive_sha256": "a" * 64, "changed": list(changed)}
        node = {"schema": "harness.node/1", "payload": "groups", "cells": cells, "qualified": qualified}
        (evidence / "node.json").write_text(json.dumps(node))
        (evidence / "sources.json").write_text(json.dumps({"readme.txt": "b" * 64}))

    return write


@pytest.mark.parametrize("payload", ["cells", "groups"])
def test_of_a_run_of_which_nothing_ran_no_result_no_file_and_no_measurement_is_claimed(builder, payload):
    plan = {"keys": ("unit",), "plan_hook": groups_plan({"unit": "pytest"})} if payload == "groups" else {}
    found = verify_run(builder(facts_hook=refused, **plan).build(skip=AFTER_ADMISSION))
    assert found.holds, found.problems
    proves, not_proves = " | ".join(found.proves), " | ".join(found.does_not_prove)
    count = "0 of 1 expected groups passed" if payload == "groups" else "0 of 2 expected cells are complete"
    assert f"{count}: no receipt says that any was started" in proves
    for untrue in ("on the files", "unchanged", "reports", "rows", "measured", "evidence files"):
        assert untrue not in proves
    for untrue in ("the run was on none", "measured honestly", "is what ran"):
        assert untrue not in not_proves
    assert f"no GPU evidence, nor any other: no {payload.removesuffix('s')} left any" in not_proves
    assert f"that the commit {COMMIT} ran: there is no evidence of it" in not_proves


def test_a_run_that_is_not_closed_has_the_commit_that_its_plan_names(builder):
    found = verify_run(builder().build(until=Stage.COLLECT))
    said = " | ".join(found.does_not_prove)
    assert not found.holds
    assert f"that the commit {COMMIT} is what ran: the run is not closed" in said
    assert "no GPU evidence: the run was on cpu" in said
    assert "a closure may have been taken away" in said
    for untrue in ("names none", "unknown device", "later closures"):
        assert untrue not in said


def test_a_run_that_was_never_collected_has_no_known_device(builder):
    said = " | ".join(verify_run(builder().build(until=Stage.RUN)).does_not_prove)
    assert "no GPU evidence: no receipt says on which device the run was" in said


def test_a_plan_without_a_commit_names_none_and_one_of_an_unknown_tree_may_have_changes(builder):
    def source(**members):
        return lambda plan: plan | {"source": plan["source"] | members}

    said = verify_run(builder("a", plan_hook=source(commit=None)).build(until=Stage.PLAN)).does_not_prove
    assert "which commit ran: the plan names none" in said
    said = verify_run(builder("b", plan_hook=source(dirty=None)).build()).does_not_prove
    assert f"that the commit {COMMIT} is what ran: nobody knows whether the tree had changes" in said


REPORTS = {"unit": "pytest", "lint": "exit-code"}


def claims(builder, **evidence):
    made = builder(
        keys=tuple(REPORTS), plan_hook=groups_plan(REPORTS), evidence_hook=groups_evidence(REPORTS, **evidence),
        rows_hook=lambda _key, _rows: [],
    )  # fmt: skip
    record = load_record(made.build())
    assert record.problems == []
    return " | ".join(proven(record)), " | ".join(not_proven(record, (), pinned=False))


def test_groups_that_passed_did_so_by_their_reports_or_their_exit_codes_on_the_files_of_the_commit(builder):
    proves, not_proves = claims(builder)
    assert "2 of 2 expected groups passed by their own reports, 1 tests in all (1 of them by exit code alone)" in proves
    assert f"ran on the files of the commit {COMMIT}, unchanged from start to end" in proves
    assert f"the plan names the commit {COMMIT}, and nothing of the working tree travelled" in proves
    assert "clean tree" not in proves
    assert "could have written other reports" in not_proves


def test_tests_of_a_group_that_failed_are_none_of_those_that_passed(builder):
    proves, _ = claims(builder, failed=("unit",))
    assert "1 of 2 expected groups passed by their own reports, 0 tests in all (1 of them by exit code alone)" in proves


def test_files_that_changed_are_not_said_to_be_unchanged(builder):
    proves, _ = claims(builder, changed=("readme.txt",))
    assert "0 of 2 expected groups passed by their own reports |" in proves
    assert "unchanged" not in proves


def test_groups_that_never_started_ran_on_no_files(builder):
    proves, _ = claims(builder, started=False)
    assert "unchanged" not in proves


def test_what_no_group_saw_and_what_lay_beside_the_source_is_named(builder):
    left = [f"sub/{number}" for number in range(7)]
    plan_hook = groups_plan(REPORTS)

    def plan(tree):
        tree = plan_hook(tree)
        return tree | {"qualified": tree["qualified"] | {"left_out": left}}

    made = builder(
        keys=tuple(REPORTS), plan_hook=plan, rows_hook=lambda _key, _rows: [],
        evidence_hook=groups_evidence(REPORTS, added={"unit": ["conftest.py"], "lint": ["conftest.py", "x"]}),
    )  # fmt: skip
    said = " | ".join(not_proven(load_record(made.build()), (), pinned=False))
    assert "what the archive of the commit leaves out: 7 files: sub/0, sub/1, sub/2, sub/3, sub/4 and 2 more" in said
    assert "commit's files alone: beside them lay, after lint, 2 files: conftest.py, x" in said


def test_where_nothing_was_left_out_or_lay_beside_nothing_is_said_of_it(builder):
    _, not_proves = claims(builder)
    assert "leaves out" not in not_proves
    assert "beside" not in not_proves


def test_the_key_of_a_closure_measured_nothing(builder):
    record = load_record(builder().build())
    said = not_proven(record, (), pinned=False, signed_by=("a" * 64,))
    assert said[0].startswith("who made it: the closure is signed by aaaa")
