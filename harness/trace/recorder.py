"""The record of every collective of one rank, from the first one, cheap enough to leave on.

A rank appends one JSON line for each completed collective to `rank<r>.jsonl`, with one `write` into an append-only
file, so that a SIGKILL loses no completed record. A collective that has begun stands in `rank<r>.open`, a small mapped
file that costs no system call and that the kernel keeps when the process dies: `read_trace` gives both.

    {"schema": "harness.trace/1", "rank": 0, "pid": 71, "wall_ns": ..., "mono_ns": ...}      the first line
    {"seq": 4, "group": "cp", "ranks": [0, 1, 2, 3], "op": "all_to_all", "dtype": ..., "shape": ..., "send_splits": ...,
     "recv_splits": ..., "reduce_op": ..., "root": ..., "tag": ..., "direction": "forward", "layout": "depth_one",
     "forward": 2, "phase": "warmup", "caller": "harness/parallel/context.py:88", "start": ..., "end": ...}

`seq` counts per group from 0. `start` and `end` are nanoseconds of CLOCK_MONOTONIC, which all processes of one machine
share; the first line ties it to the wall clock.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

__all__ = ["TRACE_SCHEMA", "Collective", "RankTrace", "Recorder", "read_trace"]

TRACE_SCHEMA = "harness.trace/1"
_SLOT_BYTES = 4096
_SEAM = ("/harness/trace/recorder.py", "/harness/parallel/collectives.py", "/contextlib.py")
"""Files between a collective's author and the recorder; torch's own (autograd) are passed over too."""


class Recorder:
    """The record of one rank, written into `directory`.

    `context` says what the rank is doing; each record carries it until it changes. One process, one recorder; a
    collective may begin on another thread than the last one, as CUDA's backward does.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.rank = rank
        self._file = os.open(
            directory / f"rank{rank}.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        self._slot = _mapped(directory / f"rank{rank}.open")
        self._sequence: dict[str, int] = {}
        self._callers: dict[tuple[str, int], str] = {}
        self._kinds: dict[tuple[object, ...], str] = {}
        self._context = _context_json(layout=None, forward=None, phase=None)
        head = {"rank": rank, "pid": os.getpid(), "wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()}
        os.write(self._file, _line({"schema": TRACE_SCHEMA, **head}))

    def context(self, *, layout: str | None, forward: int | None, phase: str | None) -> None:
        """What the next records belong to: the layout's label, the forward's number, the phase."""
        self._context = _context_json(layout=layout, forward=forward, phase=phase)

    def record(
        self,
        *,
        op: str,
        group: str,
        ranks: Sequence[int],
        dtype: object = None,
        shape: Sequence[int] | None = None,
        send_splits: Sequence[int] | None = None,
        recv_splits: Sequence[int] | None = None,
        reduce_op: str | None = None,
        root: int | None = None,
        tag: str | None = None,
        direction: str = "forward",
    ) -> Collective:
        """The context of one collective: its record is complete when the block is left without an error."""
        sequence = self._sequence.get(group, 0)
        self._sequence[group] = sequence + 1
        call = (group, tuple(ranks), op, dtype, reduce_op, root, tag, direction)
        kind = self._kinds.get(call)
        if kind is None:
            kind = self._kinds[call] = _kind_json(*call)
        text = (
            f'{{"seq": {sequence}, {kind}, "shape": {_integers(shape)}, "send_splits": {_integers(send_splits)}, '
            f'"recv_splits": {_integers(recv_splits)}, {self._context}, "caller": {self._caller(sys._getframe(1))}'  # noqa: SLF001 - the documented way to a caller's line without the cost of a traceback
        )
        return Collective(self, text)

    def close(self) -> None:
        """Close the files; what was recorded stays."""
        os.close(self._file)
        self._slot.close()

    def begin(self, text: str) -> None:
        """Put the open record into the slot; only `Collective` calls this."""
        encoded = text.encode()[: _SLOT_BYTES - 8]
        self._slot[0:8] = bytes(8)  # a reader must not take the old length for the new text
        self._slot[8 : 8 + len(encoded)] = encoded
        self._slot[0:8] = len(encoded).to_bytes(8, "little")

    def complete(self, text: str) -> None:
        """Append one record; only `Collective` calls this."""
        os.write(self._file, text.encode())
        self._slot[0:8] = bytes(8)

    def _caller(self, frame: FrameType | None) -> str:
        while frame is not None and (frame.f_code.co_filename.endswith(_SEAM) or "/torch/" in frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return '"autograd"'
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place not in self._callers:
            name = "/".join(Path(place[0]).parts[-3:])
            self._callers[place] = json.dumps(f"{name}:{place[1]}")
        return self._callers[place]


class Collective:
    """One collective under way; a context manager."""

    __slots__ = ("_recorder", "_start", "_text")

    def __init__(self, recorder: Recorder, text: str) -> None:
        self._recorder = recorder
        self._text = text
        self._start = 0

    def __enter__(self) -> Self:
        self._start = time.monotonic_ns()
        self._text = f'{self._text}, "start": {self._start}'
        self._recorder.begin(self._text)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._recorder.complete(f'{self._text}, "end": {time.monotonic_ns()}}}\n')


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's record: the first line, the completed collectives in order, and the one it died or hangs in."""

    head: dict[str, Any]
    completed: tuple[dict[str, Any], ...]
    open: dict[str, Any] | None


def read_trace(directory: Path, rank: int) -> RankTrace:
    """Read one rank's record, also of a process that was killed: a torn last line is left out.

    Raises:
        FileNotFoundError: the rank recorded nothing.
        ValueError: a line that is not the last one is damaged, or the file is no trace.
    """
    lines = (directory / f"rank{rank}.jsonl").read_bytes().split(b"\n")[:-1]
    records = [json.loads(line) for line in lines]
    if not records or records[0].get("schema") != TRACE_SCHEMA:
        raise ValueError(f"{directory / f'rank{rank}.jsonl'} is no {TRACE_SCHEMA} file")
    return RankTrace(records[0], tuple(records[1:]), _read_slot(directory / f"rank{rank}.open"))


def _mapped(path: Path) -> mmap.mmap:
    with path.open("wb+") as file:
        file.truncate(_SLOT_BYTES)
        return mmap.mmap(file.fileno(), _SLOT_BYTES)


def _read_slot(path: Path) -> dict[str, Any] | None:
    slot = path.read_bytes() if path.exists() else b""
    length = int.from_bytes(slot[:8], "little")
    if not 0 < length <= _SLOT_BYTES - 8:
        return None
    try:
        record: dict[str, Any] = json.loads(slot[8 : 8 + length] + b"}")
    except ValueError:  # longer than the slot: what is known is that one is open
        return {"truncated": slot[8 : 8 + length].decode(errors="replace")}
    return record


def _kind_json(
    group: str,
    ranks: tuple[int, ...],
    op: str,
    dtype: object,
    reduce_op: str | None,
    root: int | None,
    tag: str | None,
    direction: str,
) -> str:
    """What one call site's records have in common: made once, because JSON is most of a record's cost."""
    return json.dumps(
        {
            "group": group,
            "ranks": list(ranks),
            "op": op,
            "dtype": None if dtype is None else str(dtype),
            "reduce_op": reduce_op,
            "root": root,
            "tag": tag,
            "direction": direction,
        }
    )[1:-1]


def _integers(values: Sequence[int] | None) -> str:
    return "null" if values is None else str(list(values))


def _context_json(**context: str | int | None) -> str:
    return json.dumps(context)[1:-1]


def _line(record: dict[str, object]) -> bytes:
    return json.dumps(record).encode() + b"\n"
