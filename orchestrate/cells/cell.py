"""One cell: a workload x model x layers x parallel shape, and the key that writes it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from orchestrate.errors import UsageError

__all__ = ["Cell", "canonical_key", "parse_key", "slug"]

_NUMBER = r"[1-9][0-9]{0,5}"
_KEY = re.compile(
    r"(?P<workload>[a-z0-9][a-z0-9-]*)\|(?P<model>[A-Za-z0-9][A-Za-z0-9._/-]*)"
    rf"\|L(?P<layers>{_NUMBER})\|tp(?P<tp>{_NUMBER})\|cp(?P<cp>{_NUMBER})"
    rf"(?:\|ep(?P<ep>{_NUMBER}))?(?:\|g(?P<group>0|{_NUMBER}))?"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell key says; `group` is None but for a corpus cell."""

    key: str
    workload: str
    model: str
    layers: int
    tp: int
    cp: int
    ep: int
    group: int | None

    @property
    def gpus(self) -> int:
        """GPUs, or ranks on a CPU, that the cell takes."""
        return self.tp * self.cp

    @property
    def slug(self) -> str:
        """The cell's folder name in the evidence."""
        return slug(self.key)


def parse_key(key: str) -> Cell:
    """The cell that `key` names: `workload|model|L<layers>|tp<T>|cp<C>[|ep<E>][|g<G>]`.

    Raises:
        UsageError: `key` is not of that form, or asks for expert parallelism.

    >>> parse_key("cal-grpo-g8|Qwen/Qwen3.5-4B|L32|tp2|cp1").gpus
    2
    """
    match = _KEY.fullmatch(key)
    if match is None:
        raise UsageError(
            f"not a cell key: {key!r}",
            remedy="write workload|model|L<layers>|tp<T>|cp<C>, then |g<group> for a corpus cell",
        )
    ep = int(match["ep"] or 1)
    if ep > 1:
        raise UsageError(f"cell {key!r} asks for EP {ep}", remedy="use a shape without expert parallelism (EP 1)")
    group = None if match["group"] is None else int(match["group"])
    numbers = (int(match["layers"]), int(match["tp"]), int(match["cp"]))
    return Cell(key, match["workload"], match["model"], *numbers, ep, group)


def canonical_key(cell: Cell) -> str:
    """How sets and published lists write the key of `cell`: without `ep1`, which says nothing.

    >>> canonical_key(parse_key("cal-text|tiny-hybrid|L4|tp1|cp4|ep1|g0"))
    'cal-text|tiny-hybrid|L4|tp1|cp4|g0'
    """
    group = "" if cell.group is None else f"|g{cell.group}"
    return f"{cell.workload}|{cell.model}|L{cell.layers}|tp{cell.tp}|cp{cell.cp}{group}"


def slug(key: str) -> str:
    """`key` as a file name: anything unusual replaced, and eight digits of its SHA-256 so that no two keys meet."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", key) + "-" + hashlib.sha256(key.encode()).hexdigest()[:8]
