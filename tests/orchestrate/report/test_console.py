"""What a person sees while a run goes on; and that no console can break a run."""

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrate.qualify.judgement import GroupJudgement
from orchestrate.qualify.overview import group_row
from orchestrate.qualify.test_counts import Named, TestCounts
from orchestrate.report.console import CellLine, ConsoleProgress, RunSummary, count_words
from orchestrate.report.words import byte_size, clean, duration
from orchestrate.verdict import Verdict

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = "cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4"
EVENT = {
    "event": "progress", "cell": KEY, "candidate": "depth_one", "phase": "measure", "round": 2, "rounds": 8,
}  # fmt: skip


def summary(**changes):
    fields = {
        "run_id": "r20260102-030405-0a1b2c",
        "verdict": Verdict.FAILED,
        "test_verdict": Verdict.FAILED,
        "reason": "rank 2 exited with 1",
        "run_dir": Path("/runs/r1"),
        "closure_sha256": "ab" * 32,
        "device": "cpu",
        "cells": [CellLine(KEY, "failed", complete=False, rows=3, missing=["no end row"] * 7)],
        "teardown_confirmed": True,
        "looks": ["2026-01-02T03:04:05Z", "2026-01-02T03:04:07Z"],
    }
    return RunSummary(**fields | changes)


def console(stream, *, interactive=False):
    progress = ConsoleProgress(stream, interactive=interactive, now=lambda: NOW)
    progress.deadline(NOW + timedelta(seconds=100))
    return progress


def test_a_pipe_gets_one_line_an_event_with_stage_cell_candidate_round_and_time_left():
    stream = io.StringIO()
    progress = console(stream)
    progress.stage("run")
    progress.event(EVENT)
    progress.event({"event": "cell-ended", "cell": KEY, "status": "complete"})
    assert stream.getvalue().splitlines() == [
        "03:04:05Z deadline 2026-01-02T03:05:45+00:00 (1m 40s left)",
        "03:04:05Z stage run (1m 40s left)",
        f"03:04:05Z progress {KEY} measure depth_one round 3/8 (1m 40s left)",
        f"03:04:05Z cell-ended {KEY} complete (1m 40s left)",
    ]


def test_a_terminal_shows_stage_cell_candidate_round_and_time_left():
    stream = io.StringIO()
    progress = console(stream, interactive=True)
    progress.stage("run")
    progress.event(EVENT)
    progress.note("a note")
    progress.tick()
    progress.close()
    shown = stream.getvalue()
    for text in ("run (1m 40s left)", KEY[:20], "measure", "depth_one", "3/8", "a note"):
        assert text in shown


def test_a_terminal_keeps_the_running_cell_in_sight_of_a_long_set():
    stream = io.StringIO()
    progress = console(stream, interactive=True)
    for number in range(40):
        progress.event({"event": "cell-ended", "cell": f"cell-{number}|", "status": "complete"})
    stream.truncate(0)
    progress.event({"event": "progress", "cell": "cell-40|", "phase": "warmup"})
    shown = stream.getvalue()
    progress.close()
    assert "cell-40|" in shown
    assert "cell-39|" in shown
    assert "cell-31|" not in shown
    assert "32 more ended before" in shown


@pytest.mark.parametrize("interactive", [False, True])
def test_the_summary_says_verdict_reason_cells_teardown_and_closure(interactive):
    stream = io.StringIO()
    console(stream, interactive=interactive).verdict(summary())
    shown = stream.getvalue()
    for text in ("FAILED", "rank 2 exited", "0 of 1 complete", "and 2 more", "proven", "ab" * 32, "/runs/r1"):
        assert text in shown


def test_an_unproven_teardown_says_what_is_left_and_what_to_do():
    stream = io.StringIO()
    console(stream).verdict(summary(teardown_confirmed=False, remaining=["process 7"], unknown=["ports"]))
    for text in ("NOT proven", "process 7", "ports", "orchestrate audit --reap --run r20260102-030405-0a1b2c"):
        assert text in stream.getvalue()


def test_an_unclosed_run_is_said_to_be_unclosed():
    stream = io.StringIO()
    console(stream).verdict(summary(closure_sha256=None))
    assert "the run is not closed" in stream.getvalue()
    assert "verify" not in stream.getvalue()


class Broken(io.StringIO):
    writes = 0

    def write(self, text):
        self.writes += 1
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("interactive", [False, True])
def test_a_terminal_that_went_away_does_not_break_the_run(interactive):
    stream = Broken()
    progress = console(stream, interactive=interactive)
    writes = stream.writes
    assert writes >= 1
    progress.stage("teardown")
    progress.event(EVENT)
    progress.note("still there?")
    progress.tick()
    progress.verdict(summary())
    progress.close()
    assert stream.writes == writes


def test_a_closed_stream_does_not_break_the_run():
    stream = io.StringIO()
    progress = console(stream)
    stream.close()
    progress.stage("teardown")
    progress.verdict(summary())


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"event": None, "cell": None},
        {"event": ["x"], "cell": {"a": 1}, "round": "2", "rounds": None, "status": 4},
        {"event": "cell-ended", "cell": KEY, "status": None},
        {"event": "\x1b[2J\x1b]0;owned\x07", "cell": "\x1b[31m", "candidate": "[bold red]x[/]"},
    ],
)
@pytest.mark.parametrize("interactive", [False, True])
def test_no_event_of_a_node_breaks_or_steers_the_terminal(event, interactive):
    stream = io.StringIO()
    progress = console(stream, interactive=interactive)
    progress.event(event)
    progress.close()
    for steering in ("\x1b[2J", "\x1b]0;", "\x07"):
        assert steering not in stream.getvalue()
    assert not progress._broken


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3, "0s"),
        (0, "0s"),
        (0.0004, "0s"),
        (0.0161, "16ms"),
        (0.0996, "0.1s"),
        (9.94, "9.9s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (3599.7, "1h 00m"),
        (7620, "2h 07m"),
    ],
)
def test_durations_are_said_as_people_say_them(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (1 << 60, "1048576.0 TiB")],
)
def test_sizes_have_binary_units(count, said):
    assert byte_size(count) == said


def test_text_is_one_printable_line():
    assert clean("a\nb\x1b[31m") == "a?b?[31m"
    assert len(clean("x" * 1000)) == 300
    assert clean(None) == "None"


@pytest.mark.parametrize(("errors", "words"), [(1, "2 passed, 1 error"), (3, "2 passed, 3 errors")])
def test_one_error_is_one(errors, words):
    counts = TestCounts(passed=2, errors=(Named("t", "why"),) * errors)
    assert count_words(group_row(GroupJudgement("unit", Verdict.FAILED, "", counts, {}))) == words


def test_the_summary_of_groups_speaks_of_groups():
    stream = io.StringIO()
    row = group_row(GroupJudgement("unit", Verdict.PASSED, "", None, {}))
    console(stream).verdict(summary(verdict=Verdict.PASSED, groups=[row], cells=[]))
    assert "groups said" in stream.getvalue()
    assert "cell" not in stream.getvalue()
