"""What is written down of a stalled job before it is ended: stacks of all threads, and who waits where."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from .waits import waits, waits_as_json
from .watchdog import Stall, request_stacks

__all__ = ["STALL_SCHEMA", "take_stacks", "write_stall"]

STALL_SCHEMA = "harness.stall/1"
_POLL_S = 0.05


def take_stacks(directory: Path, pids: Mapping[int, int], *, within_s: float) -> tuple[int, ...]:
    """Have the ranks (rank -> pid) write their stacks to `directory`/rank<r>.txt; who gave none within that time.

    Every rank waits for one that is stopped; that one alone does not answer.
    """
    request_stacks(pids)
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and not all(_has_content(directory / f"rank{rank}.txt") for rank in pids):
        time.sleep(_POLL_S)
    return tuple(rank for rank in sorted(pids) if not _has_content(directory / f"rank{rank}.txt"))


def write_stall(directory: Path, stall: Stall, silent: Sequence[int], *, ended: bool) -> str:
    """Write `directory`/stall.json, from the traces in `directory`; returns it in words."""
    found = waits(directory, time.monotonic_ns())
    words = [str(stall), *(str(wait) for wait in found)]
    if silent:
        words.append(f"no stack came from rank {', '.join(map(str, silent))}")
    record = {
        "schema": STALL_SCHEMA,
        "stall": asdict(stall),
        "waits": waits_as_json(found),
        "without_stack": list(silent),
        "ended": ended,
    }
    partial = directory / "stall.json.partial"
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(directory / "stall.json")
    return "; ".join(words)


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
