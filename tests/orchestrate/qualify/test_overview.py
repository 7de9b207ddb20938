"""A group's row, on the console and in the gate's summary."""

import io
import json
from pathlib import Path

import pytest

from orchestrate.gate.conclusion import Conclusion
from orchestrate.gate.github_files import MAX_SUMMARY_BYTES, bounded_annotations
from orchestrate.gate.summary import summarise, told
from orchestrate.qualify.judgement import GroupJudgement
from orchestrate.qualify.overview import group_row, groups_as_json
from orchestrate.qualify.test_counts import Named, TestCounts
from orchestrate.report.console import ConsoleProgress, RunSummary
from orchestrate.verdict import Verdict

RECORD = {
    "started_at": "2026-01-02T03:04:05Z",
    "wall_s": 12.5,
    "family": {"tracked": 7, "peak_rss_bytes": 3 << 20},
    "retired": {"outlived": ["sleep 12", "sleep 13"], "killed": 2, "left": []},
}


def judged(name="unit", verdict=Verdict.PASSED, reason="", record=RECORD, **counts):
    return GroupJudgement(name, verdict, reason, TestCounts(**{"passed": 5, **counts}), record)


def console(*rows):
    stream = io.StringIO()
    ended = (Verdict.PASSED, Verdict.PASSED, "", Path("/runs/r1"), None, "cpu", ())
    ConsoleProgress(stream, interactive=False).verdict(RunSummary("r1", *ended, teardown_confirmed=True, groups=rows))
    return stream.getvalue()


def red():
    return Conclusion(False, Verdict.FAILED, "failed", "because", ())


def test_counts_each_reason_processes_and_memory_are_on_the_console():
    skipped = (Named("a", "no GPU"), Named("b", "no GPU"), Named("c", "too slow"))
    shown = console(group_row(judged(skipped=skipped, retried=(Named("d", "tried 2 times"),), deselected=3)))
    for words in (
        "groups     1 of 1 passed",
        "5 passed, 3 skipped, 3 deselected, 1 retried",
        "processes: 7 seen, 2 outlived it, 2 ended, none left",
        "peak 3.0 MiB",
        "skipped: a and 1 more: no GPU",
        "skipped: c: too slow",
        "retried: d: tried 2 times",
    ):
        assert words in shown
    assert "cells      " not in shown


def test_what_lies_beside_the_source_is_named_once():
    left = RECORD | {"added": {"count": 9, "first": [f"{letter}.py" for letter in "abcdef"]}}
    shown = console(
        *(group_row(judged(name, record=record)) for name, record in (("a", RECORD), ("b", left), ("c", left)))
    )
    assert shown.count("beside the source") == 1
    assert "beside the source after it: 9 files: a.py, b.py, c.py, d.py, e.py and 4 more" in shown


@pytest.mark.parametrize(
    ("record", "words"),
    [({}, "no run of it is recorded; processes: none seen"), (RECORD, "no tests, its exit code decides")],
)
def test_a_group_that_never_began_is_not_one_whose_exit_code_decides(record, words):
    judgement = GroupJudgement("unit", Verdict.INCOMPLETE, "", None, record)
    assert words in console(group_row(judgement))


def test_the_same_is_in_the_answer_for_programs():
    skipped = (Named("a", "no GPU"), Named("b", "no GPU"), Named("c", "too slow"))
    record = RECORD | {"added": {"count": 1, "first": ["x"]}}
    (found,) = groups_as_json([group_row(judged(record=record, skipped=skipped, failed=(Named("d", "x"),)))])
    assert found == {
        "name": "unit", "verdict": "passed", "reason": "", "has_tests": True, "passed": 5, "failed": 1, "errors": 0,
        "not_collected": 0, "xfailed": 0, "xpassed": 0, "deselected": 0, "retried": 0, "wall_s": 12.5,
        "peak_rss_bytes": 3 << 20, "beside_source": {"count": 1, "first": ["x"]},
        "skipped": [{"reason": "no GPU", "count": 2, "tests": ["a", "b"]},
                    {"reason": "too slow", "count": 1, "tests": ["c"]}],
        "processes": {"tracked": 7, "outlived": 2, "killed": 2, "left": [], "on_gpus": None, "others_on_gpus": None},
    }  # fmt: skip


