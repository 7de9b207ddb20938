"""Measured cells: what every part of the analysis works on, however the evidence came in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrate.analysis.cost_terms import Facts, Features

__all__ = ["Candidate", "Execution", "MeasuredCell", "Production", "family_of", "is_held_out", "spread_pct"]


@dataclass(frozen=True, slots=True)
class Execution:
    """What the cell ran on and what the table may be used for: nothing else has been measured.

    `fingerprint` is the digest of the software and hardware that ran; two of them are two experiments.
    """

    device: str
    dtype: str
    hidden: int
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout measured in a cell.

    `median_ms` is the median over `rounds` rounds of max-rank forward plus backward time, `spread_pct` is
    (max - min) / median x 100 over them, `samples_ms` the rounds themselves in their order where they are known.
    """

    label: str
    features: Features
    median_ms: float
    rounds: int
    spread_pct: float
    samples_ms: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Production:
    """`automatic`, measured like a candidate: the layout that production picked, and the rule that picked it."""

    label: str
    rule: str
    median_ms: float
    rounds: int


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """A cell with its candidates in label order, which is the order that decides between equals."""

    key: str
    facts: Facts
    candidates: tuple[Candidate, ...]
    execution: Execution | None = None
    production: Production | None = None
    run_id: str | None = None
    schedule: str = "fixed"

    @property
    def workload(self) -> str:
        """The first part of the key."""
        return self.key.split("|", 1)[0]

    @property
    def model(self) -> str:
        """The model and its layers, as the key has them."""
        parts = self.key.split("|")
        return f"{parts[1]}|{parts[2]}"

    @property
    def shape(self) -> str:
        """The parallel shape, such as `tp1 cp4`."""
        return f"tp{self.facts.tp} cp{self.facts.cp}"

    @property
    def family(self) -> str:
        """The kind of workload: `grpo`, `hetero`, `ellavox`, ..."""
        return family_of(self.workload)


def family_of(workload: str) -> str:
    """`workload` without its `cal-` prefix, its variant and its number.

    >>> [family_of(name) for name in ("cal-grpo-g8-long", "cal-hetero2", "cal-ellavox")]
    ['grpo', 'hetero', 'ellavox']
    """
    return re.sub(r"(?<=[a-z])[0-9]+$", "", workload.removeprefix("cal-").split("-", 1)[0])


def is_held_out(key: str, holdout: Iterable[str]) -> bool:
    """Whether a cell is kept out of the fit.

    Registered beforehand: corpus cells with an odd group (only corpus cells have one). On top of them, every key that
    contains one of `holdout` as a plain substring.
    """
    group = re.search(r"\|g([0-9]+)$", key)
    return (group is not None and int(group[1]) % 2 == 1) or any(text in key for text in holdout)


def spread_pct(samples_ms: Iterable[float], median_ms: float) -> float:
    """(max - min) / median x 100."""
    samples = tuple(samples_ms)
    return (max(samples) - min(samples)) / median_ms * 100
