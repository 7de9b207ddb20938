"""Evidence rows of the harness: every measured round of a cell, reduced to what the fit needs.

A row counts when it measured a layout that was admitted, ran unsplit and was live, and nothing compiled on any rank.
A cell counts when every candidate, and `automatic`, has all its rounds; the judgement is the one that receipts make.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from typing import Any

from orchestrate.analysis.gaps import Gap
from orchestrate.analysis.measured import Candidate, Execution, MeasuredCell, Production, spread_pct
from orchestrate.analysis.reduced_cells import (
    InputCell,
    InvalidFieldError,
    canonical_key,
    parse_candidates,
    parse_facts,
)
from orchestrate.receipts.canonical import canonical_bytes, sha256_hex
from orchestrate.receipts.completeness import CellJudgement, Expected, judge_cell

__all__ = ["LEAST_ROUNDS", "read_evidence"]

LEAST_ROUNDS = 2
"""A median of fewer rounds says nothing about its own spread."""

MandatoryLabels = Callable[[str], tuple[str, ...] | None]


def read_evidence(
    data: bytes, name: str, mandatory: MandatoryLabels, *, racing: bool = False
) -> tuple[list[InputCell], list[Gap]]:
    """The cells of an evidence file (one, as the harness writes it, or several, one after the other) and its gaps.

    `mandatory` gives the labels that a cell must have measured, None where nobody outside the node can know them.
    `racing` expects the racing schedule: a candidate may have fewer rounds where the rule gives it fewer.
    """
    cells: list[InputCell] = []
    gaps: list[Gap] = []
    for first, lines in _cells_of(data):
        place = name if first == 1 else f"{name} from line {first}"
        header = _header(lines[0])
        if header is None:
            gaps.append(Gap(f"{name}:{first}", "is not the cell row that evidence begins with", damaged=True))
            continue
        key, run_id, repeat = header
        expected = Expected(key, run_id, repeat, mandatory(canonical_key(key)), racing=racing)
        judged = judge_cell(lines, expected)
        if judged.missing:
            gaps.extend(_named(what, name, first, key) for what in judged.missing)
            continue
        if repeat < LEAST_ROUNDS:
            gaps.append(Gap(f"{place} {key}", f"has {repeat} round, needs at least {LEAST_ROUNDS}"))
            continue
        try:
            cells.append(InputCell(_measured_cell(judged, "racing" if racing else "fixed"), place))
        except InvalidFieldError as error:
            gaps.append(Gap(f"{place} {key}", f"the cell row {error}", damaged=True))
    if not cells and not gaps:
        gaps.append(Gap(name, "holds no evidence", damaged=True))
    return cells, gaps


def _named(what: str, name: str, first: int, key: str) -> Gap:
    """A gap of a judgement, which counts lines from the cell's own first one, at its line of the file."""
    at = re.match(r"line ([0-9]+),? ?", what)
    if at is None:
        return Gap(f"{name} {key}", what)
    return Gap(f"{name}:{first - 1 + int(at[1])} {key}", what[at.end() :])


def _cells_of(data: bytes) -> list[tuple[int, list[bytes]]]:
    """The lines of each cell with the number of its first: every `cell` row begins one."""
    found: list[tuple[int, list[bytes]]] = []
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        if not found or b'"row":"cell"' in line or b'"row": "cell"' in line:
            found.append((number, []))
        found[-1][1].append(line)
    return found


def _header(line: bytes) -> tuple[str, str, int] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    match row:
        case {"row": "cell", "cell": str(key), "run_id": str(run_id), "repeat": int(repeat)} if repeat is not True:
            return key, run_id, repeat
        case _:
            return None


def _measured_cell(judged: CellJudgement, schedule: str) -> MeasuredCell:
    header = judged.header
    if not header.get("fingerprint"):
        raise InvalidFieldError("has no fingerprint")
    model, device = _object(header, "model"), _object(header, "device")
    shape = {**_object(header, "shape"), "layers": model.get("layers"), "gdn_layers": model.get("gdn_layers")}
    rounds = {
        (one.role, one.label): tuple(one.elapsed_ms[turn] for turn in sorted(one.elapsed_ms)) for one in judged.measured
    }
    rows = [_reduced(item, rounds["candidate", item["label"]]) for item in header["candidates"]]
    candidates, wrong = parse_candidates(rows)
    if wrong:
        raise InvalidFieldError(f"has {wrong[0]}")
    automatic = header["automatic"]
    picked = rounds["automatic", automatic["label"]]
    return MeasuredCell(
        key=canonical_key(judged.key),
        facts=parse_facts(shape, judged.key),
        candidates=tuple(_with_samples(each, rounds["candidate", each.label]) for each in candidates),
        execution=Execution(
            device=_text(device, "name"),
            dtype=_text(header, "dtype"),
            hidden=_positive(model, "hidden"),
            fingerprint=_fingerprint(header),
        ),
        production=Production(automatic["label"], _text(automatic, "rule"), statistics.median(picked), len(picked)),
        run_id=str(header["run_id"]),
        schedule=schedule,
    )


def _reduced(item: dict[str, Any], samples_ms: tuple[float, ...]) -> list[object]:
    """A candidate of the cell row in the order of a reduced cell, so that one parser judges both."""
    features = item.get("features")
    given = features if isinstance(features, dict) else {}
    counts = [given.get(name) for name in ("max_depth", "packed_tokens", "segment_count", "segments_below")]
    median_ms = statistics.median(samples_ms)
    return [item["label"], *counts, median_ms, len(samples_ms), spread_pct(samples_ms, median_ms)]


def _with_samples(candidate: Candidate, samples_ms: tuple[float, ...]) -> Candidate:
    return Candidate(
        candidate.label, candidate.features, candidate.median_ms, candidate.rounds, candidate.spread_pct, samples_ms
    )


def _fingerprint(header: dict[str, Any] | Any) -> str:
    """The digest of what executed, whether the row gives the digest or the facts; with the software beside it."""
    return sha256_hex(canonical_bytes([header.get("fingerprint"), header.get("torch"), header.get("device")]))


def _object(row: Any, name: str) -> dict[str, Any]:
    value = row.get(name)
    if not isinstance(value, dict):
        raise InvalidFieldError(f"has no {name}")
    return value


def _text(row: Any, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidFieldError(f"has no {name}")
    return value


def _positive(row: Any, name: str) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidFieldError(f"has no {name}")
    return value
