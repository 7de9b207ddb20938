"""`orchestrate trace diff`: what it takes, says and returns."""

import json

import pytest
from click.testing import CliRunner

from harness.trace.format import TraceWriter
from orchestrate.cells.cell import slug
from orchestrate.commands.trace_diff import command
from orchestrate.errors import UsageError

KEYS = ("cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4", "cal-hetero-tiny|tiny-hybrid|L4|tp1|cp4")


@pytest.fixture
def traces():
    def write(folder, *, odd=None, ranks=3, name="train.py"):
        for rank in range(ranks):
            writer = TraceWriter(folder, rank, world_size=3, chunk_slots=256)
            group = writer.group("world", range(3))
            call = writer.signature(
                op="all_reduce", input_sizes=[[9 if rank == odd else 8]], stack=writer.stack([(name, 5, "main")])
            )
            writer.complete(writer.begin(group, call, sequence=0, start_ns=10), 20)
            writer.close()
        return folder

    return write


def ask(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)


@pytest.mark.parametrize(
    ("made", "verdict", "code"),
    [({}, "agree", 0), ({"odd": 1}, "diverge", 1), ({"ranks": 2}, "undecidable", 4)],
)
def test_the_exit_code_is_the_answer(traces, tmp_path, made, verdict, code):
    folder = traces(tmp_path / "traces", **made)
    shown = ask(folder)
    assert (shown.return_value, shown.output.split()[0]) == (code, verdict.upper())
    answered = ask(folder, "--json")
    assert answered.return_value == code
    # What is for people goes to standard error, which some versions of click show here too.
    assert json.loads(answered.output.splitlines()[0])["verdict"] == verdict


def test_a_folder_without_traces_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="holds no trace"):
        raise ask(tmp_path).exception


def test_a_run_is_taken_by_its_folder_and_a_cell_by_its_key(traces, tmp_path):
    for key, odd in zip(KEYS, (None, 2), strict=True):
        traces(tmp_path / "run" / "evidence" / "cells" / slug(key) / "trace", odd=odd)
    assert [ask(tmp_path / "run", "--cell", key).return_value for key in KEYS] == [0, 1]
    assert ask(tmp_path / "run", "--cell", slug(KEYS[1])).return_value == 1
    with pytest.raises(UsageError, match="2 cells"):
        raise ask(tmp_path / "run").exception
    with pytest.raises(UsageError, match="left no trace"):
        raise ask(tmp_path / "run", "--cell", "another").exception


def test_the_newest_attempt_of_a_run_is_the_one_that_is_compared(traces, tmp_path):
    traces(tmp_path / "run" / "evidence" / "cells" / slug(KEYS[0]) / "trace", odd=1)
    traces(tmp_path / "run" / "evidence-10" / "cells" / slug(KEYS[0]) / "trace")
    assert ask(tmp_path / "run").return_value == 0


def test_the_folder_of_a_cell_is_enough(traces, tmp_path):
    traces(tmp_path / "cell" / "trace", odd=1)
    assert ask(tmp_path / "cell").return_value == 1


def test_records_and_callers_stand_side_by_side(traces, tmp_path):
    lines = ask(traces(tmp_path / "traces", odd=1)).output.splitlines()
    assert "  ranks 0, 2   all_reduce of 8" in lines
    assert "  rank 1       all_reduce of 9" in lines
    assert sum("at train.py:5 in main" in line for line in lines) == 2


def test_a_trace_can_not_steer_the_terminal(traces, tmp_path):
    assert "\x1b]0;" not in ask(traces(tmp_path / "traces", odd=1, name="\x1b]0;owned\x07.py")).output
