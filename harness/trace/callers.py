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
_DEEPEST = 200


class Callers:
    """Numbers of call stacks: the innermost `frames` frames of user code, none where autograd itself called.

    A stack is looked up by the identity of its code objects and the places in them; only one that is new is put into
    words. File names are their last three parts: where a home folder lies is nobody's business.
    """

    def __init__(self, writer: TraceWriter, frames: int = 4) -> None:
        self._writer = writer
        self._frames = 2 * frames
        torch = getattr(sys.modules.get("torch"), "__file__", None)  # a rank has imported it by now
        self._passed_over = (*_SEAM, *(() if torch is None else (f"{PurePath(torch).parent}/",)))
        self._codes: dict[int, tuple[bool, CodeType]] = {}  # a code object that is kept can not lose its id to another
        self._stacks: dict[tuple[int, ...], int] = {}

    def number(self, depth: int) -> int:
        """The number of the stack that ends `depth` frames above the caller of this method."""
        frame: FrameType | None = sys._getframe(depth + 1)  # noqa: SLF001 - the documented way to a caller's frame
        codes, most, key = self._codes, self._frames, list[int]()
        deepest = _DEEPEST
        while frame is not None and deepest:
            code = frame.f_code
            known = codes.get(id(code))
            if known is None:
                known = codes[id(code)] = (not code.co_filename.startswith(self._passed_over), code)
            if known[0]:
                key += (id(code), frame.f_lasti)
                if len(key) == most:
                    break
            frame = frame.f_back
            deepest -= 1
        stack = tuple(key)
        number = self._stacks.get(stack)
        if number is None:
            number = self._stacks[stack] = self._writer.stack(self._words(stack))
        return number

    def _words(self, stack: tuple[int, ...]) -> list[tuple[str, int, str]]:
        words = []
        for place, lasti in zip(stack[::2], stack[1::2], strict=True):
            code = self._codes[place][1]
            lines = (line for start, end, line in code.co_lines() if start <= lasti < end)
            name = "/".join(PurePath(code.co_filename).parts[-3:]).lstrip("/")
            words.append((name, next(lines, None) or code.co_firstlineno, code.co_qualname))
        return words
