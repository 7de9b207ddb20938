"""Reduced cells: one JSON line per cell, each candidate already a median, a count and a spread.

`{"cell": KEY, "facts": {"cp", "tp", "layers", "gdn_layers", ...}, "workload": {...}, "candidates": [[label, max_depth,
packed_tokens, segment_count, segments_below[8], median_ms, n, spread_pct], ...]}`
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrate.analysis.cost_terms import SEGMENT_BOUNDS, Facts, Features
from orchestrate.analysis.gaps import Gap
from orchestrate.analysis.measured import Candidate, Execution, MeasuredCell
from orchestrate.errors import ReceiptError
from orchestrate.receipts.canonical import parse_strict

__all__ = [
    "InputCell",
    "InvalidFieldError",
    "canonical_key",
    "key_parts",
    "parse_candidates",
    "parse_facts",
    "read_reduced_cells",
]

_KEY = re.compile(
    r"(?P<workload>[!-{}~]{1,200})\|(?P<model>[!-{}~]{1,200})\|L(?P<layers>[1-9][0-9]{0,5})\|tp(?P<tp>[1-9][0-9]{0,5})"
    r"\|cp(?P<cp>[1-9][0-9]{0,5})(?:\|ep(?P<ep>[1-9][0-9]{0,5}))?(?:\|g(?P<group>0|[1-9][0-9]{0,5}))?"
)
_MAX_COUNT = 2**40
"""Far above any token count, and small enough that no product of counts loses a digit as a double."""

_LONGEST_LABEL = 200

_SHORTEST_MS, _LONGEST_MS, _WIDEST_PCT = 1e-6, 1e9, 1e6
"""A nanosecond and eleven days: beyond them sums and quotients would leave the range of a double."""


@dataclass(frozen=True, slots=True)
class InputCell:
    """A measured cell and the place that it was read from."""

    cell: MeasuredCell
    place: str


class InvalidFieldError(ValueError):
    """A field of a row does not hold what it must."""


def read_reduced_cells(data: bytes, name: str, execution: Execution | None) -> tuple[list[InputCell], list[Gap]]:
    """The cells of a file, in its order, and whatever is wrong with it. `name` stands for the file in gaps.

    `execution` is what the person who asks says of where the cells were measured: the format has no word for it.
    """
    cells: list[InputCell] = []
    gaps: list[Gap] = []
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        gaps.append(Gap(name, "holds no cell", damaged=True))
    for number, line in enumerate(lines, start=1):
        place = f"{name}:{number}"
        try:
            value = parse_strict(line, what=place)
            key, facts = _header(value)
        except ReceiptError as error:
            gaps.append(Gap(place, error.cause.removeprefix(place).strip(), damaged=True))
            continue
        except InvalidFieldError as error:
            gaps.append(Gap(place, str(error), damaged=True))
            continue
        candidates, wrong = parse_candidates(value["candidates"])
        gaps.extend(Gap(f"{place} {key}", what, damaged=True) for what in wrong)
        if not wrong:
            cells.append(InputCell(MeasuredCell(key, facts, candidates, execution), place))
    return cells, gaps


def key_parts(key: object) -> dict[str, str | None]:
    """The parts of a cell key.

    Raises:
        InvalidFieldError: it is not a cell key, or asks for expert parallelism, which no term knows.
    """
    match = _KEY.fullmatch(key) if isinstance(key, str) else None
    if match is None:
        raise InvalidFieldError(f"not a cell key: {str(key)[:120]!r}")
    if match["ep"] not in {None, "1"}:
        raise InvalidFieldError(f"{key} has EP {match['ep']}: EP above 1 is refused")
    return match.groupdict()


def canonical_key(key: str) -> str:
    """`key`, which is one, without `|ep1`: that says nothing, and a cell must not be there under two names.

    >>> canonical_key("cal-text|tiny-hybrid|L4|tp1|cp4|ep1|g0")
    'cal-text|tiny-hybrid|L4|tp1|cp4|g0'
    """
    return re.sub(r"\|ep1(?=\||$)", "", key)


def parse_facts(value: object, key: str) -> Facts:
    """The facts of a cell, which are whole numbers however they are written, and agree with its key.

    Raises:
        InvalidFieldError: they do not.
    """
    if not isinstance(value, dict):
        raise InvalidFieldError("has no facts")
    tp, cp, layers = (_whole(value, name, least=1) for name in ("tp", "cp", "layers"))
    gdn_layers = _whole(value, "gdn_layers", least=0)
    if gdn_layers > layers:
        raise InvalidFieldError(f"has {gdn_layers} gated delta net layers of {layers}")
    parts = key_parts(key)
    for name, fact in (("tp", tp), ("cp", cp), ("layers", layers)):
        if parts[name] != str(fact):
            raise InvalidFieldError(f"the facts say {name} {fact}, the key {key} says {parts[name]}")
    return Facts(tp, cp, layers, gdn_layers)


def parse_candidates(rows: object) -> tuple[tuple[Candidate, ...], list[str]]:
    """The candidates in label order, and everything that is wrong with them."""
    if not isinstance(rows, list) or not rows:
        return (), ["has no candidates"]
    wrong: list[str] = []
    found: dict[str, Candidate] = {}
    for index, row in enumerate(rows):
        try:
            candidate = _candidate(row)
        except InvalidFieldError as error:
            wrong.append(f"candidate {index + 1}: {error}")
            continue
        if candidate.label in found:
            wrong.append(f"candidate {index + 1}: {candidate.label!r} is there twice")
        found[candidate.label] = candidate
    return tuple(found[label] for label in sorted(found)), wrong


def _header(value: Any) -> tuple[str, Facts]:
    if not isinstance(value, dict):
        raise InvalidFieldError("is not a JSON object")
    for name in ("cell", "facts", "candidates"):
        if name not in value:
            raise InvalidFieldError(f"has no {name!r}")
    key = value["cell"]
    parts = key_parts(key)
    facts = parse_facts(value["facts"], key)
    workload = value.get("workload")
    group = workload.get("group") if isinstance(workload, dict) else None
    if group is not None and str(group) != parts["group"]:
        raise InvalidFieldError(f"the workload says group {group}, the key {key} says {parts['group']}")
    return canonical_key(key), facts


def _candidate(row: object) -> Candidate:
    if not isinstance(row, list) or len(row) != 8:
        raise InvalidFieldError("is not a list of label, depth, tokens, segments, histogram, median, rounds and spread")
    label, depth, packed, segments, below, median, rounds, spread = row
    if not isinstance(label, str) or not label:
        raise InvalidFieldError("has no label")
    if len(label) > _LONGEST_LABEL or not label.isprintable():
        raise InvalidFieldError(f"{label[:40]!r} is no label: at most {_LONGEST_LABEL} printable characters")
    numbers = {"max_depth": depth, "packed_tokens": packed, "segment_count": segments, "rounds": rounds}
    max_depth, packed_tokens, segment_count, count = (_whole(numbers, name, least=1) for name in numbers)
    histogram = tuple(_whole({"bound": each}, "bound", least=0) for each in _histogram(below, label))
    if list(histogram) != sorted(histogram) or histogram[-1] > segment_count:
        raise InvalidFieldError(
            f"{label!r} has a histogram that is not a running count of its {segment_count} segments"
        )
    median_ms, spread_pct = _number(median, f"{label!r}: median_ms"), _number(spread, f"{label!r}: spread_pct")
    if median_ms <= 0:
        raise InvalidFieldError(f"{label!r}: median_ms is {median_ms}, a time is above zero")
    if not _SHORTEST_MS <= median_ms <= _LONGEST_MS or spread_pct > _WIDEST_PCT:
        raise InvalidFieldError(f"{label!r}: median_ms is {median_ms}, spread_pct {spread_pct}: no such measurement")
    if spread_pct < 0:
        raise InvalidFieldError(f"{label!r}: spread_pct is {spread_pct}, a spread is not negative")
    return Candidate(label, Features(packed_tokens, segment_count, max_depth, histogram), median_ms, count, spread_pct)


def _histogram(value: object, label: str) -> Iterator[object]:
    if not isinstance(value, list) or len(value) != len(SEGMENT_BOUNDS):
        raise InvalidFieldError(f"{label!r} does not count segments below {len(SEGMENT_BOUNDS)} bounds")
    return iter(value)


def _whole(values: dict[str, Any], name: str, *, least: int) -> int:
    number = _number(values.get(name), name)
    if number != int(number) or not least <= number <= _MAX_COUNT:
        raise InvalidFieldError(f"{name} is {values.get(name)}, must be a whole number of at least {least}")
    return int(number)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidFieldError(f"{name} is {str(value)[:40]!r}, must be a number")
    return float(value)
