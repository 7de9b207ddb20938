"""The fit: measured cells in, an integer cost table out, the same on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrate.analysis.cost_terms import TERMS
from orchestrate.analysis.least_squares import starting_point
from orchestrate.analysis.measured import MeasuredCell
from orchestrate.analysis.search import Search, coordinate_search
from orchestrate.analysis.selection import SelectionLoss
from orchestrate.errors import EvidenceDamagedError
from orchestrate.receipts.canonical import MAX_SAFE_INTEGER

__all__ = ["Fit", "fit_table", "rounded", "table_sha256"]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted table in thousandths of a us per feature unit, with the unrounded start and end of its search."""

    table: Mapping[str, int]
    start: tuple[float, ...]
    search: Search

    @property
    def sha256(self) -> str:
        """The digest that names the table."""
        return table_sha256(self.table)


def fit_table(cells: Sequence[MeasuredCell]) -> Fit:
    """Fit the terms to training `cells`, in their order: least squares, then the search, rounded once at the end."""
    start = starting_point(cells)
    search = coordinate_search(SelectionLoss(cells), start)
    return Fit(rounded(search.coefficients), start, search)


def rounded(coefficients: Sequence[float]) -> dict[str, int]:
    """Coefficients in us as integers in thousandths of a us, half to even.

    Raises:
        EvidenceDamagedError: one is beyond what every reader of a table keeps exact, as no measured time makes it.
    """
    table = {term: round(value * 1000) for term, value in zip(TERMS, coefficients, strict=True)}
    beyond = [
        f"the fit: {term} is {value}, beyond {MAX_SAFE_INTEGER}"
        for term, value in table.items()
        if value > MAX_SAFE_INTEGER
    ]
    if beyond:
        raise EvidenceDamagedError(
            f"these cells make no cost table: {'; '.join(beyond)}",
            remedy="look for times in another unit than milliseconds, or for layouts of a few tokens",
            gaps=tuple(beyond),
        )
    return table


def table_sha256(table: Mapping[str, int]) -> str:
    """SHA-256 of the table as `json.dumps(table, sort_keys=True)`, the form in which tables are published."""
    return hashlib.sha256(json.dumps(dict(table), sort_keys=True).encode()).hexdigest()
