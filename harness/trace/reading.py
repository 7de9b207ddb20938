"""A trace file as one value: for the watchdog, and for whoever looks at few records. No streaming, no comparison.

docs/trace.md describes the format and says what is an end, a cut and damage.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from struct import Struct
from typing import Any

from .format import (
    BODY,
    COMPLETED,
    DEFINITION,
    HEADER,
    MAGIC,
    RAISED,
    SLOT_BYTES,
    VERSION,
    Flag,
    Kind,
    Table,
    trace_path,
)

__all__ = ["DamagedTraceError", "Ending", "RankTrace", "Record", "Stage", "count_records", "read_trace", "used_slots"]

_TIMES = Struct("<IIQQ")


class DamagedTraceError(ValueError):
    """A trace is not what its writer wrote; the message names the file and the byte."""

    def __init__(self, path: Path, offset: int, what: str) -> None:
        super().__init__(f"{path}: byte {offset}: {what}")
        self.offset = offset


class Ending(StrEnum):
    """How a trace ends: by itself, without an end (killed, hanging or running), or before what the rank did."""

    CLOSED = "closed"
    OPEN = "open"
    CUT = "cut"


class Stage(StrEnum):
    """How far a collective came: in its call, returned but not waited for, being waited for, done, or raised."""

    CALLED = "called"
    RETURNED = "returned"
    WAITING = "waiting"
    COMPLETED = "completed"
    RAISED = "raised"


@dataclass(frozen=True, slots=True)
class Record:
    """One collective. Times in ns of CLOCK_MONOTONIC; `wait_ns` and `end_ns` are None where there is none."""

    sequence: int
    group: str
    ranks: tuple[int, ...]
    call: dict[str, Any]
    frames: tuple[tuple[str, int, str], ...]
    layout: str | None
    phase: str | None
    forward: int | None
    flags: Flag
    channel: int
    batch: int
    stage: Stage
    start_ns: int
    wait_ns: int | None
    end_ns: int | None

    @property
    def op(self) -> str:
        """The operation."""
        return str(self.call["op"])

    @property
    def is_done(self) -> bool:
        """Completed: neither under way nor raised."""
        return self.stage is Stage.COMPLETED


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's trace: its head, its records in the order of their start, and how the file ends."""

    head: dict[str, Any]
    records: tuple[Record, ...]
    ending: Ending

    @property
    def open(self) -> tuple[Record, ...]:
        """The collectives that never completed."""
        return tuple(record for record in self.records if not record.is_done)


def read_trace(directory: Path, rank: int, *, only_open: bool = False) -> RankTrace:
    """Read the trace of `rank`, also of a process that was killed or still runs.

    With `only_open` the records are those that never completed, and the last one: few, of however many.

    Raises:
        FileNotFoundError: the rank recorded nothing.
        DamagedTraceError: the file is no trace, or not what its writer wrote.
    """
    path = trace_path(directory, rank)
    return _Reader(path, path.read_bytes(), only_open=only_open).read()


def used_slots(path: Path) -> int:
    """How many slots of a trace have been written, at the cost of a few small reads: whether a rank gets on."""
    with path.open("rb") as file:
        low, high = 0, path.stat().st_size // SLOT_BYTES
        while low < high:  # slots are written in order, so the first that was not is to be found by halving
            middle = (low + high) // 2
            file.seek(middle * SLOT_BYTES + 4)
            if file.read(1) not in {b"", b"\0"}:
                low = middle + 1
            else:
                high = middle
    return low


def count_records(path: Path) -> int:
    """How many records a trace holds, damaged or not."""
    return path.read_bytes()[4::SLOT_BYTES].count(Kind.RECORD)


