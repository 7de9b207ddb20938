"""The own trace format, read as a stream: 64-byte slots, each checked, decoded a block at a time.

Reading stops at the first slot that does not hold, and `end` says where and why: what was given before it is right,
what comes after it is unknown. docs/trace.md has the layout of a slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from orchestrate.analysis.trace.crc32 import crc32_rows
from orchestrate.analysis.trace.definitions import Definitions
from orchestrate.analysis.trace.model import RECORD, Block, End, Ended, Frame, Interned, State

__all__ = ["MAGIC", "SLOT_BYTES", "SlotTrace", "is_slot_trace"]

MAGIC = b"RNKTRACE"
SLOT_BYTES = 64
_VERSION = 2
_HEADER = Struct("<IBxHI8sIIIQ24x")
_SLOT = np.dtype(
    {
        "names": [
            "crc", "kind", "flags", "batch", "slot", "sequence", "group", "context", "signature", "forward", "channel",
            "start", "wait", "unwait", "end", "word",
        ],
        "formats": [
            "<u4", "u1", "u1", "<u2", "<u4", "<u4", "<u2", "<u2",
            "<u4", "<i4", "<u4", "<u8", "<u4", "<u4", "<u8", "<u8",
        ],
        "offsets": [0, 4, 5, 6, 8, 12, 16, 18, 20, 24, 28, 32, 40, 44, 48, 56],
        "itemsize": SLOT_BYTES,
    }
)  # fmt: skip
_RECORD, _DEFINITION, _END, _HEAD = 1, 2, 3, 4
_COMPLETED, _RAISED = np.uint64(0x5A5A5A5A5A5A5A5A), np.uint64(0xA5A5A5A5A5A5A5A5)
_ASYNC, _BACKWARD, _P2P = 1, 2, 4
_KEYS = 4096
_HEAD_SLOTS = 256
_REASON_AT = 20


def is_slot_trace(head: bytes) -> bool:
    """Whether a file that begins with `head` (20 bytes at least) says that it is a trace of ours."""
    return head[12:20] == MAGIC


class _Header(NamedTuple):
    chunk_bytes: int
    rank: int
    world_size: int
    start_ns: int


class SlotTrace:
    """One `rank<r>.trace`.

    Raises:
        ValueError: the header does not hold, so that not even the rank is known; it names the offset.
        OSError: the file can not be read.
    """

    format = "own"
    starts_late = False
    gapless = True

    def __init__(self, path: Path, interned: Interned) -> None:
        self.path = path
        self._size = path.stat().st_size
        with path.open("rb") as file:
            self._header = _header(file.read(SLOT_BYTES))
        self._interned = interned
        self._definitions = Definitions(interned, self._header.rank)
        self.end = End(Ended.OPEN)

    @property
    def rank(self) -> int:
        """The global rank."""
        return self._header.rank

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self._header.world_size

    @property
    def groups(self) -> Sequence[int]:
        """The groups that this rank has used so far."""
        return self._definitions.used

    def read_head(self) -> dict[str, Any]:
        """What the process says of itself, as the first slots of the file have it; empty if they do not hold."""
        first = SlotTrace(self.path, Interned())
        next(first.blocks(_HEAD_SLOTS), None)
        return first._definitions.head

    def frames(self, record: np.void) -> tuple[Frame, ...]:
        """The user code that made `record`, innermost first."""
        return self._definitions.frames(int(record["local"]))

    def blocks(self, records: int) -> Iterator[Block]:
        """The records, `records` slots at a time. A file that ends early gives what stands before that place."""
        self._definitions = Definitions(self._interned, self._header.rank)
        with self.path.open("rb") as file:
            at = 0
            while True:
                slots = np.frombuffer(file.read(records * SLOT_BYTES), np.uint8)
                whole = slots[: len(slots) // SLOT_BYTES * SLOT_BYTES].reshape(-1, SLOT_BYTES)
                if not len(whole):
                    self.end = _cut(at * SLOT_BYTES, "the file stops without an end")
                    return
                good, end = self._checked(whole, at, file)
                given, damage = self._decoded(whole[:good], at)
                if len(given):
                    yield given
                end = damage or end
                if end is not None:
                    self.end = end
                    return
                at += len(whole)

    def _checked(self, rows: np.ndarray[Any, np.dtype[np.uint8]], at: int, file: BinaryIO) -> tuple[int, End | None]:
        """How many of `rows`, which begin with slot `at`, hold; and how the trace ends, if it does there."""
        slots = rows.view(_SLOT)[:, 0]
        kinds = slots["kind"]
        is_record = kinds == _RECORD
        sums = np.empty(len(rows), np.uint32)
        if is_record.any():
            sums[is_record] = crc32_rows(rows[:, 4:40] if is_record.all() else rows[is_record][:, 4:40])
        if not is_record.all():
            sums[~is_record] = crc32_rows(rows[~is_record][:, 4:])
        wrong = (sums != slots["crc"]) | (slots["slot"] != np.arange(at, at + len(rows), dtype=np.uint32))
        wrong |= (kinds == 0) | (kinds > _HEAD) | ((kinds == _HEAD) != (np.arange(at, at + len(rows)) == 0))
        ended = np.flatnonzero((kinds == _END) & ~wrong)
        first_wrong = int(np.argmax(wrong)) if wrong.any() else len(rows)
        if len(ended) and ended[0] < first_wrong:
            place = int(ended[0])
            after = (at + place + 1) * SLOT_BYTES
            if slots["flags"][place]:
                why = rows[place, _REASON_AT:].tobytes().rstrip(b"\0").decode(errors="replace")
                return place, _cut((at + place) * SLOT_BYTES, f"the recorder gave up here: {why}")
            return place, End(Ended.COMPLETE) if after == self._size else _cut(after, "bytes follow the end")
        if first_wrong == len(rows):
            return first_wrong, None
        return first_wrong, self._at_wrong(rows[first_wrong:], at + first_wrong, file)

    def _at_wrong(self, rest: np.ndarray[Any, np.dtype[np.uint8]], slot: int, file: BinaryIO) -> End:
        """What the first slot that does not hold means: the unwritten rest of a killed rank's file, or damage."""
        unwritten = not rest[0].any()
        zeros_after = len(rest) > 1 or self._size > (slot + 1) * SLOT_BYTES
        if unwritten or zeros_after:
            only_zeros = not rest[1:].any() and _rest_is_zero(file)
            if only_zeros and self._size % self._header.chunk_bytes == 0:
                if unwritten:
                    return End(Ended.OPEN)
                return _cut(slot * SLOT_BYTES, "the last record is torn")
        if unwritten:
            return _cut(slot * SLOT_BYTES, "unwritten slots are followed by others, or the file was cut")
        return _cut(slot * SLOT_BYTES, "the slot's checksum, kind or number does not hold")

    def _decoded(self, rows: np.ndarray[Any, np.dtype[np.uint8]], at: int) -> tuple[Block, End | None]:
        """The records of slots that hold, up to one that says what can not be; and where and why that one ends it."""
        slots = rows.view(_SLOT)[:, 0] if len(rows) else np.empty(0, _SLOT)
        damage: End | None = None
        for place in np.flatnonzero(slots["kind"] == _DEFINITION):
            why = self._definitions.add(rows[place].tobytes())
            if why is not None:
                damage = _cut((at + int(place)) * SLOT_BYTES, why)
                slots = slots[:place]
                break
        where = np.flatnonzero(slots["kind"] == _RECORD)
        records = slots if len(where) == len(slots) else slots[where]
        state, wrong = _states(records)
        wrong |= self._definitions.undefined(records)
        if wrong.any():
            first = int(np.argmax(wrong))
            damage = _cut((at + int(where[first])) * SLOT_BYTES, "an end, a stage or a definition does not hold")
            records, where, state = records[:first], where[:first], state[:first]
        block = np.zeros(len(records), RECORD)
        if len(records):
            self._fill(block, records, state)
            block["ref"] = where + at
        return block, damage

    def _fill(self, block: Block, records: np.ndarray[Any, np.dtype[np.void]], state: Any) -> None:
        p2p = (records["flags"] & _P2P) != 0
        named = self._definitions.named(records["group"], records["signature"], records["context"], records["flags"])
        block["group"], block["call"], block["context"] = named
        block["local"] = records["signature"]
        block["key"] = np.where(p2p, records["channel"], records["sequence"].astype(np.int64) * _KEYS)
        if p2p.any():
            keys = block["key"]
            self._definitions.count_by_tag(block["group"], keys)
        block["forward"] = records["forward"]
        block["state"] = state
        block["p2p"] = p2p
        block["start"] = records["start"]
        # An end whose check was never written is half of one.
        block["end"] = np.where((state == State.COMPLETED) | (state == State.RAISED), records["end"], 0)


