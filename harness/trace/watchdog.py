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
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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

STACK_SIGNAL = signal.SIGUSR1
_BEAT_BYTES = 1024


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

    @property
    def process_group_timeout_s(self) -> float:
        """A timeout for collectives that this watch always comes before."""
        return max(self.load_s, self.compile_s, self.step_s) + 300.0


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life: the `count`th of a rank, and what it is at. `rounds` is how many there will be."""

    pid: int
    count: int
    phase: Phase
    candidate: str | None = None
    round: int | None = None
    rounds: int | None = None


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
    """One rank's beats, in `directory`."""

    def __init__(self, directory: Path, rank: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(_beat_path(directory, rank), os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._count = 0

    def beat(
        self, phase: Phase, *, candidate: str | None = None, round_index: int | None = None, rounds: int | None = None
    ) -> None:
        """Say that this rank got on, and with what."""
        self._count += 1
        beat = Beat(os.getpid(), self._count, phase, candidate, round_index, rounds)
        os.pwrite(self._file, json.dumps(asdict(beat)).encode().ljust(_BEAT_BYTES), 0)


class StallWatch:
    """Who is stalled, from the beats seen so far. Time is an argument: any clock that does not go back, in seconds."""

    def __init__(self, budgets: Budgets, started_at: float) -> None:
        self._budgets = budgets
        self._started_at = started_at
        self._last: dict[int, tuple[Beat, float]] = {}

    def observe(self, beats: Mapping[int, Beat], now: float) -> Stall | None:
        """Take in the newest beats; the answer is the rank that has been silent for longer than its budget, longest."""
        for rank, beat in beats.items():
            if rank not in self._last or self._last[rank][0].count != beat.count:
                self._last[rank] = (beat, now)
        if not self._last:
            silent = now - self._started_at
            return Stall(None, Phase.LOAD, silent) if silent > self._budgets.of(Phase.LOAD) else None
        stalls = [
            Stall(rank, beat.phase, now - since)
            for rank, (beat, since) in self._last.items()
            if now - since > self._budgets.of(beat.phase)
        ]
        return max(stalls, key=lambda stall: stall.silent_s, default=None)


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


def _beat_path(directory: Path, rank: int) -> Path:
    return directory / f"rank{rank}.beat"
