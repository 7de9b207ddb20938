"""The watch over the progress of a cell's ranks, in two tiers: stacks first, then the end.

Each rank writes a *beat* into a small file of its own whenever it gets on: the phase, and what it is at. The node,
which no stuck rank can hold up, reads the beats and knows the budget of each phase. A rank that shows no new beat for
the budget of its phase is stalled; its peers are stuck with it. Then every rank is sent a signal that `faulthandler`
answers in C with the stacks of all its threads, also while another thread holds the GIL; only after that is the job
ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

__all__ = [
    "STACK_SIGNAL",
    "Beat",
    "Budgets",
    "Heart",
    "Phase",
    "Stall",
    "StallWatch",
    "answer_with_stacks",
    "read_beats",
    "request_stacks",
]

STACK_SIGNAL = int(signal.SIGRTMIN) + 7  # SIGUSR1 is what schedulers send to a program that handles it
_BEAT_BYTES = 1024
_ENOUGH = 3
_FACTOR = 10.0


class Phase(StrEnum):
    """What a rank is at."""

    LOAD = "load"
    WARMUP = "warmup"
    MEASURE = "measure"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Budgets:
    """Seconds without a beat, by kind of work, after which a rank counts as stalled.

    `load_s` holds until the first beat and while a rank builds its model or leaves; `compile_s` for one warm-up;
    `step_s` for one measured forward and backward.
    """

    load_s: float = 600.0
    compile_s: float = 1800.0
    step_s: float = 300.0

    def of(self, phase: Phase) -> float:
        """The budget of `phase`, in seconds."""
        match phase:
            case Phase.LOAD | Phase.DONE:
                return self.load_s
            case Phase.WARMUP:
                return self.compile_s
            case Phase.MEASURE:
                return self.step_s

    def at_most(self, other: Budgets) -> Budgets:
        """The lower of both, phase by phase."""
        return Budgets(
            min(self.load_s, other.load_s), min(self.compile_s, other.compile_s), min(self.step_s, other.step_s)
        )

    @property
    def process_group_timeout_s(self) -> float:
        """A timeout for collectives that this watch always comes before."""
        return max(self.load_s, self.compile_s, self.step_s) + 300.0


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life: the `count`th of a rank, and what it is at. `rounds` is how many there will be.

    `compiling` says that a compilation has begun and not ended: its peers wait for this rank lawfully.
    """

    pid: int
    count: int
    phase: Phase
    candidate: str | None = None
    round: int | None = None
    rounds: int | None = None
    compiling: bool = False


@dataclass(frozen=True, slots=True)
class Stall:
    """No new beat of `rank` (None: of no rank at all) in `phase` for `silent_s` seconds."""

    rank: int | None
    phase: Phase
    silent_s: float

    def __str__(self) -> str:
        who = "no rank has started" if self.rank is None else f"rank {self.rank} made no progress"
        return f"{who} in phase {self.phase} for {self.silent_s:.0f} s"


