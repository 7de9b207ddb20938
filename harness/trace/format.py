"""The trace file of one rank, and the writer of it: 64-byte slots in a mapped file that SIGKILL takes nothing from.

docs/trace.md describes the format. A slot is written through a shared mapping: what has been stored belongs to the
kernel and outlives the process. A record costs one `pack`, one CRC and one store; what records have in common (groups,
signatures, callers, contexts) is defined once, before its first use, and then named by number.

    >>> writer = TraceWriter(directory, rank=0, world_size=2)
    >>> group = writer.group("cp", (0, 1))
    >>> call = writer.signature(op="all_reduce", input_sizes=[[4]], input_dtypes=["float32"], reduce_op="sum")
    >>> record = writer.begin(group, call, sequence=0, start_ns=100)
    >>> writer.complete(record, end_ns=180)
    >>> writer.close()
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import threading
import zlib
from collections.abc import Mapping, Sequence
from enum import IntEnum, IntFlag
from pathlib import Path
from struct import Struct
from typing import Any

__all__ = [
    "BODY",
    "CHUNK_SLOTS",
    "COMPLETED",
    "DEFINITION",
    "END",
    "FRAGMENT_BYTES",
    "HEADER",
    "MAGIC",
    "RAISED",
    "SCHEMA",
    "SLOT_BYTES",
    "VERSION",
    "Flag",
    "Kind",
    "Slot",
    "Table",
    "TraceWriter",
    "trace_path",
]

SCHEMA = "harness.trace/2"
MAGIC = b"RNKTRACE"
VERSION = 2
SLOT_BYTES = 64
CHUNK_SLOTS = 16_384
FRAGMENT_BYTES = 44

HEADER = Struct("<4xBxHI8sIIIQ24x")
"""CRC (stored apart), kind, version, slot, magic, chunk slots, rank, world size, start (ns of CLOCK_MONOTONIC)."""
BODY = Struct("<BBHIIHHIiIQ")
"""A record after its CRC: kind, flags, batch, slot, sequence, group, context, signature, forward, channel, start."""
DEFINITION = Struct("<4xBBHIII44s")
"""CRC (stored apart), kind, table, bytes in this fragment, slot, number, fragments to come, fragment."""
END = Struct("<4xB?2xIQ44s")
"""CRC (stored apart), kind, whether the recorder gave up, slot, end (ns of CLOCK_MONOTONIC), why it gave up."""
COMPLETED = 0x5A5A5A5A5A5A5A5A
RAISED = 0xA5A5A5A5A5A5A5A5
"""The word after the end is the end XOR one of these."""

_STORE = Struct("<I36s")
_ENDS = Struct("=QQ")  # native, so that each half is one aligned store
_WORD = Struct("=Q")
_CRC = Struct("<I")
_PACK, _STORE_INTO, _CRC32 = BODY.pack, _STORE.pack_into, zlib.crc32  # looked up once, not for each record
_STAGE_AT, _END_AT = 40, 48
_RETURNED = 0xFFFFFFFF << 32
_MOST_US = 0xFFFFFFFE
_MOST_INTERNED = 1 << 16


class Kind(IntEnum):
    """What a slot holds; 0 is a slot that was never written."""

    RECORD = 1
    DEFINITION = 2
    END = 3
    HEADER = 4


class Table(IntEnum):
    """What a definition defines."""

    HEAD = 0
    GROUP = 1
    SIGNATURE = 2
    CONTEXT = 3
    STACK = 4


class Flag(IntFlag):
    """Facts of one record."""

    ASYNC = 1
    BACKWARD = 2
    P2P = 4


Slot = tuple[mmap.mmap, int]
"""Where a record lies: its part of the mapping, and the offset in it."""


def trace_path(directory: Path, rank: int) -> Path:
    """The trace of `rank`."""
    return directory / f"rank{rank}.trace"


class TraceWriter:
    """Writes `directory`/rank<r>.trace. `facts` are further facts of the process for the head (host, torch, ...).

    It takes times and sequence numbers as they are given: the recorder knows them. Several threads may write.

    Raises:
        OSError: the folder or the room for the next chunk is not to be had.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        *,
        world_size: int,
        start_ns: int = 0,
        facts: Mapping[str, Any] | None = None,
        chunk_slots: int = CHUNK_SLOTS,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(trace_path(directory, rank), flags, 0o600)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._chunk_bytes = chunk_slots * SLOT_BYTES
        self._slots = 0
        self._size = 0
        self._interned: dict[tuple[Table, str], int] = {}
        self._numbers = dict.fromkeys(Table, 0)
        self._grow()
        self._map = self._mapped()
        self._at = 0
        header = HEADER.pack(Kind.HEADER, VERSION, 0, MAGIC, chunk_slots, rank, world_size, start_ns)
        with self._lock:
            self._put(header)
            self._define(Table.HEAD, {"schema": SCHEMA, "rank": rank, "world_size": world_size, **(facts or {})})
            self._define(Table.CONTEXT, {"layout": None, "phase": None})
            self._define(Table.STACK, {"frames": []})

    def group(self, name: str, ranks: Sequence[int], *, backend: str | None = None, desc: str | None = None) -> int:
        """The number of a process group; a group of other ranks is another group, whatever its name."""
        return self._number(Table.GROUP, {"name": name, "ranks": list(ranks), "backend": backend, "desc": desc})

    def stack(self, frames: Sequence[tuple[str, int, str]]) -> int:
        """The number of a call stack of user code, innermost first: (file, line, function)."""
        return self._number(Table.STACK, {"frames": [list(frame) for frame in frames]})

    def context(self, layout: str | None, phase: str | None) -> int:
        """The number of what a rank is doing; 0 is nothing known."""
        return self._number(Table.CONTEXT, {"layout": layout, "phase": phase})

    def signature(
        self,
        *,
        op: str,
        input_sizes: Sequence[Sequence[int]] = (),
        input_dtypes: Sequence[str] = (),
        output_sizes: Sequence[Sequence[int]] = (),
        output_dtypes: Sequence[str] = (),
        send_splits: Sequence[int] | None = None,
        recv_splits: Sequence[int] | None = None,
        reduce_op: str | None = None,
        root: int | None = None,
        peer: int | None = None,
        tag: str | int | None = None,
        stack: int = 0,
    ) -> int:
        """The number of a call: everything that its records have in common. `root` and `peer` are global ranks."""
        call = {
            "op": op,
            "input_sizes": [list(sizes) for sizes in input_sizes],
            "input_dtypes": list(input_dtypes),
            "output_sizes": [list(sizes) for sizes in output_sizes],
            "output_dtypes": list(output_dtypes),
            "send_splits": None if send_splits is None else list(send_splits),
            "recv_splits": None if recv_splits is None else list(recv_splits),
            "reduce_op": reduce_op,
            "root": root,
            "peer": peer,
            "tag": tag,
            "stack": stack,
        }
        return self._number(Table.SIGNATURE, call)

    def begin(
        self,
        group: int,
        signature: int,
        *,
        sequence: int,
        start_ns: int,
        flags: int = 0,
        context: int = 0,
        forward: int = -1,
        channel: int = 0,
        batch: int = 0,
    ) -> Slot:
        """Write the record of a collective that begins; the numbers are those of the definitions."""
        with self._lock:
            at, place = self._at, self._map
            body = _PACK(1, flags, batch, self._slots, sequence, group, context, signature, forward, channel, start_ns)
            _STORE_INTO(place, at, _CRC32(body), body)
            self._advance()
        return place, at

    def count(
        self,
        counter: list[int],
        group: int,
        signature: int,
        start_ns: int,
        flags: int = 0,
        context: int = 0,
        forward: int = -1,
    ) -> Slot:
        """`begin` with the sequence number that `counter` stands at, which goes on by one in the same moment."""
        with self._lock:
            at, place, sequence = self._at, self._map, counter[0]
            body = _PACK(1, flags, 0, self._slots, sequence, group, context, signature, forward, 0, start_ns)
            _STORE_INTO(place, at, _CRC32(body), body)
            counter[0] = sequence + 1
            self._advance()
        return place, at

    @staticmethod
    def returned(slot: Slot) -> None:
        """The call of an asynchronous collective has returned; nobody waits for it yet."""
        _WORD.pack_into(slot[0], slot[1] + _STAGE_AT, _RETURNED)

    @staticmethod
    def waiting(slot: Slot, since_start_ns: int) -> None:
        """Somebody waits for an asynchronous collective, from so many nanoseconds after its start on."""
        us = min(max(since_start_ns // 1000, 1), _MOST_US)
        _WORD.pack_into(slot[0], slot[1] + _STAGE_AT, us | (~us & 0xFFFFFFFF) << 32)

    @staticmethod
    def complete(slot: Slot, end_ns: int, *, raised: bool = False) -> None:
        """The collective has ended: it is done (for an asynchronous one: waited for), or its call raised an error."""
        _ENDS.pack_into(slot[0], slot[1] + _END_AT, end_ns, end_ns ^ (RAISED if raised else COMPLETED))

    def close(self, end_ns: int = 0) -> None:
        """Write the clean end and cut the file there. A forked child that closes its copy changes nothing."""
        self._end(end_ns, None)

    def give_up(self, why: str, end_ns: int = 0) -> None:
        """Say in the file that the program went on from here and its record did not; what is written later is lost.

        Records that have begun may still complete. Nothing is raised: where no slot is left, the file is cut alone.
        """
        with contextlib.suppress(OSError):
            self._end(end_ns, why)

    def _end(self, end_ns: int, why: str | None) -> None:
        if os.getpid() != self._pid:
            return  # before the lock: the fork may have copied it held
        with self._lock:
            if self._file < 0:
                return
            file, self._file = self._file, -1
            gave_up, reason = why is not None, (why or "").encode()[:FRAGMENT_BYTES]
            checked = END.pack(Kind.END, gave_up, self._slots, end_ns, reason)[4:]
            if self._at < self._chunk_bytes:  # else the chunk is full and the next one was not to be had
                self._map[self._at : self._at + SLOT_BYTES] = _CRC.pack(zlib.crc32(checked)) + checked
                self._slots += 1
            # A store into what is cut off would kill the process: whatever another thread still writes goes nowhere.
            self._map, self._at = mmap.mmap(-1, self._chunk_bytes), 0
            try:
                os.ftruncate(file, self._slots * SLOT_BYTES)
            finally:
                os.close(file)

    def _number(self, table: Table, facts: Mapping[str, Any]) -> int:
        with self._lock:
            return self._define(table, facts)

    def _define(self, table: Table, facts: Mapping[str, Any]) -> int:
        text = json.dumps(facts, separators=(",", ":"))
        known = self._interned.get((table, text))
        if known is not None:
            return known
        if len(self._interned) >= _MOST_INTERNED:  # what never comes again must not fill the memory
            self._interned.clear()
        number = self._numbers[table]
        encoded = text.encode()
        fragments = [encoded[at : at + FRAGMENT_BYTES] for at in range(0, len(encoded), FRAGMENT_BYTES)]
        for index, fragment in enumerate(fragments):
            to_come = len(fragments) - index - 1
            self._put(DEFINITION.pack(Kind.DEFINITION, table, len(fragment), self._slots, number, to_come, fragment))
        self._numbers[table] = number + 1
        self._interned[table, text] = number
        return number

    def _put(self, slot: bytes) -> None:
        """Write a slot that is not a record; its first four bytes become the CRC of the rest."""
        checked = slot[4:]
        self._map[self._at : self._at + SLOT_BYTES] = _CRC.pack(zlib.crc32(checked)) + checked
        self._advance()

    def _advance(self) -> None:
        """Go on to the next slot. The file always has an unwritten slot at its end: a full one has been cut."""
        self._slots += 1
        self._at += SLOT_BYTES
        if self._at == self._chunk_bytes - SLOT_BYTES:
            self._grow()
        elif self._at == self._chunk_bytes:
            self._map = self._mapped()  # records that have not ended keep the old part alive
            self._at = 0

    def _grow(self) -> None:
        # Reserved, not sparse: a store into a page for which the disk has no room would kill the process.
        os.posix_fallocate(self._file, self._size, self._chunk_bytes)
        self._size += self._chunk_bytes

    def _mapped(self) -> mmap.mmap:
        return mmap.mmap(self._file, self._chunk_bytes, offset=self._slots * SLOT_BYTES)
