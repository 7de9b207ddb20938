import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.group_report import why_undecided
from orchestrate.qualify.test_counts import Named, from_junit, from_pytest_report

PLUGIN = Path(__file__).parents[3] / "harness/pytest_report"


def run_pytest(folder, *arguments, program=None, **files):
    """The plugin's report of a real pytest over `files`, or of another `program` of Python."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    report = folder / "report.jsonl"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"ORCHESTRATE_PYTEST_REPORT": str(report), "PYTHONPATH": str(PLUGIN)}
    env |= {"PYTEST_PLUGINS": "orchestrate_pytest_report"}
    command = program or ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={folder}/junit.xml", *arguments]
    subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, check=False)
    return report.read_bytes()


ALL_KINDS = """
import pytest

def test_good(): pass
@pytest.mark.parametrize("n", [1, 2])
def test_many(n): pass
def test_bad(): assert 1 == 2
@pytest.mark.skip(reason="no GPU here")
def test_skipped(): pass
@pytest.mark.xfail(reason="known")
def test_xfail(): assert False
@pytest.mark.xfail(reason="fixed by now")
def test_xpass(): pass
@pytest.mark.xfail(strict=True, reason="fixed")
def test_strict(): pass
@pytest.fixture
def broken(): raise RuntimeError("no database")
def test_setup(broken): pass
@pytest.fixture
def late():
    yield
    raise RuntimeError("could not clean up")
def test_teardown(late): pass
def test_away(): pass
"""


def test_each_test_counts_once_by_what_became_of_it(tmp_path):
    counts = from_pytest_report(run_pytest(tmp_path, "-k", "not away", test_all=ALL_KINDS))
    assert counts.passed == 3
    assert [row.test.split("::")[1] for row in counts.failed] == ["test_bad", "test_strict"]
    assert [(row.test.split("::")[1], "database" in row.reason) for row in counts.errors] == [
        ("test_setup", True),
        ("test_teardown", False),
    ]
    assert counts.skipped == (Named("test_all.py::test_skipped", "no GPU here"),)
    assert [row.reason for row in counts.xfailed] == ["known"]
    assert [row.test for row in counts.xpassed] == ["test_all.py::test_xpass"]
    assert counts.deselected == 1
    assert counts.gaps == ()


def test_junit_of_the_same_tests_has_the_same_failures(tmp_path):
    run_pytest(tmp_path, "-k", "not away and not teardown", test_all=ALL_KINDS)
    counts = from_junit((tmp_path / "junit.xml").read_bytes())
    assert [row.test for row in counts.failed] == ["test_all::test_bad", "test_all::test_strict"]
    assert [row.test for row in counts.errors] == ["test_all::test_setup"]
    assert counts.skipped == (Named("test_all::test_skipped", "no GPU here"),)
    assert len(counts.xfailed) == 1
    assert counts.gaps == ()


def test_a_long_failure_is_told_from_its_beginning(tmp_path):
    counts = from_pytest_report(run_pytest(tmp_path, test_a="def test_1(): raise ValueError('x' + ' y' * 3000)"))
    assert counts.failed[0].reason.startswith("ValueError: x y")


def test_a_missing_import_is_named(tmp_path):
    counts = from_pytest_report(run_pytest(tmp_path, test_a="import no_such_module_here", test_b="def test(): pass"))
    assert counts.collection_errors[0].test == "test_a.py"
    assert "no_such_module_here" in counts.collection_errors[0].reason
    assert counts.gaps


def test_a_module_that_skips_itself_is_a_skip_with_its_reason(tmp_path):
    text = "import pytest; pytest.importorskip('no_such_module_here')"
    counts = from_pytest_report(run_pytest(tmp_path, test_a=text))
    assert counts.passed == 0
    assert "no_such_module_here" in counts.skipped[0].reason


def test_a_run_that_stops_early_has_a_gap(tmp_path):
    text = "def test_1(): assert 0\ndef test_2(): pass\ndef test_3(): pass"
    counts = from_pytest_report(run_pytest(tmp_path, "-x", test_a=text))
    assert "2 of 3 collected tests never ran" in counts.gaps


def test_a_killed_pytest_has_a_gap(tmp_path):
    text = "import os\ndef test_1(): pass\ndef test_2(): os._exit(0)\n"
    counts = from_pytest_report(run_pytest(tmp_path, test_a=text))
    assert counts.passed == 1
    assert "pytest did not finish" in counts.gaps


SUBTESTS = """
import pytest, unittest