def test_the_answer_for_programs_is_bounded_and_counts_all():
    skipped = tuple(Named(f"{number}" * 500, f"{number % 400}" + "x" * 3000) for number in range(4000))
    found = groups_as_json([group_row(judged(str(name), reason="y" * 9999, skipped=skipped)) for name in range(200)])
    assert len(json.dumps(found)) < 2 << 20
    assert {sum(each["count"] for each in group["skipped"]) for group in found} == {4000}
    assert found[0]["skipped"][-1] == {"reason": "380 more reasons", "count": 3800, "tests": []}


def test_the_same_is_in_the_summary_of_the_gate():
    skipped = (Named("a", "no GPU"), Named("b", "no GPU"), Named("c", "too slow"))
    text = summarise(red(), None, None, None, groups=[group_row(judged(skipped=skipped))])
    for words in ("no GPU", "too slow", "3 MiB", "2 outlived it"):
        assert words in text


def test_a_process_that_is_left_is_said_loudly():
    row = group_row(judged(record={**RECORD, "retired": {"outlived": ["x 1"], "killed": 0, "left": ["x 1"]}}))
    assert "1 LEFT" in row.family


@pytest.mark.parametrize("wrong", [None, [], "x", 1.5, True, -1, 1 << 60, float("nan"), {"x": 1}])
def test_a_strangers_record_breaks_no_row(wrong):
    record = dict.fromkeys(("started_at", "wall_s", "family", "retired", "added"), wrong)
    nested = {"started_at": "x", "family": dict.fromkeys(RECORD["family"], wrong),
              "retired": dict.fromkeys(RECORD["retired"], wrong),
              "added": dict.fromkeys(("count", "first"), wrong)}  # fmt: skip
    for each in (record, nested):
        console(group_row(judged(record=each)))
        json.dumps(groups_as_json([group_row(judged(record=each))]), allow_nan=False)
        summarise(red(), None, None, None, groups=[group_row(judged(record=each))])


def test_a_summary_of_thousands_of_long_reasons_keeps_what_matters_within_the_bound():
    skipped = tuple(Named(f"test_{number}", f"{number}" + "<|`" * 700) for number in range(3000))
    text = summarise(red(), None, None, None, groups=[group_row(judged(skipped=skipped))] * 5)
    assert "What is left" in text.encode()[: MAX_SUMMARY_BYTES // 2].decode()


def test_annotations_begin_with_the_verdict_and_the_worst_group():
    rows = [group_row(judged("a", Verdict.FAILED, "x")), group_row(judged("b", Verdict.INFRASTRUCTURE, "y"))]
    lines = bounded_annotations(told(red(), [*rows, group_row(judged("c"))]))
    assert [line.split("title=")[1].split("::")[0] for line in lines] == [
        "failed", "group b%3A infrastructure", "group a%3A failed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            {"seen": [{"pid": 1, "in_family": True}, {"pid": 1, "in_family": True}], "problem": None},
            ", 1 on GPUs, none",
        ),
        ({"seen": [{"pid": 9, "in_family": False}], "problem": None}, ", 0 on GPUs, 1 other pids on GPUs, none"),
        ({"seen": [], "problem": "NVML: lost"}, "2 ended, none left"),
        ("not-applicable", "2 ended, none left"),
        ({"seen": ["?"], "problem": None}, ", 0 on GPUs, 1 other pids on GPUs, none"),
    ],
)
def test_who_was_on_the_gpus_is_told_where_nvml_was_asked(told, words):
    family = {**RECORD["family"], "gpu_processes": told}
    assert words in group_row(judged(record={**RECORD, "family": family})).family
