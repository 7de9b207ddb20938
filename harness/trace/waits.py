"""Who waits where: what each rank of a stalled job was in, by its trace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .reading import DamagedTraceError, Record, read_trace

__all__ = ["Wait", "waits", "waits_as_json"]


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank in a collective that has not completed for `since_s` seconds; `op` is None for a rank that is in none.

    `last` is then the last one that it completed. `caller` is `file:line function`.
    """

    rank: int
    op: str | None
    group: str | None = None
    ranks: tuple[int, ...] = ()
    sequence: int | None = None
    stage: str | None = None
    since_s: float | None = None
    caller: str | None = None
    layout: str | None = None
    forward: int | None = None
    last: str | None = None

    def __str__(self) -> str:
        if self.op is None:
            return f"rank {self.rank} is in no collective, after {self.last or 'none'}"
        call = f"{self.op} {self.sequence} of {self.group} {list(self.ranks)}"
        return f"rank {self.rank} is in {call} for {self.since_s:.0f} s, called at {self.caller or 'autograd'}"


def waits(directory: Path, now_ns: int) -> tuple[Wait, ...]:
    """For each rank that recorded into `directory`, the oldest collective that has not completed.

    `now_ns` is CLOCK_MONOTONIC. A rank whose trace is damaged is left out.
    """
    found = []
    for path in sorted(directory.glob("rank*.trace"), key=lambda path: int(path.stem[4:])):
        rank = int(path.stem[4:])
        try:
            trace = read_trace(directory, rank, only_open=True)
        except DamagedTraceError:
            continue
        found.append(_wait(rank, trace.records, now_ns))
    return tuple(found)


def waits_as_json(found: tuple[Wait, ...]) -> list[dict[str, Any]]:
    """The same for a file."""
    return [asdict(wait) for wait in found]


def _wait(rank: int, records: tuple[Record, ...], now_ns: int) -> Wait:
    under_way = [record for record in records if record.end_ns is None]
    if not under_way:
        last = records[-1] if records else None
        told = None if last is None else f"{last.op} {last.sequence} of {last.group}"
        return Wait(rank, None, last=told)
    # One that is waited for or has not returned keeps the rank; one that has returned may run beside anything.
    record = next((each for each in under_way if each.stage != "returned"), under_way[0])
    caller = "{}:{} {}".format(*record.frames[0]) if record.frames else None
    return Wait(
        rank,
        record.op,
        record.group,
        record.ranks,
        record.sequence,
        str(record.stage),
        (now_ns - (record.wait_ns or record.start_ns)) / 1e9,
        caller,
        record.layout,
        record.forward,
    )
