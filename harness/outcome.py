"""What became of a cell, decided from structured facts: exit codes, signals, the end row. Pure functions."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = [
    "HUNG_EXIT_CODE",
    "INFRASTRUCTURE_EXIT_CODE",
    "OWN_SIGNALS",
    "STOPPED_EXIT_CODE",
    "CellStatus",
    "Ended",
    "Outcome",
    "classify",
    "exit_code",
    "signal_name",
]

HUNG_EXIT_CODE = 3
"""Exit code where something got on no more and was ended for it."""

INFRASTRUCTURE_EXIT_CODE = 5
"""Exit code of the node, and of a rank that could not write its files."""

STOPPED_EXIT_CODE = 130
"""The node's exit code when it was told to stop, whatever its cells were."""

OWN_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGBUS, signal.SIGILL})
"""Signals that a process brings on itself; every other one came from outside."""


class CellStatus(StrEnum):
    """What became of a cell, as node.json says it."""

    COMPLETE = "complete"
    FAILED = "failed"
    INFRASTRUCTURE = "infrastructure"
    HUNG = "hung"
    UNSETTLED = "unsettled"
    CANCELLED = "cancelled"
    """The node was told to stop before the cell had ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The facts about a cell that ended.

    `returncode` is torchrun's as `subprocess` gives it: negative for a signal. `failures` is the content of
    failures.json, None where torchrun wrote none. `end` is the end row, None where there is none. `stall` says in words
    that the node ended the cell because it made no progress; `stopped` that the node was told to stop.
    """

    returncode: int | None
    failures: Mapping[str, Any] | None
    end: Mapping[str, Any] | None
    stall: str | None = None
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A cell's status, the reason in words, and the exit code or signal that decided it."""

    status: CellStatus
    reason: str
    exit_code: int | None
    signal: int | None


def classify(ended: Ended) -> Outcome:
    """What became of a cell. Who died decides: DESIGN section 5, Signals.

    A rank that ends by an exit code or a fault signal of its own has failed; a rank or torchrun that a signal from
    outside ended was lost to the infrastructure, unless it was the node that sent it.
    """
    code = ended.returncode if ended.returncode is not None and ended.returncode >= 0 else None
    number = -ended.returncode if ended.returncode is not None and ended.returncode < 0 else None
    if ended.stopped is not None:
        return Outcome(CellStatus.CANCELLED, ended.stopped, code, number)
    if ended.stall is not None:
        return Outcome(CellStatus.HUNG, ended.stall, code, number)
    if number is not None:
        return Outcome(CellStatus.INFRASTRUCTURE, f"torchrun was killed by {signal_name(number)}", None, number)
    launcher_signal = (ended.failures or {}).get("launcher_signal")
    if launcher_signal is not None:
        reason = f"torchrun was ended by {signal_name(launcher_signal)}"
        return Outcome(CellStatus.INFRASTRUCTURE, reason, code, launcher_signal)
    own_deaths = [each for each in (ended.failures or {}).get("failures", ()) if not each["by_torchrun"]]
    killed = next((each for each in own_deaths if _from_outside(each["signal"])), None)
    if killed is not None:
        reason = f"rank {killed['rank']} was killed by {signal_name(killed['signal'])} from outside"
        return Outcome(CellStatus.INFRASTRUCTURE, reason, code, killed["signal"])
    unable = next((each for each in own_deaths if each["exit_code"] == INFRASTRUCTURE_EXIT_CODE), None)
    if unable is not None:
        return Outcome(CellStatus.INFRASTRUCTURE, _death(unable), INFRASTRUCTURE_EXIT_CODE, None)
    if own_deaths and not _says(ended.end, "unsettled", "limit"):
        first = min(own_deaths, key=lambda each: each["at"])
        return Outcome(CellStatus.FAILED, _death(first), first["exit_code"], first["signal"])
    return _by_end_row(ended, code)


def exit_code(statuses: Iterable[CellStatus], *, stopped: bool = False) -> int:
    """The node's exit code for the statuses of its cells: the worst one's, 0 only where every cell is complete."""
    if stopped:
        return STOPPED_EXIT_CODE
    found = set(statuses)
    for status, code in _WORST_FIRST:
        if status in found:
            return code
    return 0


_WORST_FIRST: Sequence[tuple[CellStatus, int]] = (
    (CellStatus.INFRASTRUCTURE, INFRASTRUCTURE_EXIT_CODE),
    (CellStatus.HUNG, HUNG_EXIT_CODE),
    (CellStatus.FAILED, 1),
    (CellStatus.CANCELLED, STOPPED_EXIT_CODE),
    (CellStatus.UNSETTLED, 4),
)


def _by_end_row(ended: Ended, code: int | None) -> Outcome:
    if code != 0 and ended.failures is None:
        return Outcome(CellStatus.INFRASTRUCTURE, f"torchrun itself failed with exit code {code}", code, None)
    if ended.end is None:
        return Outcome(CellStatus.FAILED, f"torchrun exited with {code} and the cell has no end row", code, None)
    reason = str(ended.end.get("reason") or "")
    if _says(ended.end, "complete") and code == 0:
        return Outcome(CellStatus.COMPLETE, reason, code, None)
    if _says(ended.end, "unsettled", "limit"):
        return Outcome(CellStatus.UNSETTLED, reason, code, None)
    return Outcome(CellStatus.FAILED, reason or f"torchrun exited with {code}", code, None)


def _says(end: Mapping[str, Any] | None, *outcomes: str) -> bool:
    return end is not None and end.get("outcome") in outcomes


def _from_outside(number: int | None) -> bool:
    return number is not None and number not in OWN_SIGNALS


def _death(failure: Mapping[str, Any]) -> str:
    how = (
        f"exited with {failure['exit_code']}"
        if failure["signal"] is None
        else f"died of {signal_name(failure['signal'])}"
    )
    message = str(failure["message"]).strip()
    first_line = message.splitlines()[0] if message else ""
    return f"rank {failure['rank']} {how}" + (f": {first_line}" if first_line else "")


def signal_name(number: int) -> str:
    """The name of a signal; one without a name by its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
