"""A pickle decoder for strangers' files: plain containers and scalars, and nothing else gets as far as the decoder.

The opcodes are read first. Those that name classes, call, build or fetch are not among the known ones, so no pickle can
run code; every length lies within the file, and a memo's numbers are no larger than the file, so that no small file
asks for much memory. Dicts are made as flat lists (key, value, key, value): nothing is hashed, because hashing nested
tuples recurses in C without a limit (a stack overflow), and shared ones double the time with each level.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

__all__ = ["PickleError", "load_flat"]

_STRINGS = {0x58: 4, 0x8C: 1, 0x43: 1, 0x42: 4, 0x8D: 8, 0x55: 1}
"""BINUNICODE, SHORT_BINUNICODE, SHORT_BINBYTES, BINBYTES, BINUNICODE8, SHORT_BINSTRING: bytes of their length."""
_MOST_LONG = 64
"""Bytes of an integer."""


class PickleError(ValueError):
    """The pickle is not one of plain data, or is damaged. `offset` is the byte, where it is known."""

    def __init__(self, offset: int | None, why: str) -> None:
        super().__init__(why if offset is None else f"byte {offset}: {why}")
        self.offset = offset
        self.why = why


def load_flat(data: bytes) -> Any:
    """What the pickle in `data` holds: lists, tuples, texts, bytes, numbers, booleans, None; dicts as flat lists.

    A flat list may hold a pair (key, value) as a tuple where a key would stand.

    Raises:
        PickleError: anything else is in it, or it is cut or damaged, or bytes follow its end.
    """
    checked = _checked(data)
    try:
        return _Plain(io.BufferedReader(io.BytesIO(checked), 1 << 20)).load()  # one that it can look ahead in
    except PickleError:
        raise
    except RecursionError as error:
        raise PickleError(None, "it is nested too deeply") from error
    except Exception as error:  # whatever the decoder trips over is damage of the file, not of this process
        raise PickleError(None, f"its parts do not fit together ({type(error).__name__})") from error


class _Plain(pickle.Unpickler):
    """The second door: opcodes that lead here never pass the first."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise PickleError(None, f"it names {module_name}.{global_name}; a trace holds plain data")

    def persistent_load(self, _pid: Any) -> NoReturn:
        raise PickleError(None, "it names a persistent object; a trace holds plain data")


def _checked(data: bytes) -> bytes:
    """The pickle with dicts made flat lists, if it has none but known opcodes."""
    size = len(data)
    run = _run(size).match
    out = bytearray(data)
    pieces: list[bytes] = []
    taken = 0
    at = 0
    while True:
        found = run(data, at)
        at = found.end() if found else at
        if at >= size:
            raise PickleError(size, "it stops here")
        op = data[at]
        if op == 0x7D:  # EMPTY_DICT -> EMPTY_LIST
            out[at] = 0x5D
            at += 1
        elif op == 0x75:  # SETITEMS -> APPENDS
            out[at] = 0x65
            at += 1
        elif (width := _STRINGS.get(op)) is not None:
            end = at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
            if end > size:
                raise PickleError(size, f"it stops within a text that begins at byte {at}")
            at = end
        elif op == 0x64:  # DICT -> LIST
            out[at] = 0x6C
            at += 1
        elif op == 0x73:  # SETITEM -> TUPLE2, APPEND
            pieces += [bytes(out[taken:at]), b"\x86a"]
            at += 1
            taken = at
        elif op == 0x95:  # FRAME: a hint for streams, wrong once lengths change
            pieces.append(bytes(out[taken:at]))
            at += 9
            taken = at
        elif op == 0x8A:  # LONG1, longer than the usual ones
            length = data[at + 1] if at + 1 < size else 0
            if length > _MOST_LONG:
                raise PickleError(at, "an integer that no trace holds")
            at += 2 + length
        elif op in {0x49, 0x4C}:  # INT, LONG: decimal, in the oldest protocol
            end = data.find(b"\n", at, at + 2 * _MOST_LONG)
            if end < 0 or re.fullmatch(rb"[IL]-?[0-9]+L?", data[at:end]) is None:
                raise PickleError(at, "an integer that no trace holds")
            at = end + 1
        elif op == 0x80:  # PROTO
            if at + 1 < size and not 1 <= data[at + 1] <= 5:
                raise PickleError(at, f"pickle protocol {data[at + 1]}")
            at += 2
        elif op == 0x2E:  # STOP
            if at + 1 != size:
                raise PickleError(at + 1, "bytes follow the end of the pickle")
            return b"".join([*pieces, bytes(out[taken:])])
        elif op in _FIXED and at + 1 + _FIXED[op] > size:
            raise PickleError(size, "it stops here")
        else:
            raise PickleError(at, f"opcode 0x{op:02x} is none of plain data")


_FIXED = {0x68: 1, 0x71: 1, 0x4B: 1, 0x4D: 2, 0x4A: 4, 0x6A: 4, 0x72: 4, 0x47: 8}
"""BINGET, BINPUT, BININT1, BININT2, BININT, LONG_BINGET, LONG_BINPUT, BINFLOAT: bytes of their argument."""


def _run(size: int) -> re.Pattern[bytes]:
    """Opcodes of fixed length, as many as there are; no memo number far beyond the bytes of the file."""
    put = next(
        put for limit, put in ((1 << 16, rb"..\0\0"), (1 << 24, rb"...\0"), (1 << 62, rb"...[\0-\x03]")) if size < limit
    )
    longs = b"|".join(b"\\x8a\\x%02x.{%d}" % (length, length) for length in range(9))
    # MARK, EMPTY_LIST, APPENDS, APPEND, TUPLE, EMPTY_TUPLE, LIST, NONE, NEWTRUE, NEWFALSE, TUPLE1-3, MEMOIZE
    simple = rb"[(\]eat)lN\x88\x89\x85\x86\x87\x94]"
    return re.compile(rb"(?:[hqK].|" + simple + rb"|M..|[Jj]....|r" + put + rb"|G.{8}|" + longs + rb")*+", re.DOTALL)
