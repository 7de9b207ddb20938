"""A command that failed although its report shows no failure: what the node says of it, and the judge after it."""

import json
import sys

import pytest

from harness.group_report import why_undecided
from orchestrate.qualify.group_file import Report
from orchestrate.qualify.judgement import judge_groups
from orchestrate.verdict import Verdict

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
SKIPPED = "import pytest\npytest.skip('not here', allow_module_level=True)\n"
FILES = {
    "good/test_a.py": "def test_a(): pass\n",
    "bad/test_a.py": "def test_a(): assert 1 == 2\n",
    "skipped/test_a.py": SKIPPED,
    "skips/test_a.py": "import pytest\n@pytest.mark.skip(reason='no')\ndef test_a(): pass\n",
    "marked/test_a.py": "import pytest\n@pytest.mark.xfail\ndef test_a(): assert 0\n",
    "unread/test_a.py": "import no_such_module_here\n",
    "crash/test_a.py": "import os\ndef test_a(): os._exit(7)\n",
    "empty/readme.txt": "",
}


def shell(script):
    return ["bash", "-c", script.replace("pytest", " ".join(PYTEST))]


GROUPS = {
    "none": ([*PYTEST, "empty"], "unsettled", "it exited with 5: no test was collected"),
    "wrapped": (shell("pytest empty || exit 2"), "unsettled", "it exited with 2: no test was collected"),
    "deselected": ([*PYTEST, "good", "-k", "nothing"], "unsettled", "it exited with 5: all 1 tests were deselected"),
    "skipped": ([*PYTEST, "skipped"], "unsettled", "it exited with 5: all 1 tests were skipped"),
    "skips": (shell("pytest skips && exit 3"), "unsettled", "it exited with 3: all 1 tests were skipped"),
    "marked": (shell("pytest marked && exit 3"), "failed", "it exited with 3"),
    "absent": ([*PYTEST, "no/such/folder"], "unsettled", "it exited with 4: pytest ended with status 4"),
    "mistyped": ([*PYTEST, "--no-such-option"], "unsettled", "it exited with 4: the test report is empty"),
    "never": (["no-such-program-here"], "unsettled", "can not be started: No such file or directory: the test report"),
    "unread": ([*PYTEST, "unread"], "unsettled", "it exited with 2: pytest could not collect every test"),
    "crash": ([*PYTEST, "crash"], "unsettled", "it exited with 7: pytest did not finish"),
    "half": (shell("pytest good; pytest empty"), "unsettled", "in one of its 2 runs of pytest no test was collected"),
    "bad": ([*PYTEST, "bad"], "failed", "it exited with 1"),
    "both": (shell("pytest bad; pytest empty"), "failed", "it exited with 5"),
    "after": (shell("pytest good && exit 3"), "failed", "it exited with 3"),
    "passed": ([*PYTEST, "good"], "complete", ""),
}


def test_a_failed_command_of_which_no_test_ran_is_open_and_one_of_which_a_test_failed_is_not(qualify):
    groups = [{"name": name, "command": command, "report": "pytest"} for name, (command, _, _) in GROUPS.items()]
    node = qualify(*groups, files=FILES)
    assert node.wait() == 1
    reports = {f"groups/{name}/tests.jsonl": node.evidence / f"groups/{name}/tests.jsonl" for name in GROUPS}
    files = {name: path.read_bytes() for name, path in reports.items() if path.exists()}
    judged = judge_groups([(name, Report.PYTEST) for name in GROUPS], node.result(), files)
    verdicts = {"unsettled": Verdict.INCOMPLETE, "failed": Verdict.FAILED, "complete": Verdict.PASSED}
    for (name, (_, status, said)), found in zip(GROUPS.items(), judged, strict=True):
        assert (node.group(name)["status"], found.verdict) == (status, verdicts[status]), name
        assert said in node.group(name)["reason"]


def test_without_a_test_that_failed_the_node_ends_as_incomplete(qualify):
    node = qualify({"name": "none", "command": [*PYTEST, "empty"], "report": "pytest"}, files=FILES)
    assert node.wait() == 4


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<testsuites/>", "its JUnit report has no test"),
        ("<testsuite><testcase name='a'><skipped/></testcase></testsuite>", "all 1 tests were skipped"),
        (
            "<testsuite><testcase status='notrun'/><testcase><skipped/></testcase></testsuite>",
            "all 2 tests were skipped",
        ),
        ("<testsuite><testcase><skipped/><skipped/></testcase><testcase/></testsuite>", ""),
        ("<testsuite><skipped/><testcase/></testsuite>", ""),
        ("<testsuite><testcase", "the JUnit report is damaged"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><testsuite/>", "the JUnit report is damaged"),
        ("<?xml version='1.0' encoding='no-such'?><testsuite/>", "the JUnit report is damaged"),
        (None, "it wrote no JUnit report"),
        ("<testsuite><testcase name='a'/></testsuite>", ""),
        ("<testsuite><testcase name='a'><error/></testcase></testsuite>", ""),
    ],
)
def test_a_junit_report_without_a_failure_is_one_only_where_tests_passed(tmp_path, text, why):
    if text is not None:
        (tmp_path / "junit.xml").write_text(text)
    assert why_undecided("junit", tmp_path, 1) == why


def test_a_group_without_tests_is_decided_by_its_exit_code_alone(tmp_path):
    assert why_undecided("exit-code", tmp_path, 5) == ""


@pytest.mark.parametrize(
    "row", [[], "x", {}, {"session": []}, {"session": "a", "kind": "finish", "exit_status": float("inf")},
            {"session": "a", "kind": "test", "outcome": "failed", "test": {}}],
)  # fmt: skip
def test_a_strange_line_is_damage(tmp_path, row):
    (tmp_path / "tests.jsonl").write_text(json.dumps(row) + "\n")
    assert why_undecided("pytest", tmp_path, 1) == "the test report is damaged"


def test_a_test_that_passes_at_a_later_try_did_not_fail(tmp_path):
    told = [("setup", "passed"), ("call", "failed"), ("teardown", "passed")]
    again = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]
    rows = [{"session": "a", "kind": "test", "test": "t", "when": w, "outcome": o} for w, o in (*told, *again)]
    path = tmp_path / "tests.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert why_undecided("pytest", tmp_path, 1) == "pytest did not finish"


def test_what_a_group_did_to_its_source_fails_it_though_no_test_ran(qualify):
    node = qualify(
        {"name": "edits", "command": shell("echo >> readme.txt; pytest empty"), "report": "pytest"}, files=FILES
    )
    assert node.wait() == 1
    assert (node.group("edits")["status"], "readme.txt" in node.group("edits")["reason"]) == ("failed", True)
