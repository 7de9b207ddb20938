"""The part of a run's page that shows where its ranks parted: a time line, and the records side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment

from orchestrate.cells.cell import slug
from orchestrate.errors import OrchestrateError
from orchestrate.receipts.attempts import evidence_folder
from orchestrate.receipts.record import RunRecord

__all__ = ["divergence_section"]

_COLOURS = 8
_MOST_SPLITS = 16


@dataclass(frozen=True, slots=True)
class Mark:
    """One record in the picture: left edge and width in percent, its colour's number, and what it is."""

    left: float
    width: float
    colour: int
    stuck: bool
    here: bool
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank's records."""

    rank: int
    word: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One cell whose ranks parted: the sentences, the picture, the facts of two records, the layouts."""

    cell: str
    summary: str
    sentences: tuple[str, ...]
    lanes: tuple[Lane, ...]
    legend: tuple[tuple[int, str], ...]
    columns: tuple[str, ...]
    facts: tuple[tuple[str, tuple[str, ...]], ...]
    ranks: tuple[int, ...]
    layouts: tuple[tuple[int, tuple[str, ...]], ...]
    undecided: tuple[str, ...]


def divergence_section(record: RunRecord, environment: Environment) -> tuple[str, str]:
    """The part as HTML, and its style rules; both empty where no traces of the run part and no cell hung."""
    parts = list(_parts(record))
    if not parts:
        return "", ""
    page = environment.get_template("divergence_part.html").render(parts=parts)
    return page, environment.get_template("divergence.css").render()


def _parts(record: RunRecord) -> Iterator[Part]:
    hung = {cell.get("key") for cell in _cells(record) if cell.get("status") == "hung"}
    for judgement in record.cells:
        attempt = record.counted.get(judgement.key)
        folder = _newest_trace(record, judgement.key) if attempt is None else _trace(record, attempt, judgement.key)
        if folder is None or not folder.is_dir():
            continue
        try:
            part = _part(judgement.key, folder, hung=judgement.key in hung)
        except (OrchestrateError, OSError, ValueError, MemoryError) as error:
            if judgement.key not in hung:
                continue
            part = _untold(judgement.key, f"its traces can not be compared: {error}")
        if part is not None:
            yield part


def _cells(record: RunRecord) -> Iterator[Mapping[str, Any]]:
    for node in record.nodes.values():
        cells = node.get("cells")
        yield from (cell for cell in cells if isinstance(cell, dict)) if isinstance(cells, list) else ()


def _trace(record: RunRecord, attempt: int, key: str) -> Path:
    return record.run_dir / evidence_folder(attempt) / "cells" / slug(key) / "trace"


def _newest_trace(record: RunRecord, key: str) -> Path | None:
    folders = [_trace(record, attempt, key) for attempt in reversed(record.evidence_attempts)]
    return next((folder for folder in folders if folder.is_dir()), None)


def _part(key: str, folder: Path, *, hung: bool) -> Part | None:
    # numpy is slow to import, and most pages need none of it
    from orchestrate.analysis.trace.answer import Decision, make_answer  # noqa: PLC0415
    from orchestrate.analysis.trace.compare import compare  # noqa: PLC0415
    from orchestrate.analysis.trace.folder import open_job  # noqa: PLC0415

    answer = make_answer(compare(open_job(folder)))
    if answer.decision is not Decision.DIVERGE and not hung:
        return None
    if not hung and answer.first is not None and _cut_short(answer):
        return None
    if answer.first is None:
        return _untold(key, answer.summary)
    lanes, legend = _picture(answer)
    columns, facts = _side_by_side(answer)
    ranks = tuple(sorted(answer.layouts[0].layouts)) if answer.layouts else ()
    return Part(
        cell=key,
        summary=answer.summary,
        sentences=answer.sentences(answer.first),
        lanes=lanes,
        legend=legend,
        columns=columns,
        facts=facts,
        ranks=ranks,
        layouts=tuple((row.forward, tuple(row.layouts[rank] or "-" for rank in ranks)) for row in answer.layouts),
        undecided=tuple(map(str, answer.undecided[:5])),
    )


def _cut_short(answer: Any) -> bool:
    """Whether there is no more to it than that the ranks were ended, as of every job that is stopped or fails."""
    ends = {trace.end.how.value for trace in answer.compared.job.traces.values()}
    return "open" in ends and answer.first.kind.value in {"missing-rank", "never-completed"}


def _untold(key: str, summary: str) -> Part:
    return Part(key, summary, (), (), (), (), (), (), (), ())


def _picture(answer: Any) -> tuple[tuple[Lane, ...], tuple[tuple[int, str], ...]]:
    """The lanes, on an axis on which every beginning and end of a record is one step: waits would hide all else."""
    from orchestrate.analysis.trace.around import around  # noqa: PLC0415

    job, finding = answer.compared.job, answer.first
    blocks = around(job, finding)
    times = {int(time) for block in blocks.values() for name in ("start", "end") for time in block[name]}
    edges = sorted(times - {0})
    step = {edge: place for place, edge in enumerate(edges)}
    width = 100 / (len(edges) or 1)
    colours: dict[str, int] = {}
    lanes = []
    for rank, block in blocks.items():
        marks = []
        here = finding.records.get(rank)
        for one in block:
            call = job.interned.calls[int(one["call"])]
            colour = colours.setdefault(call.op, len(colours) % _COLOURS)
            facts = answer.record_json(rank, one)
            stuck = not one["end"] or facts["state"] in {"pending", "waiting", "raised"}
            first = step.get(int(one["start"]), 0)
            last = len(edges) if not one["end"] else max(step[int(one["end"])], first + 1)
            title = f"{facts['words']}, #{facts['sequence']} of {facts['group']}, {facts['state']}"
            mine = here is not None and int(here["ref"]) == int(one["ref"])
            marks.append(Mark(first * width, (last - first) * width, colour, stuck, mine, title))
        lanes.append(Lane(rank, _word(answer, rank), tuple(marks)))
    return tuple(lanes), tuple((colour, op) for op, colour in colours.items())


def _word(answer: Any, rank: int) -> str:
    finding = answer.first
    if finding.odd and rank in finding.odd:
        return "odd"
    if rank in finding.records and finding.records[rank] is None:
        return "has none"
    return ""


def _side_by_side(answer: Any) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """Two records: one of the odd ranks and one of the others; where nobody is odd, the first two that differ."""
    finding = answer.first
    said = {} if finding.mismatch is None else finding.mismatch.said
    ranks = sorted(finding.records)
    odd = [rank for rank in ranks if finding.odd and rank in finding.odd]
    other = [rank for rank in ranks if rank not in odd]
    left = other[0] if other else ranks[0]
    right = odd[0] if odd else next((rank for rank in ranks if said.get(rank) != said.get(left)), ranks[-1])
    pair = [left] if left == right else [left, right]
    records = [_record(answer, rank) for rank in pair]
    rows = [(name, tuple("" if one is None else _shown(one[fact]) for one in records)) for name, fact in _FACTS]
    rows[0] = (rows[0][0], tuple(value or "no such record" for value in rows[0][1]))
    rows = [(name, values) for name, values in rows if any(values)]
    return tuple(f"rank {rank}{' (odd)' if rank in odd else ''}" for rank in pair), tuple(rows)


def _record(answer: Any, rank: int) -> Mapping[str, Any] | None:
    record = answer.first.records[rank]
    return None if record is None else answer.record_json(rank, record)


_FACTS = (
    ("call", "words"), ("number", "sequence"), ("site", "tag"), ("layout", "layout"), ("forward", "forward"),
    ("phase", "phase"), ("pass", "direction"), ("sends", "send_splits"), ("expects", "recv_splits"),
    ("state", "state"), ("callers", "callers"),
)  # fmt: skip


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Sequence) and not isinstance(value, str):
        shown = ", ".join(f"{one:,}" if isinstance(one, int) else str(one) for one in value[:_MOST_SPLITS])
        return f"{shown} and {len(value) - _MOST_SPLITS} more" if len(value) > _MOST_SPLITS else shown
    return f"{value:,}" if isinstance(value, int) else str(value)
