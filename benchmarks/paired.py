"""Two commands timed in turn, A B A B ..., so that a drift of the machine's speed cancels in their ratio."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Sequence

__all__ = ["ratio"]


def ratio(one: Sequence[str], other: Sequence[str], *, rounds: int = 10) -> tuple[float, float, float]:
    """Median wall seconds of `one`, of `other`, and the median of their ratios, pair by pair."""
    for command in (one, other):  # warm-up: page cache and byte code
        _seconds(command)
    pairs = [(_seconds(one), _seconds(other)) for _ in range(rounds)]
    firsts, seconds = zip(*pairs, strict=True)
    return statistics.median(firsts), statistics.median(seconds), statistics.median(a / b for a, b in pairs)


def _seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started
