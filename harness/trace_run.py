"""Run a command whose ranks record their collectives, and watch over it.

    python -m harness trace_run --dir DIR [--summary FILE] [--observe-only] -- torchrun --nproc-per-node 4 train.py

Each Python that the command starts finds `harness/trace/site` first on its path: its `sitecustomize` puts the recorder
in. `DIR` then holds `rank<r>.trace`; a second job of the same command has its own in `DIR/job2`. When the job gets on
no more, `DIR/stall.json` says who waits where, `DIR/stacks/` has every thread's stack of every rank, and the job is
ended: exit code 3. Else the exit code is the command's own, 128 + the signal that ended it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from harness.errors import InputError
from harness.outcome import HUNG_EXIT_CODE
from harness.processes import become_subreaper, descendants, end_family
from harness.trace.reading import DamagedTraceError, count_records, read_trace, used_slots
from harness.trace.stall import take_stacks, write_stall
from harness.trace.watchdog import Beat, Budgets, Stall, StallWatch, read_beats

__all__ = ["SUMMARY_SCHEMA", "TracedRun", "main"]

SUMMARY_SCHEMA = "harness.trace_run/1"
_SITE = Path(__file__).parent / "trace" / "site"
_BUDGETS = Budgets(load_s=1800.0, compile_s=1800.0, step_s=300.0)
_FLOORS = Budgets(load_s=1800.0, compile_s=600.0, step_s=120.0)
_LOOK_S = 0.5
_STACKS_S = 5.0
_GRACE_S = 2.0
_KILL_S = 10.0


def main(argv: Sequence[str]) -> int:
    """`python -m harness trace_run`: returns the command's exit code, or 3 where it hung.

    Raises:
        InputError: an option is wrong, or the command can not be started.
    """
    ours, command = _split(argv)
    options = _parser().parse_args(ours)
    if not command:
        raise InputError("no command is named", remedy="give it after `--`: -- torchrun --nproc-per-node 4 train.py")
    budgets = Budgets(
        options.load_budget or _BUDGETS.load_s,
        options.compile_budget or _BUDGETS.compile_s,
        options.step_budget or _BUDGETS.step_s,
    )
    floors = _FLOORS.at_most(budgets)
    run = TracedRun(options.dir, budgets, floors, observe_only=options.observe_only)
    code = run.run(command, os.environ)
    if options.summary is not None:
        options.summary.write_text(json.dumps(run.summary(code)) + "\n")
    return code


class TracedRun:
    """One command under the recorder, its traces in `directory`."""

    def __init__(self, directory: Path, budgets: Budgets, floors: Budgets, *, observe_only: bool) -> None:
        self._directory = directory.resolve()
        self._budgets = budgets
        self._floors = floors
        self._observe_only = observe_only
        self._stalls: list[str] = []
        self._signal: int | None = None
        self._hung = False

    def run(self, command: Sequence[str], env: Mapping[str, str]) -> int:
        """Run `command` to its end; returns the exit code.

        Raises:
            InputError: it can not be started.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        become_subreaper()
        path = os.pathsep.join(filter(None, (str(_SITE), env.get("PYTHONPATH"))))
        env = {**env, "PYTHONPATH": path, "COLLECTIVE_TRACE_DIR": str(self._directory)}
        try:
            process = subprocess.Popen(list(command), env=env)
        except OSError as error:
            raise InputError(f"{command[0]}: {error.strerror}", remedy="name a program that is there") from error
        _pass_signals_on(process)
        watches: dict[Path, StallWatch] = {}
        while True:
            try:
                code = process.wait(timeout=_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                self._look(watches)
        for stacks in self._directory.rglob("stacks/rank*.txt"):
            if not stacks.stat().st_size:
                stacks.unlink()
        self._signal = -code if code < 0 else None
        if self._hung:
            return HUNG_EXIT_CODE
        return code if code >= 0 else 128 - code

    def summary(self, code: int) -> dict[str, Any]:
        """What happened, for machines."""
        ranks = [self._rank(path) for path in sorted(self._directory.rglob("rank*.trace"), key=_by_rank)]
        return {
            "schema": SUMMARY_SCHEMA,
            "directory": str(self._directory),
            "exit_code": code,
            "signal": self._signal,
            "verdict": "hung" if self._hung else "passed" if code == 0 else "failed",
            "records": sum(rank["records"] for rank in ranks),
            "ranks": ranks,
            "stalls": self._stalls,
        }

    def _look(self, watches: dict[Path, StallWatch]) -> None:
        """One look at every job that the command has started and that still lives."""
        now = time.monotonic()
        living = set(descendants(os.getpid()))
        folders = {path.parent for path in self._directory.rglob("rank*.beat")} or {self._directory}
        for folder in folders:
            beats = {
                rank: _with_progress(folder, rank, beat)
                for rank, beat in read_beats(folder).items()
                if beat.pid in living
            }
            if folder not in watches:
                watches[folder] = StallWatch(self._budgets, now, floors=self._floors)
            elif not beats and list(folder.glob("rank*.beat")):
                continue  # this job has ended; another one may come
            stall = watches[folder].observe(beats, now)
            if stall is not None:
                watches[folder] = StallWatch(self._budgets, now, floors=self._floors)
                self._on_stall(folder, stall, beats)

    def _on_stall(self, folder: Path, stall: Stall, beats: Mapping[int, Beat]) -> None:
        """Tier one: stacks, and who waits where. Tier two: the end."""
        silent = take_stacks(folder / "stacks", {rank: beat.pid for rank, beat in beats.items()}, within_s=_STACKS_S)
        told = write_stall(folder, stall, silent, ended=not self._observe_only)
        self._stalls.append(told)
        print(f"hung: {told}", file=sys.stderr)
        if not self._observe_only:
            self._hung = True
            end_family(lambda: descendants(os.getpid()), grace_s=_GRACE_S, kill_s=_KILL_S)

    def _rank(self, path: Path) -> dict[str, Any]:
        where = "." if path.parent == self._directory else path.parent.name
        rank = _by_rank(path)[1]
        facts: dict[str, Any] = {"rank": rank, "job": where, "records": count_records(path)}
        try:
            trace = read_trace(path.parent, rank, only_open=True)
        except DamagedTraceError as error:
            return facts | {"open": None, "ending": str(error)}
        return facts | {"open": len(trace.open), "ending": str(trace.ending)}


def _with_progress(folder: Path, rank: int, beat: Beat) -> Beat:
    """`beat`, counted on with every record that the rank has written since."""
    trace = folder / f"rank{rank}.trace"
    return replace(beat, count=beat.count + (used_slots(trace) if trace.exists() else 0))


def _pass_signals_on(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM and SIGHUP go to the command; a terminal's SIGINT it has got itself. Either way its end is waited for."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _by_rank(path: Path) -> tuple[str, int]:
    return str(path.parent), int(path.stem[4:])


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(argv)
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness trace_run",
        description="Run a command whose ranks record their collectives, and watch over it.",
        epilog="example: python -m harness trace_run --dir traces -- torchrun --nproc-per-node 4 train.py",
    )
    parser.add_argument("--dir", type=Path, required=True, metavar="DIR", help="where the traces go")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="a JSON file that says what happened")
    parser.add_argument("--observe-only", action="store_true", help="write stacks of a stalled job, but do not end it")
    for phase in ("load", "compile", "step"):
        parser.add_argument(f"--{phase}-budget", type=float, metavar="S", help=f"seconds without progress in a {phase}")
    return parser