class T(unittest.TestCase):
    def test_sub(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertNotEqual(i, 1)

    def test_skips(self):
        for i in range(2):
            with self.subTest(i=i):
                if i: self.skipTest("one")
                assert i

def test_fixture(subtests):
    with subtests.test():
        assert False
    with subtests.test():
        pass
"""


@pytest.mark.skipif(int(pytest.__version__.split(".")[0]) < 9, reason="subtests are built in since pytest 9")
def test_a_failed_subtest_fails_its_test(tmp_path):
    counts = from_pytest_report(run_pytest(tmp_path, test_a=SUBTESTS))
    assert [row.test.split("::")[-1] for row in counts.failed] == ["test_skips", "test_sub", "test_fixture"]
    assert (counts.passed, counts.skipped, counts.gaps) == (0, (), ())


@pytest.mark.parametrize("later", ["call passed", "call skipped", "teardown skipped"])
def test_what_failed_stays_failed_until_it_is_tried_again(later):
    counts = from_pytest_report(lines(told("setup passed", "call failed", later, "teardown passed", status=1)))
    assert ([row.test for row in counts.failed], counts.passed, counts.skipped) == (["a.py::t"], 0, ())


def test_a_pytest_that_says_a_failure_which_its_report_does_not_have_is_a_gap(tmp_path):
    hook = "def pytest_runtest_teardown(item): item.session.testsfailed += 1"
    counts = from_pytest_report(run_pytest(tmp_path, conftest=hook, test_a="def test_1(): pass"))
    assert (counts.passed, counts.bad) == (1, ())
    assert counts.gaps == ("pytest ended with status 1, and no test that failed is in the report",)


def told(*phases, status=0):
    rows = [("start", {}), ("collected", {"count": 1})]
    for phase in phases:
        when, outcome = phase.split()
        rows.append(("test", {"test": "a.py::t", "when": when, "outcome": outcome}))
    return [*rows, ("finish", {"exit_status": status})]


@pytest.mark.parametrize("ended", [[], ["teardown passed"]], ids=["without-its-teardown", "with-its-teardown"])
def test_a_test_that_passes_at_the_second_try_stays_visible(ended):
    rows = told("setup passed", "call rerun", *ended, "setup passed", "call passed", "teardown passed")
    counts = from_pytest_report(lines(rows))
    assert counts.passed == 1
    assert counts.retried == (Named("a.py::t", "tried 2 times, in the end passed"),)
    assert counts.gaps == ()


def lines(rows, session="s"):
    head = {"schema": "harness.pytest-report/1", "session": session}
    return b"".join(json.dumps({**head, "kind": kind, **fields}).encode() + b"\n" for kind, fields in rows)


def test_an_empty_report_is_a_gap():
    assert from_pytest_report(b"").gaps


TWO_AT_ONCE = """
import sys, threading, pytest
both = threading.Barrier(2, timeout=30)
sys.modules["both"] = both
run = [threading.Thread(target=pytest.main, args=[["-q", "-p", "no:cacheprovider", "-s", name]])
       for name in ("test_a.py", "test_b.py")]
for each in run: each.start()
for each in run: each.join()
"""


def test_two_runs_of_pytest_at_once_in_threads_of_one_process_are_both_reported(tmp_path):
    waits = "import sys\ndef test_1(): sys.modules['both'].wait(); sys.modules['both'].wait()\n"
    counts = from_pytest_report(
        run_pytest(tmp_path, program=["run.py"], run=TWO_AT_ONCE, test_a=waits, test_b=f"{waits}def test_2(): assert 0")
    )
    assert (counts.passed, [row.test for row in counts.failed], counts.gaps) == (2, ["test_b.py::test_2"], ())


def test_a_pytest_within_a_test_is_none_of_the_group(tmp_path):
    nested = "import pytest\ndef test_1(): assert pytest.main(['-q', '-p', 'no:cacheprovider', 'inner.py']) == 1"
    counts = from_pytest_report(run_pytest(tmp_path, "test_a.py", test_a=nested, inner="def test_bad(): assert 0"))
    assert (counts.passed, counts.bad, counts.gaps) == (1, (), ())


def test_two_runs_of_pytest_are_added(tmp_path):
    first = run_pytest(tmp_path, test_a="def test_1(): pass")
    (tmp_path / "b").mkdir()
    second = run_pytest(tmp_path / "b", test_a="def test_1(): pass")
    counts = from_pytest_report(first + second)
    assert (counts.passed, counts.gaps) == (2, ())


@given(st.data())
def test_no_truncation_or_flip_makes_more_of_a_report_than_there_is(data):
    rows = [("start", {}), ("collected", {"count": 2})]
    for test, outcome in [("a", "passed"), ("b", "failed")]:
        rows += [
            ("test", {"test": test, "when": when, "outcome": outcome if when == "call" else "passed"})
            for when in ("setup", "call", "teardown")
        ]
    whole = lines([*rows, ("finish", {"exit_status": 1})])
    cut = data.draw(st.integers(0, len(whole) - 2))
    counts = from_pytest_report(whole[:cut])
    assert counts.gaps
    assert counts.passed <= 1


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html/>",
        b"<testsuite tests='2'><testcase name='a'/></testsuite>",
        b"<testsuite tests='1' failures='1'><testcase name='a'/></testsuite>",
        b"<testsuite tests='nan'><testcase name='a'/></testsuite>",
        b"<testsuites/>",
        b'<!DOCTYPE x [<!ENTITY a "aaaa">]><testsuite tests="1"><testcase name="&a;"/></testsuite>',
    ],
)
def test_a_junit_file_that_is_not_whole_has_a_gap(text):
    assert from_junit(text).gaps


def junit(case, **totals):
    words = " ".join(f'{name}="{value}"' for name, value in ({"tests": 1} | totals).items())
    return from_junit(f"<testsuites><testsuite {words}>{case}</testsuite></testsuites>".encode())


@pytest.mark.parametrize(
    "case",
    ['<testcase name="a" status="notrun" result="suppressed"/>', '<testcase name="a" status="disabled"/>',
     '<testcase name="a" result="skipped"/>'],
)  # fmt: skip
def test_a_junit_case_that_says_that_it_did_not_run_is_skipped_and_not_passed(case):
    counts = junit(case)
    assert (counts.passed, len(counts.skipped)) == (0, 1)
    assert counts.skipped[0].reason


@pytest.mark.parametrize(
    "said", ['status="failed"', 'result="failure"', 'success="False"', 'status="run" result="Errored"',
             'status="TIMEOUT"', 'status=" aborted "'],
)  # fmt: skip
@pytest.mark.parametrize("inner", ["", "<skipped/>", "<system-out>x</system-out>"])
def test_a_junit_case_that_says_by_an_attribute_that_it_failed_failed(tmp_path, said, inner):
    text = f'<testsuite tests="1"><testcase name="f" {said}>{inner}</testcase></testsuite>'
    counts = from_junit(text.encode())
    assert (counts.passed, [row.test for row in counts.failed], counts.skipped) == (0, ["f"], ())
    (tmp_path / "junit.xml").write_text(text)
    assert why_undecided("junit", tmp_path, 1) == ""


@pytest.mark.parametrize("said", ['status="run" result="completed"', 'status="passed"', 'success="True"'])
def test_a_junit_case_that_says_by_an_attribute_that_it_passed_passed(said):
    counts = junit(f'<testcase name="f" {said}/>')
    assert (counts.passed, counts.bad, counts.gaps) == (1, (), ())


@pytest.mark.parametrize(
    "text",
    ['<testsuite name="S" tests="1"><testcase/><error message="tearDownClass: boom"/></testsuite>',
     '<testsuite name="S" tests="1"><testcase><skipped/></testcase><failure>tearDownClass: boom</failure></testsuite>',
     '<testsuite tests="1"><testcase><x name="S"><error message="tearDownClass: boom"/></x></testcase></testsuite>'],
)  # fmt: skip
def test_a_failure_outside_of_a_case_is_an_error(tmp_path, text):
    assert from_junit(text.encode()).errors == (Named("S (outside of a test)", "tearDownClass: boom"),)
    (tmp_path / "junit.xml").write_text(text)
    assert why_undecided("junit", tmp_path, 1) == ""


@pytest.mark.parametrize(
    ("text", "gap"),
    [('<testsuites tests="3" failures="2"><testsuite tests="1"><testcase/></testsuite></testsuites>', "says 3 tests"),
     ('<testsuites failures="2"><testsuite tests="1"><testcase/></testsuite></testsuites>', "says 2 failures"),
     ('<testsuites errors="x"><testsuite tests="1"><testcase/></testsuite></testsuites>', "says -1 failures"),
     ('<testsuite failures="x" errors="1" tests="1"><testcase/></testsuite>', "says -1 failures"),
     ('<testsuite tests="2"><testsuite tests="1"><testcase/></testsuite></testsuite>', "says 2 tests and has 1"),
     ('<testsuites><testsuite tests="2"/><testsuite><testcase/><testcase/></testsuite></testsuites>', "says 2 tests"),
     ('<testsuites tests="1"><testcase/></testsuites>', "says 0 tests"),
     ('<testsuites><testcase/><testsuite tests="1"><testcase/></testsuite></testsuites>', "says 1 tests and has 2"),
     ('<testsuite tests="1" status="failed"><testcase/></testsuite>', "says that a suite failed")],
)  # fmt: skip
def test_totals_that_are_not_those_of_what_is_inside_are_a_gap(text, gap):
    assert gap in from_junit(text.encode()).gaps[0]


@pytest.mark.parametrize(
    "text",
    ['<testsuites name="x"><testsuite errors="0" failures="0" skipped="0" tests="2">{}</testsuite></testsuites>',
     '<testsuite errors="0" failures="0" flakes="0" skipped="0" tests="2">{}</testsuite>',
     '<testsuites tests="2" failures="0" errors="0"><testsuite tests="2" failures="0">{}</testsuite></testsuites>',
     '<testsuites><testsuite tests="2" errors="0"><testsuite tests="2">{}</testsuite></testsuite></testsuites>'],
    ids=["pytest", "surefire", "go", "nested"],
)  # fmt: skip
def test_what_writers_of_junit_write_is_whole(text):
    counts = from_junit(text.format('<testcase classname="c" name="a"/>' * 2).encode())
    assert (counts.passed, counts.gaps) == (2, ())


@pytest.mark.parametrize("word", ["<skipped/>", "<system-out>skipped</system-out>"])
def test_a_failure_is_not_hidden_behind_another_word_on_its_case(word):
    counts = junit(f'<testcase name="a">{word}<failure message="x"/></testcase>', failures=1)
    assert [each.reason for each in counts.failed] == ["x"]


def test_a_case_that_was_tried_again_until_it_passed_is_told():
    counts = junit('<testcase name="a"><flakyFailure message="x"/><rerunFailure message="x"/></testcase>')
    assert counts.passed == 1
    assert [each.test for each in counts.retried] == ["a"]


@pytest.mark.parametrize("case", ['<testcase name="a"><Failure message="x"/></testcase>',
                                  '<testcase xmlns="urn:x" name="a"><failure message="x"/></testcase>',
                                  '<testcase name="a"><failure xmlns="urn:x" message="x"/></testcase>',
                                  '<case name="a"><failure/></case><testcase name="b"/>'])  # fmt: skip
def test_words_that_are_not_junits_are_a_gap_and_no_pass(case):
    counts = junit(case)
    assert counts.gaps


@pytest.mark.parametrize(
    "text", ["<a>" * 100_000, "<testsuite>" * 20_000 + "</testsuite>" * 20_000 + "x",
             "<testsuite>" + "<x>" * 50_000, '<testsuite tests="' + "9" * 10_000 + '"/>',
             '<?xml version="1.0" encoding="no-such"?><testsuite/>'],
)  # fmt: skip
def test_a_hostile_junit_file_is_a_gap(text):
    assert from_junit(text.encode()).gaps


@pytest.mark.parametrize("count", ["9" * 4299, "1e999", "NaN", "-1", "true", '"1"'])
def test_a_hostile_count_is_a_gap(count):
    line = f'{{"schema": "harness.pytest-report/1", "session": "a", "kind": "collected", "count": {count}}}'
    assert from_pytest_report(line.encode()).gaps
