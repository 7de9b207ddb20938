import os
import subprocess
import sys

import pytest

from harness.compile_watch import CompileWatch, Counts, classify
from harness.warmup import CompileStatus

REAL_DYNAMO = """
import torch
from harness.compile_watch import CompileWatch, DynamoTelemetry, raise_recompile_limit

raise_recompile_limit(3)
watch = CompileWatch(DynamoTelemetry())
step = torch.compile(lambda x: (x * 2).sin().sum(), backend="eager", dynamic=False)
for size in (2, 2, 3, 4, 3, 5, 5, 2):
    with watch.run() as run:
        step(torch.randn(size, requires_grad=True)).backward()
    print(size, run.status)
"""


class Broken:
    """A torch in which the telemetry has moved."""

    def counts(self):
        return None

    def listen(self, listener):
        return None


@pytest.mark.parametrize(
    ("started", "asked", "converted", "expected"),
    [
        ((), 0, 0, CompileStatus.NONE),
        (("DYNAMO:0/0",), 1, 1, CompileStatus.COMPILE),
        (("DYNAMO:0/0", "DYNAMO:3/1"), 2, 2, CompileStatus.RECOMPILE),
        (("DYNAMO:3/0_1",), 1, 1, CompileStatus.COMPILE),
        (("DYNAMO:!0/3/2",), 1, 1, CompileStatus.RECOMPILE),
        (("LAZY_BACKWARD:3/1",), 0, 0, CompileStatus.COMPILE),
        (("CUDAGRAPH_RECORDING:",), 0, 0, CompileStatus.COMPILE),
        ((), 1, 1, CompileStatus.UNKNOWN),
        ((), 1, 0, CompileStatus.UNKNOWN),
        (("DYNAMO:0/0",), 2, 1, CompileStatus.UNKNOWN),
    ],
)
def test_the_status_follows_from_callbacks_and_counters_together(started, asked, converted, expected):
    assert classify(started, Counts(7, 7, False), Counts(7 + asked, 7 + converted, False)) is expected


def test_the_limit_stays_when_nothing_is_compiled_any_more():
    after = Counts(8, 7, True)
    assert classify((), after, after) is CompileStatus.LIMIT


@pytest.mark.parametrize("missing", ["started", "before", "after"])
def test_a_source_that_can_not_be_read_is_unknown_and_never_none(missing):
    facts = {"started": (), "before": Counts(1, 1, False), "after": Counts(1, 1, False)} | {missing: None}
    assert classify(**facts) is CompileStatus.UNKNOWN


def test_a_watch_without_telemetry_says_unknown():
    watch = CompileWatch(Broken())
    with watch.run() as run:
        pass
    assert run.status is CompileStatus.UNKNOWN


def test_a_run_that_raised_is_not_called_warm():
    class Quiet:
        def counts(self):
            return Counts(0, 0, False)

        def listen(self, listener):
            return lambda: None

    watch = CompileWatch(Quiet())
    with pytest.raises(ArithmeticError), watch.run() as run:
        raise ArithmeticError
    assert run.status is CompileStatus.UNKNOWN


def test_real_dynamo_reports_compile_recompile_and_a_limit_that_stays():
    """In a process of its own: a process that has hit the limit is spoilt for every later test."""
    done = subprocess.run(
        [sys.executable, "-c", REAL_DYNAMO],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.split("\n")[:-1] == [
        "2 compile",
        "2 none",
        "3 recompile",
        "4 recompile",
        "3 none",
        "5 limit",
        "5 limit",
        "2 limit",
    ]
