"""The fault matrix on the emulated cluster.

The launcher is killed before and after every record of a journal, and every kind of call to the API fails before it
acts, after it has acted, and by time-out, some for good; journal and calls are enumerated from a run that went well,
never by hand. Whatever happens: after the recovery nothing of the run is left, nobody else's object was touched, and
the verdict is right.
"""

import itertools
import json
import os
import queue
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from k8s_bed import EmulatorBed, until, why_no_emulator
from k8s_lane import Lane, closures, kinds

from orchestrate.receipts.verify import verify_run

LANES = 16
IMAGE = "bed.local/torch:1"
FAULTS = {
    "before it acts": {"kind": "reset", "times": 1},
    "after it has acted": {"kind": "lost", "times": 1},
    "by time-out": {"kind": "hang-after", "times": 1},
}
FOR_GOOD = {"kind": "503", "times": 10**6}
LASTING = [("create", "jobs"), ("get", "pods/exec"), ("list", "jobs"), ("delete", "jobs")]
"""Calls that also fail from the first on and for ever, until somebody else finishes the run."""


@dataclass(frozen=True)
class Case:
    """One cell of the matrix: what is done to the run, and who finishes it."""

    row: str
    column: str
    launch: tuple = ()
    fault: tuple = ()
    recovery: str = "nobody"


@pytest.fixture(scope="module")
def lanes(tmp_path_factory, packages):
    if (why := why_no_emulator()) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("matrix")
    bed = EmulatorBed(folder / "bed", "--nodes", "big:400", pace=0.0)
    commands = Commands(folder, packages("complete"))
    free = queue.Queue()
    with ThreadPoolExecutor(LANES) as pool:
        for lane in pool.map(lambda number: make_lane(bed, folder, packages("complete"), number), range(LANES)):
            lane.commands = commands
            free.put(lane)
    yield free
    commands.close()
    bed.close()


def make_lane(bed, folder, packages, number):
    place = folder / f"lane{number}"
    place.mkdir()
    return Lane(bed, place, packages, number)


class Commands:
    """Runs commands through `fork_server.py`."""

    def __init__(self, folder, packages):
        self.folder, self.numbers = folder, itertools.count()
        environ = {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{Path(__file__).parent}"}
        script = str(Path(__file__).with_name("fork_server.py"))
        self.process = subprocess.Popen([sys.executable, "-P", script], stdin=subprocess.PIPE, env=environ, cwd=folder)

    def run(self, lane, script, *arguments, limit_s=400):
        """(exit code, standard output, standard error)."""
        name = f"command{next(self.numbers)}"
        out, err, ended = (self.folder / f"{name}.{kind}" for kind in ("out", "err", "ended"))
        command = {
            "script": script, "arguments": arguments, "environ": lane.environ(), "folder": str(lane.folder),
            "out": str(out), "err": str(err), "ended": str(ended),
        }  # fmt: skip
        os.write(self.process.stdin.fileno(), json.dumps(command).encode() + b"\n")
        until(ended.exists, lambda: f"{script} to end; {err.read_text()[-600:]}", limit_s=limit_s)
        return int(ended.read_text()), out.read_text(), err.read_text()

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)


@pytest.fixture(scope="module")
def model(lanes):
    """Journal and calls of a run to which nothing happened."""
    lane = lanes.get()
    lane.bed.pull("forget-calls")
    told = play(lane, Case("model", "undisturbed"))
    assert told == "passed"
    (run,) = (lane.folder / "model-undisturbed").glob("r2*")
    calls = [call for call in lane.bed.pull("calls") if call["user"] == lane.user]
    lanes.put(lane)
    return kinds(run), calls


@pytest.fixture(scope="module")
def outcomes(lanes, model):
    """Every case and what came of it; what takes longest begins first."""
    records, calls = model
    called = list(dict.fromkeys((call["verb"], call["resource"]) for call in calls))
    assert set(LASTING) <= set(called)
    cases = [failing(call, "for good", FOR_GOOD) for call in LASTING]
    cases += [failing(call, column, fault) for column, fault in reversed(FAULTS.items()) for call in called]
    for number, kind in enumerate(records, 1):
        row = f"{number:2} {kind}"
        cases.append(Case(row, "before", ("--strike-before", str(number)), recovery="warden"))
        recovery = "teardown" if number % 2 else "audit"
        strike = ("--strike-after", str(number), "--with-warden")
        cases.append(Case(row, f"after, with warden: {recovery}", strike, recovery=recovery))
    return list(zip(cases, play_all(lanes, cases), strict=True))


def failing(call, column, fault):
    verb, resource = call
    return Case(f"{verb} {resource}", column, fault=tuple({**fault, "verb": verb, "resource": resource}.items()))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_launcher_killed_at_any_record_leaves_nothing_on_the_cluster(outcomes, capsys):
    report("launcher killed at each record of a journal", [each for each in outcomes if each[0].launch], capsys)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_call_that_fails_in_any_way_leaves_nothing_on_the_cluster(outcomes, capsys):
    report("each kind of call fails", [each for each in outcomes if each[0].fault], capsys)


