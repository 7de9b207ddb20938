import json

import pytest

from orchestrate.qualify.group_file import Report
from orchestrate.qualify.judgement import judge_groups, verdict_of
from orchestrate.verdict import Verdict


def report(*tests, status=0, extra=(), collected=None, reason="because"):
    rows = [{"kind": "start"}, *extra]
    if collected is not False:
        rows.append({"kind": "collected", "count": len(tests) if collected is None else collected})
    for name, outcome, *xfail in tests:
        rows.extend(
            {
                "kind": "test",
                "test": name,
                "when": when,
                "reason": reason,
                "outcome": outcome if when == "call" else "passed",
                "xfail": bool(xfail),
            }
            for when in ("setup", "call", "teardown")
        )
    rows.append({"kind": "finish", "exit_status": status})
    head = {"schema": "harness.pytest-report/1", "session": "s"}
    return b"".join(json.dumps({**head, **row}).encode() + b"\n" for row in rows)


AWAY = {"kind": "deselected", "test": "b"}


def judged(
    status="complete", tests=None, kind=Report.PYTEST, exit_code=0, started="2026-01-01T00:00:00Z", packages=None,
    **record,
):  # fmt: skip
    row = {"key": "unit", "status": status, "reason": "so", "exit_code": exit_code, "started_at": started, **record}
    data = {"schema": "harness.node/1", "payload": "groups", "cells": [row]}
    files = {} if tests is None else {"groups/unit/tests.jsonl": tests}
    if packages is not None:
        files["packages.json"] = json.dumps(packages).encode()
    (found,) = judge_groups([("unit", kind)], data, files)
    return found


def test_a_group_passes_with_a_whole_report_of_passed_tests():
    found = judged(tests=report(("a", "passed"), ("b", "skipped")))
    assert found.verdict is Verdict.PASSED
    assert [row.test for row in found.counts.skipped] == ["b"]


@pytest.mark.parametrize(
    ("found", "verdict", "said"),
    [
        (judged(tests=report()), Verdict.INCOMPLETE, "no test was collected"),
        (judged(tests=report(extra=[AWAY])), Verdict.INCOMPLETE, "all 1 tests were deselected"),
        (judged(tests=report(("a", "passed", True))), Verdict.INCOMPLETE, "no test passed: 1 are marked to fail"),
        (judged(tests=report(("a", "skipped"))), Verdict.INCOMPLETE, "all 1 tests were skipped"),
        (judged(tests=report(("a", "passed"), collected=2)), Verdict.INCOMPLETE, "never ran"),
        (judged(tests=None), Verdict.INCOMPLETE, "report is empty"),
        (judged(tests=report(("a", "failed"))), Verdict.FAILED, "though it exited with 0"),
        (judged("failed", report(("a", "failed"), status=1), exit_code=1), Verdict.FAILED, "first: a: because"),
        (judged("failed", report(("a", "passed")), exit_code=3), Verdict.FAILED, "so"),
        (judged("failed", b"", exit_code=1), Verdict.FAILED, "so"),
        (judged("hung", report(("a", "passed"))), Verdict.HUNG, "so"),
        (judged("infrastructure", b""), Verdict.INFRASTRUCTURE, "so"),
        (judged("cancelled", b""), Verdict.CANCELLED, "so"),
        (judged("unsettled", started=None, exit_code=None), Verdict.INCOMPLETE, "so"),
        (judged("complete", started=None), Verdict.INCOMPLETE, "without having run"),
        (judged("brilliant", report(("a", "passed"))), Verdict.INCOMPLETE, "unknown"),
        (judged(kind=Report.EXIT_CODE), Verdict.PASSED, "so"),
        (judged(kind=Report.EXIT_CODE, exit_code=None), Verdict.INCOMPLETE, "without having run"),
        (judged(kind=Report.JUNIT), Verdict.INCOMPLETE, "no JUnit report"),
    ],
)
def test_the_evidence_decides(found, verdict, said):
    assert found.verdict is verdict
    assert said in found.reason


SHOWN = """file /a.py, line 1
  def test_f(broken):
E       fixture 'broken' not found
>       available fixtures: cache, tmp_path
>       use 'pytest --fixtures [testpath]' for help on them."""


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("AssertionError: assert [1] == [2]\n  \n  At index 0 diff: 1 != 2\n  Use -v to get more diff",
         "AssertionError: assert [1] == [2]"),
        ("AssertionError: \nNot equal to tolerance rtol=1e-07, atol=0\n\nMismatched elements: 1 / 1 (100%)",
         "AssertionError: Not equal to tolerance rtol=1e-07, atol=0"),
        (SHOWN, "fixture 'broken' not found"),
        ('Traceback (most recent call last):\n  File "a.py", line 1\nValueError: no', "ValueError: no"),
        ("java.lang.AssertionError: expected:<1> but was:<2>\n\tat a.B.c(B.java:1)",
         "java.lang.AssertionError: expected:<1> but was:<2>"),
        ("[XPASS(strict)] fixed", "[XPASS(strict)] fixed"),
        ("ValueError:", "ValueError:"),
        ("", "without a reason"),
    ],
)  # fmt: skip
def test_a_failed_group_is_told_by_the_line_that_says_what_is_wrong(reason, line):
    found = judged("failed", report(("a", "failed"), status=1, reason=reason), exit_code=1)
    assert found.reason == f"so; first: a: {line}"


def test_a_module_that_can_not_be_imported_is_incomplete_and_named():
    error = {"kind": "collect-error", "test": "a.py", "reason": "E\nModuleNotFoundError: No module named 'triton'"}
    found = judged("unsettled", report(status=2, extra=[error], collected=False), exit_code=2)
    assert found.verdict is Verdict.INCOMPLETE
    assert "No module named 'triton'" in found.reason


LACKS = "pytest is not installed there (No module named pytest)"


@pytest.mark.parametrize("packages", [{}, {"numpy": "2", "pytest-cov": "1"}])
def test_a_pytest_that_is_not_installed_is_named(packages):
    found = judged("unsettled", exit_code=1, packages=packages)
    assert (found.verdict, found.reason) == (Verdict.INCOMPLETE, f"it exited with 1: {LACKS}")
    assert judged(packages=packages).reason == LACKS


@pytest.mark.parametrize(
    "found",
    [
        judged("unsettled", exit_code=1, packages={"Pytest": "8"}),
        judged("unsettled", exit_code=1, packages=[]),
        judged("unsettled", exit_code=1),
        judged("unsettled", report(status=5), exit_code=5, packages={}),
        judged("unsettled", exit_code=None, packages={}),
        judged("hung", packages={}),
    ],
)
def test_nothing_else_is_laid_on_a_missing_pytest(found):
    assert found.reason == "so"


def test_what_failed_decides_over_what_could_not_run_for_its_sake():
    assert verdict_of([Verdict.PASSED, Verdict.INCOMPLETE, Verdict.FAILED]) is Verdict.FAILED
    assert verdict_of([Verdict.INCOMPLETE, Verdict.PASSED]) is Verdict.INCOMPLETE


@pytest.mark.parametrize("node", [{}, {"schema": "harness.node/1", "cells": []}, {"schema": "x", "payload": "groups"}])
def test_a_group_that_nobody_speaks_of_is_incomplete(node):
    found = judge_groups([("unit", Report.PYTEST)], node, {})
    assert found[0].verdict is Verdict.INCOMPLETE


def test_nothing_is_not_a_pass():
    assert verdict_of(()) is Verdict.INCOMPLETE
