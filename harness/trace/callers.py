"""Who called: the frames of user code above a collective, for a microsecond and not for a traceback's price."""

from __future__ import annotations

import contextlib
import sys
from pathlib import PurePath
from types import CodeType, FrameType

from .format import TraceWriter

__all__ = ["Callers"]

_HERE = PurePath(__file__).parent
_SEAM = (f"{_HERE}/", f"{_HERE.parent / 'parallel' / 'collectives.py'}", contextlib.__file__)
"""Files, beside torch's, that stand between the author of a collective and its record."""


class Callers:
    """Numbers of call stacks: the innermost `frames` frames of user code, none where autograd itself called.

    A stack is looked up by the identity of its code objects and the places in them; only one that is new is put into
    words. File names are their last three parts: where a home folder lies is nobody's business.
    """

    def __init__(self, writer: TraceWriter, frames: int = 4) -> None:
        self._writer = writer
        self._frames = 2 * frames
        torch = getattr(sys.modules.get("torch"), "__file__", None)  # a rank has imported it by now
        self._library = (*_SEAM, *(() if torch is None else (f"{PurePath(torch).parent}/",)))
        # By identity, for hashing a code object hashes its code. What is kept can not lose its id to another one.
        self._passed_over: dict[int, CodeType] = {}
        self._users: dict[int, CodeType] = {}
        self._stacks: dict[tuple[int, ...], int] = {}

    def number(self, depth: int) -> int:
        """The number of the stack that ends `depth` frames above the caller of this method."""
        frame: FrameType | None = sys._getframe(depth + 1)  # noqa: SLF001 - the documented way to a caller's frame
        passed_over, users, most, key = self._passed_over, self._users, self._frames, list[int]()
        while frame is not None:
            code = frame.f_code
            place = id(code)
            if place not in passed_over:
                if place not in users:
                    if code.co_filename.startswith(self._library):
                        passed_over[place] = code
                        continue
                    users[place] = code
                key += (place, frame.f_lasti)
                if len(key) == most:
                    break
            frame = frame.f_back
        stack = tuple(key)
        number = self._stacks.get(stack)
        if number is None:
            number = self._stacks[stack] = self._writer.stack(self._words(stack))
        return number

    def _words(self, stack: tuple[int, ...]) -> list[tuple[str, int, str]]:
        words = []
        for place, lasti in zip(stack[::2], stack[1::2], strict=True):
            code = self._users[place]
            lines = (line for start, end, line in code.co_lines() if start <= lasti < end)
            name = "/".join(PurePath(code.co_filename).parts[-3:]).lstrip("/")
            words.append((name, next(lines, None) or code.co_firstlineno, code.co_qualname))
        return words
