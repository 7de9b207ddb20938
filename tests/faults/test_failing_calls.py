"""The other half of the local fault matrix: each call to the backend fails before it acts, after it, or by time-out.

Whatever happens, after the recovery (the launcher's own teardown, or `teardown` by hand) nothing of the run is left, a
neighbour lives on, and the verdict is right: a call that fails is never a failed test, and never hides a leak.
"""

import inspect
import subprocess
import sys

import pytest

from orchestrate.backends.protocol import Backend
from orchestrate.receipts.verify import verify_run

WAVE = 6
HOW = ("before", "after", "time-out")
NO_CALLS = {"spare", "intent", "wake_fd", "observed", "recall", "usage", "logs"}
"""Of the protocol's methods these ask nobody for anything: they name, remember and count."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whichever_call_fails_in_whichever_way_nothing_is_left(bed, neighbour):
    calls = [name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if name[0] != "_"]
    cases = [(call, how) for call in calls if call not in NO_CALLS for how in HOW]
    assert {"preflight", "acquire", "submit", "poll", "stop", "collect", "release", "census"} <= {
        call for call, _ in cases
    }
    outcomes = []
    for first in range(0, len(cases), WAVE):
        wave = [
            (call, how, bed.launch("--behaviour", "complete", "--fail", call, how, name=f"{call}-{how}"))
            for call, how in cases[first : first + WAVE]
        ]
        outcomes += [(call, how, judge(bed, run)) for call, how, run in wave]
    print(f"\neach call to the local backend fails: {len(cases)} cases")
    for call, how, outcome in outcomes:
        print(f"  {call:10} {how:10} {outcome}")
    wrong = [each for each in outcomes if each[2].startswith("WRONG")]
    assert not wrong, wrong
    assert neighbour.poll() is None


@pytest.fixture
def neighbour():
    """Somebody else's process, with marks that look like ours."""
    marks = {"ORCHESTRATE_RUN_ID": "r20260101-000000-abcdef", "ORCHESTRATE_TOKEN": "", "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=marks)
    yield process
    process.kill()
    process.wait()


def judge(bed, run):
    answer, code = run.answer()
    verdict = answer["verdict"]
    if verdict == "teardown-unconfirmed":
        code, _, err = bed.command("teardown", run.run_id, "--runs-dir", str(run.runs_dir))
        if code != 0:
            return f"WRONG: teardown ends with {code}: {err[-300:]}"
    run.gone()
    found = verify_run(run.path)
    if not found.holds:
        return f"WRONG: {found.problems}"
    if verdict not in {"passed", "infrastructure", "incomplete", "teardown-unconfirmed"}:
        return f"WRONG: {verdict}: {answer['reason']}"
    if verdict == "passed" and answer["cells"]["complete"] != answer["cells"]["expected"]:
        return "WRONG: passed without all of its cells"
    return f"{verdict}{' (finished by teardown)' if verdict == 'teardown-unconfirmed' else ''}"
