"""What is wrong with evidence: each gap is named, all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrate.errors import EvidenceDamagedError, NotEnoughEvidenceError

__all__ = ["Gap", "refuse"]


@dataclass(frozen=True, slots=True)
class Gap:
    """One thing that is wrong. `place` is a file and line, a cell key or an option.

    `damaged` tells input that can not be read from input that says too little.
    """

    place: str
    what: str
    damaged: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


def refuse(gaps: Iterable[Gap]) -> None:
    """Raise if there is any gap: as damaged input if one of them is damage, as not enough evidence otherwise."""
    found = list(gaps)
    if not found:
        return
    names = tuple(str(gap) for gap in found)
    listed = "; ".join(names)
    if any(gap.damaged for gap in found):
        raise EvidenceDamagedError(
            f"the input is damaged or wrong: {listed}",
            remedy="fetch the named files again from where they were made, or correct the named options",
            gaps=names,
        )
    raise NotEnoughEvidenceError(
        f"not enough evidence: {listed}",
        remedy="measure what is missing, leave out what the manifest excludes with --exclude, or widen --holdout",
        gaps=names,
    )