class _Reader:
    def __init__(self, path: Path, data: bytes, *, only_open: bool) -> None:
        self._only_open = only_open
        self._path = path
        self._data = data
        self._tables: dict[Table, list[dict[str, Any]]] = {table: [] for table in Table}
        self._records: list[Record] = []

    def read(self) -> RankTrace:
        data = self._data
        used = len(data.rstrip(b"\0"))
        slots = -(-used // SLOT_BYTES)
        chunk_bytes = self._chunk_bytes()
        whole = len(data) % chunk_bytes == 0 and len(data) >= (slots + 1) * SLOT_BYTES
        closed = len(data) == slots * SLOT_BYTES and data[-SLOT_BYTES + 4] == Kind.END
        fragments: list[bytes] = []
        last = 0
        for slot in range(1, slots):
            at = slot * SLOT_BYTES
            if at + SLOT_BYTES > len(data):
                break  # a part of a slot: the file was cut in it
            if not self._holds(at):
                if slot == slots - 1 and whole:
                    break  # torn: the process died while it wrote this slot
                raise self._damaged(at, "the slot does not hold its checksum")
            match data[at + 4]:
                case Kind.RECORD if self._only_open and data[at + 56 : at + SLOT_BYTES] != bytes(8):
                    last = at
                case Kind.RECORD:
                    last = 0
                    self._records.append(self._record(at))
                case Kind.DEFINITION:
                    self._fragment(at, fragments)
                case Kind.END if closed and slot == slots - 1:
                    pass
                case kind:
                    raise self._damaged(at, f"a slot of kind {kind} has no place here")
        if last:
            self._records.append(self._record(last))
        gave_up = closed and data[-SLOT_BYTES + 5]
        ending = Ending.CUT if gave_up else Ending.CLOSED if closed else Ending.OPEN if whole else Ending.CUT
        return RankTrace(self._named(Table.HEAD, 0, SLOT_BYTES), tuple(self._records), ending)

    def _chunk_bytes(self) -> int:
        if len(self._data) < SLOT_BYTES or not self._holds(0):
            raise self._damaged(0, "no header: this is no trace")
        kind, version, _, magic, chunk_slots, *_ = HEADER.unpack_from(self._data)
        if (kind, version, magic) != (Kind.HEADER, VERSION, MAGIC):
            raise self._damaged(0, f"not a trace of version {VERSION}")
        return int(chunk_slots) * SLOT_BYTES

    def _holds(self, at: int) -> bool:
        slot = self._data[at : at + SLOT_BYTES]
        checked = slot[4:40] if slot[4] == Kind.RECORD else slot[4:]
        return int.from_bytes(slot[:4], "little") == zlib.crc32(checked) and (
            int.from_bytes(slot[8:12], "little") == at // SLOT_BYTES
        )

    def _fragment(self, at: int, fragments: list[bytes]) -> None:
        _, table, length, _, number, to_come, fragment = DEFINITION.unpack_from(self._data, at)
        fragments.append(fragment[:length])
        if to_come:
            return
        if number != len(self._tables[Table(table)]):
            raise self._damaged(at, f"definition {number} of table {table} is out of turn")
        self._tables[Table(table)].append(json.loads(b"".join(fragments)))
        fragments.clear()

    def _named(self, table: Table, number: int, at: int) -> dict[str, Any]:
        if number >= len(self._tables[table]):
            raise self._damaged(at, f"definition {number} of table {table.name.lower()} is missing")
        return self._tables[table][number]

    def _record(self, at: int) -> Record:
        _, flags, batch, _, sequence, group, context, signature, forward, channel, start_ns = BODY.unpack_from(
            self._data, at + 4
        )
        wait_us, complement, end_ns, check = _TIMES.unpack_from(self._data, at + 40)
        where = self._named(Table.GROUP, group, at)
        call = self._named(Table.SIGNATURE, signature, at)
        doing = self._named(Table.CONTEXT, context, at)
        frames = self._named(Table.STACK, call["stack"], at)["frames"]
        return Record(
            sequence=sequence,
            group=where["name"],
            ranks=tuple(where["ranks"]),
            call=call,
            frames=tuple((file, line, function) for file, line, function in frames),
            layout=doing["layout"],
            phase=doing["phase"],
            forward=None if forward < 0 else forward,
            flags=Flag(flags),
            channel=channel,
            batch=batch,
            stage=self._stage(at, wait_us, complement, end_ns, check),
            start_ns=start_ns,
            wait_ns=start_ns + wait_us * 1000 if wait_us else None,
            end_ns=end_ns if check else None,
        )

    def _stage(self, at: int, wait_us: int, complement: int, end_ns: int, check: int) -> Stage:
        if (wait_us or complement) and wait_us ^ complement != 0xFFFFFFFF:
            raise self._damaged(at + 40, "the stage of the record does not hold its check")
        if check:
            if end_ns ^ check not in {COMPLETED, RAISED}:
                raise self._damaged(at + 48, "the end of the record does not hold its check")
            return Stage.COMPLETED if end_ns ^ check == COMPLETED else Stage.RAISED
        if wait_us:
            return Stage.WAITING
        return Stage.RETURNED if complement else Stage.CALLED

    def _damaged(self, at: int, what: str) -> DamagedTraceError:
        return DamagedTraceError(self._path, at, what)