def play_all(lanes, cases):
    def take_a_lane(case):
        lane = lanes.get()
        try:
            outcome = play(lane, case)
        finally:
            lanes.put(lane)
        return outcome

    with ThreadPoolExecutor(LANES) as pool:
        return list(pool.map(take_a_lane, cases))


def report(title, matrix, capsys):
    """Print the matrix with its counts; fail with what is wrong in it."""
    told = [outcome for _, outcome in matrix]
    with capsys.disabled():
        print(f"\n{title}: {len(matrix)} cases")
        for case, outcome in sorted(matrix, key=lambda each: (each[0].row, each[0].column)):
            print(f"  {case.row:32} {case.column:32} {outcome[:200]}")
        for outcome in sorted(set(told)):
            print(f"  {told.count(outcome):4} x {outcome[:200]}")
    wrong = [f"{case.row}, {case.column}: {outcome}" for case, outcome in matrix if outcome.startswith("WRONG")]
    assert matrix
    assert not wrong, "\n".join(wrong)


def play(lane, case):
    """Run one case; the outcome in words."""
    runs_dir = lane.folder / re.sub(r"[^a-z0-9]+", "-", f"{case.row} {case.column}".lower())
    runs_dir.mkdir(exist_ok=True)
    if case.fault:
        lane.bed.pull("arm", user=lane.user, **dict(case.fault))
    code, out, err = lane.commands.run(lane, "launch_struck", str(runs_dir), lane.namespace, IMAGE, *case.launch)
    try:
        return judge(lane, case, runs_dir, code, out)
    except AssertionError as error:
        return f"WRONG: {error}; exit {code}; {err[-600:]!r}"


def command(lane, *arguments):
    """(exit code, what was said) of `orchestrate ARGUMENTS`."""
    code, out, err = lane.commands.run(lane, "orchestrate", *arguments)
    return code, (out + err)[-800:]


def judge(lane, case, runs_dir, exit_code, answer):
    run = next((path for path in runs_dir.iterdir() if re.fullmatch(r"r\d{8}-.*", path.name)), None)
    if case.launch:
        if exit_code != -signal.SIGKILL:
            return f"not killed: it had ended with {exit_code}"
        told = recover(lane, case, run, runs_dir)
    else:
        told = judge_answer(lane, answer, run)
        lane.bed.pull("disarm", user=lane.user)
        if "teardown-unconfirmed" in told:
            code, out = command(lane, "teardown", run.name, "--runs-dir", str(runs_dir))
            assert code == 0, f"teardown ends with {code}: {out}"
            told += ", finished by teardown"
    assert lane.state() == lane.before, f"{told}; left or touched: {set(lane.state()) ^ set(lane.before)}"
    return told


def recover(lane, case, run, runs_dir):
    if run is None:
        return "nothing had been made"
    if case.recovery == "audit":
        (empty := runs_dir / "elsewhere").mkdir()
        code, out = command(lane, "audit", "--backend", "k8s", "--namespace", lane.namespace, "--run", run.name,
                                 "--reap", "--runs-dir", str(empty))  # fmt: skip
        assert code == 0, f"audit ends with {code}: {out}"
        return "removed by an audit elsewhere"
    if case.recovery == "teardown" or "warden-started" not in kinds(run):
        code, out = command(lane, "teardown", run.name, "--runs-dir", str(runs_dir))
        assert code == 0, f"teardown ends with {code}: {out}"
        by = "teardown"
    else:
        until(lambda: closures(run), lambda: f"the warden's closure; {kinds(run)}", limit_s=200)
        by = "its warden"
    closure = closures(run)[-1]
    assert closure["teardown"]["confirmed"], closure
    # Its closure is not the last thing that a warden does to the folder.
    until(lambda: verify_run(run).holds, lambda: f"the run to verify: {verify_run(run).problems}", limit_s=20)
    if closure["verdict"] == "passed":
        assert closure["cells"]["complete"] == 4, closure
        return f"had been closed as passed (looked at by {by})"
    assert (closure["verdict"], closure["reason"]) == ("cancelled", "launcher-lost"), closure
    return f"cancelled, closed by {by}"


def judge_answer(lane, answer, run):
    """A fault of the API is never a failed test, never a lack of GPUs, and passes only if nothing is missing."""
    answer = json.loads(answer)
    if "error" in answer:
        assert run is None or not kinds(run), answer
        return f"refused: {answer['error']['code']}"
    verdict = answer["verdict"]
    assert verdict in {"passed", "infrastructure", "incomplete", "teardown-unconfirmed", "unsatisfiable"}, answer
    assert verdict != "unsatisfiable" or "forbidden" in answer["reason"].lower(), answer
    if verdict == "passed":
        assert answer["cells"] == {"expected": 4, "complete": 4}, answer
    if verdict != "teardown-unconfirmed":
        assert answer["teardown"]["confirmed"], answer
        assert lane.state() == lane.before, f"{verdict}, and yet there is {set(lane.state()) - set(lane.before)}"
    return verdict