def _header(slot: bytes) -> _Header:
    if len(slot) < SLOT_BYTES:
        raise ValueError(f"it stops at byte {len(slot)}, within the header")
    checksum, kind, version, number, magic, chunk, rank, world_size, start_ns = _HEADER.unpack(slot)
    row = np.frombuffer(slot, np.uint8)[None, 4:]
    if magic != MAGIC or kind != _HEAD or number != 0 or int(crc32_rows(row)[0]) != checksum:
        raise ValueError("its header, at byte 0, does not hold")
    if version != _VERSION:
        raise ValueError(f"its header, at byte 6, names version {version}; this reads version {_VERSION}")
    if not chunk or rank >= world_size:
        raise ValueError("its header, at byte 20, names no chunk size or a rank beyond the world")
    return _Header(chunk * SLOT_BYTES, rank, world_size, start_ns)


def _states(records: np.ndarray[Any, np.dtype[np.void]]) -> tuple[Any, Any]:
    """(n,) how far each record got, and whether its stage or end can not be."""
    end, word, wait, unwait = records["end"], records["word"], records["wait"], records["unwait"]
    check = end ^ word
    completed = (end != 0) & (check == _COMPLETED)
    raised = (end != 0) & (check == _RAISED)
    staged = (wait != 0) | (unwait != 0)
    wrong = ~(completed | raised | (word == 0)) | (staged & (wait != ~unwait))
    state = np.where(completed, State.COMPLETED, np.where(raised, State.RAISED, State.PENDING)).astype(np.int8)
    staged &= state == State.PENDING
    state[staged] = np.where(wait[staged] == 0, State.UNKNOWN, State.WAITING)
    return state, wrong


def _rest_is_zero(file: BinaryIO) -> bool:
    while data := file.read(1 << 20):
        if data.count(0) != len(data):
            return False
    return True


def _cut(offset: int, why: str) -> End:
    return End(Ended.CUT, offset, why)
