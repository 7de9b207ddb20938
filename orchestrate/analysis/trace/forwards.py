"""Which layout a rank ran in which forward, as its records say."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orchestrate.analysis.trace.model import Block

__all__ = ["Forwards"]

_MOST = 100_000


class Forwards:
    """The forwards of one rank in order: (forward, number of the first context met in it)."""

    __slots__ = ("_contexts", "_numbers", "cut")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._contexts: list[int] = []
        self.cut = False
        """Whether there were more forwards than are kept."""

    def add(self, block: Block) -> None:
        """Take the next records."""
        forward: NDArray[np.int32] = block["forward"]
        context: NDArray[np.int32] = block["context"]
        if not len(forward):
            return
        changed = np.flatnonzero(np.diff(forward, prepend=self._numbers[-1] if self._numbers else -1))
        for place in changed.tolist():
            if forward[place] < 0:
                continue
            if len(self._numbers) >= _MOST:
                self.cut = True
                return
            self._numbers.append(int(forward[place]))
            self._contexts.append(int(context[place]))

    def contexts(self) -> dict[int, int]:
        """Forward -> the context it began with, in order."""
        return dict(zip(self._numbers, self._contexts, strict=True))