class Heart:
    """One rank's beats, in `directory`. Any thread may beat: a backward may compile on one of its own."""

    def __init__(self, directory: Path, rank: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(_beat_path(directory, rank), os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._beat = Beat(os.getpid(), 0, Phase.LOAD)
        self._lock = threading.Lock()

    def beat(
        self, phase: Phase, *, candidate: str | None = None, round_index: int | None = None, rounds: int | None = None
    ) -> None:
        """Say that this rank got on, and with what."""
        with self._lock:
            self._show(Beat(os.getpid(), self._beat.count + 1, phase, candidate, round_index, rounds))

    def compiling(self, now: bool) -> None:
        """Say that a compilation has begun, or ended, in whatever this rank is at."""
        with self._lock:
            self._show(replace(self._beat, count=self._beat.count + 1, compiling=now))

    def _show(self, beat: Beat) -> None:
        self._beat = beat
        os.pwrite(self._file, json.dumps(asdict(beat)).encode().ljust(_BEAT_BYTES), 0)


class StallWatch:
    """Who is stalled, from the beats seen so far. Time is an argument: any clock that does not go back, in seconds.

    `budgets` holds until a phase has been measured. From its third interval between two beats on, the budget of a phase
    is ten times the longest one, but neither less than its floor nor more than `budgets` says: a job whose steps take a
    second need not hang for five minutes.
    """

    def __init__(self, budgets: Budgets, started_at: float, *, floors: Budgets | None = None) -> None:
        self._budgets = budgets
        self._floors = floors or budgets
        self._started_at = started_at
        self._last: dict[int, tuple[Beat, float]] = {}
        self._measured: dict[Phase, tuple[int, float]] = {}
        self._excused_at = -math.inf

    def observe(self, beats: Mapping[int, Beat], now: float) -> Stall | None:
        """Take in the newest beats; the answer is the rank that has been silent for longer than its budget, longest.

        While a rank compiles within the budget of that, nobody is stalled: its peers wait for it.
        """
        for rank, beat in beats.items():
            before = self._last.get(rank)
            if before is None or before[0].count != beat.count or before[0].pid != beat.pid:
                self._last[rank] = (beat, now)
                if before is not None and before[0].pid == beat.pid:
                    self._measure(_kind(before[0]), now - before[1])
        self._last = {rank: last for rank, last in self._last.items() if rank in beats}
        if not self._last:
            silent = now - self._started_at
            return Stall(None, Phase.LOAD, silent) if silent > self._budgets.of(Phase.LOAD) else None
        self._started_at = now
        compiling = [since for beat, since in self._last.values() if beat.compiling]
        if any(now - since <= self.budget_s(Phase.WARMUP) for since in compiling):
            self._excused_at = now
        silences = (
            (rank, _kind(beat), now - max(since, self._excused(beat))) for rank, (beat, since) in self._last.items()
        )
        stalls = [Stall(rank, kind, silent_s) for rank, kind, silent_s in silences if silent_s > self.budget_s(kind)]
        return max(stalls, key=lambda stall: stall.silent_s, default=None)

    def budget_s(self, phase: Phase) -> float:
        """The budget of `phase` by what was measured so far."""
        count, longest_s = self._measured.get(phase, (0, 0.0))
        if count < _ENOUGH:
            return self._budgets.of(phase)
        return min(max(_FACTOR * longest_s, self._floors.of(phase)), self._budgets.of(phase))

    def _excused(self, beat: Beat) -> float:
        """Until when `beat`'s rank could not get on because a peer was compiling."""
        return self._excused_at if not beat.compiling else -math.inf

    def _measure(self, phase: Phase, seconds: float) -> None:
        count, longest_s = self._measured.get(phase, (0, 0.0))
        self._measured[phase] = (count + 1, max(longest_s, seconds))


def read_beats(directory: Path) -> dict[int, Beat]:
    """Rank -> its newest beat. One that is being written just now is left out; the next look has it."""
    beats = {}
    for path in directory.glob("rank*.beat"):
        with contextlib.suppress(ValueError, TypeError, OSError):
            fields = json.loads(path.read_bytes())
            beats[int(path.stem[4:])] = Beat(**fields | {"phase": Phase(fields["phase"])})
    return beats


def answer_with_stacks(directory: Path, rank: int) -> None:
    """From now on, answer `STACK_SIGNAL` with the stacks of all threads, in `directory`/rank<r>.txt.

    Call it before anything that takes long: a process that has not would be ended by the signal.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = (directory / f"rank{rank}.txt").open("w")
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)


def request_stacks(pids: Mapping[int, int]) -> None:
    """Ask the ranks (rank -> pid) that have beaten, and so answer the signal, for their stacks."""
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACK_SIGNAL)


def _kind(beat: Beat) -> Phase:
    """The phase whose budget holds: a compilation may come in any."""
    return Phase.WARMUP if beat.compiling else beat.phase


def _beat_path(directory: Path, rank: int) -> Path:
    return directory / f"rank{rank}.beat"
