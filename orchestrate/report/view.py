"""What the report page shows, taken out of a record. Every fact may be missing or of another type than it should be."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrate.qualify.judgement import GroupJudgement
from orchestrate.qualify.overview import GroupRow, group_row
from orchestrate.receipts.completeness import CellJudgement
from orchestrate.receipts.judgement import census_gaps
from orchestrate.receipts.record import RunRecord
from orchestrate.receipts.reviews import own_reason, review_of
from orchestrate.receipts.statement import Receipt, Stage
from orchestrate.receipts.verify import Verification
from orchestrate.report.admission import Account, ReleaseRow, account, release_rows
from orchestrate.report.console import count_words
from orchestrate.report.environment import environment
from orchestrate.report.plots import Plot, Span, TimeLine, candidate_plot, time_line
from orchestrate.report.words import byte_size, duration, text_of
from orchestrate.verdict import Verdict

__all__ = ["CellView", "FeatureRow", "GroupView", "Look", "View", "make_view"]

MAX_TESTS = 2000
"""Of one group on the page; all of them are in its report."""

BELOW = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""The upper ends, in tokens, of the buckets of `segments_below` (DESIGN section 10)."""


@dataclass(frozen=True, slots=True)
class FeatureRow:
    """A candidate's layout in numbers; None where the evidence has no number."""

    label: str
    packed_tokens: int | None
    segment_count: int | None
    max_depth: int | None
    below: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class CellView:
    """One expected cell: the judgement, the node's word, plot and features of its candidates, memory admission."""

    judgement: CellJudgement
    status: str
    reason: str
    automatic: str
    facts: tuple[tuple[str, str], ...]
    plot: Plot | None
    features: tuple[FeatureRow, ...]
    account: Account | None
    releases: tuple[ReleaseRow, ...]


@dataclass(frozen=True, slots=True)
class GroupView:
    """One command group: its row, its counts, time and memory in words, and every test that did not just pass."""

    row: GroupRow
    counts: str
    took: str
    peak: str
    command: str
    tests: tuple[tuple[str, str, str], ...]
    more_tests: int


@dataclass(frozen=True, slots=True)
class Look:
    """One look of the census: when, each question with its answer, and what it found."""

    at: str
    asked: tuple[tuple[str, str], ...]
    remaining: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the template shows.

    `headline`, `tone` (a verdict's label, for the colour) and `meaning` are the banner; a run whose receipts do not
    hold never shows the verdict that it claims as its own. `changed` says what the tree had beyond the commit, empty
    where it was clean. `teardown` is `proven`, `not needed` or `not proven`.
    """

    record: RunRecord
    found: Verification
    headline: str
    tone: str
    meaning: str
    reason: str
    sentences: tuple[str, ...]
    line: TimeLine
    cells: tuple[CellView, ...]
    steps: tuple[tuple[str, ...], ...]
    decided_because: str
    census_path: str
    looks: tuple[Look, ...]
    teardown: str
    live: bool
    closures: tuple[Receipt, ...]
    environment: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    exclusions: tuple[tuple[str, str], ...]
    changed: str
    groups: tuple[GroupView, ...] = ()


def make_view(record: RunRecord, found: Verification, *, live: bool) -> View:
    """Arrange `record`, verified as `found`, for the page; `live` says that the run has a living owner."""
    stages = record.stages
    teardown, census = stages.get(Stage.TEARDOWN, {}), stages.get(Stage.CENSUS, {})
    words = _node_words(record)
    looks = tuple(_look(look) for look in _objects(census.get("looks")))
    gone = _teardown(record, found)
    headline, tone, meaning = _banner(record, found, live=live)
    dirty = _object(record.plan.get("source")).get("dirty")
    return View(
        record=record,
        found=found,
        headline=headline,
        tone=tone,
        meaning=meaning,
        reason=text_of(own_reason(record.receipts)),
        sentences=tuple(_sentences(record, found, gone, live=live)),
        line=time_line(_spans(record, words)),
        cells=tuple(_cell(cell, words.get(cell.key, {})) for cell in record.cells),
        steps=tuple(
            tuple(text_of(step.get(name)) for name in ("step", "target", "outcome", "detail", "at"))
            for step in _objects(teardown.get("steps"))
        ),
        decided_because=text_of(teardown.get("decided_because")),
        census_path=text_of(census.get("path")),
        looks=looks,
        teardown=gone,
        live=live and record.closure is None,
        closures=record.closures,
        environment=tuple(environment(record)),
        exclusions=tuple(
            (text_of(item.get("key")), text_of(item.get("reason"))) for item in _objects(record.plan.get("exclusions"))
        ),
        groups=tuple(map(_group, record.groups.judgements)) if record.groups else (),
        changed="" if dirty is False else "with changes not committed" if dirty is True else "and perhaps changes",
    )


def _banner(record: RunRecord, found: Verification, *, live: bool) -> tuple[str, str, str]:
    verdict = found.verdict
    if live and record.closure is None:
        return "running", Verdict.CANCELLED.label, "The run is still going on: this is what it has so far."
    meaning = found.meaning
    if record.groups and meaning == verdict.meaning:
        meaning = verdict.meaning_for_groups
    meaning = text_of(f"{meaning[:1].upper()}{meaning[1:]}".rstrip(".")) + "."
    if found.holds or record.closure is None:
        return verdict.label, verdict.label, meaning
    return "does not hold", Verdict.FAILED.label, meaning


def _teardown(record: RunRecord, found: Verification) -> str:
    census = record.stages.get(Stage.CENSUS)
    if not found.holds:
        return "not proven"
    if census is not None:
        return "not proven" if census_gaps(census) else "proven"
    return "not proven" if Stage.ACQUIRE in record.stages else "not needed"


def _sentences(record: RunRecord, found: Verification, teardown: str, *, live: bool) -> list[str]:
    """The result in words, for somebody who reads nothing else."""
    complete, expected = sum(cell.complete for cell in record.cells), len(record.cells)
    said = [
        f"{complete} of {expected} expected groups passed by their own reports."
        if record.groups
        else f"{complete} of {expected} expected cells are complete by their own measurements."
    ]
    run = record.stages.get(Stage.RUN)
    what = "groups" if record.groups else "cells"
    if run is None and not live:
        of = "in its newest attempt" if record.evidence else "at all"
        said.append(f"No receipt says that any of its {what} was started {of}.")
    if record.closure is None:
        if not live:
            said.append("The run was not closed: nobody has stated what became of it, so it counts as incomplete.")
    elif teardown == "proven":
        said.append("Everything that the run had was given back, and two separate looks found nothing left.")
    elif teardown == "not needed":
        said.append("Nothing was acquired, so there was nothing to give back.")
    elif found.holds:
        said.append("Something of the run may still exist: look at the teardown below, then run `orchestrate audit`.")
    if found.device == "cpu":
        said.append("It ran on a CPU: these times say nothing about a GPU.")
    if found.test_verdict is not found.verdict and (run is not None or record.evidence):
        said.append(f"The {what} themselves said: {found.test_verdict}.")
    return said


def _spans(record: RunRecord, words: Mapping[str, Mapping[str, Any]]) -> list[Span]:
    newest = {receipt.stage: receipt for receipt in record.receipts if review_of(receipt) is None}
    spans = []
    for stage in Stage:
        receipt = newest.get(stage)
        if receipt is None:
            spans.append(Span(stage.value, None, None, "missing"))
            continue
        state = "failed" if stage is Stage.RUN and receipt.facts.get("exit_code") != 0 else "done"
        spans.append(Span(stage.value, receipt.started_at, receipt.ended_at, state))
        if stage is Stage.RUN:
            spans.extend(_cell_spans(record, words))
    return spans


def _cell_spans(record: RunRecord, words: Mapping[str, Mapping[str, Any]]) -> list[Span]:
    spans = []
    for cell in record.cells:
        word = words.get(cell.key, {})
        start, end = _time(word.get("started_at")), _time(word.get("ended_at"))
        if start is not None and end is not None:
            spans.append(Span(cell.key, start, end, "done" if cell.complete else "failed", inner=True))
    return spans


def _cell(judgement: CellJudgement, word: Mapping[str, Any]) -> CellView:
    header = judgement.header
    workload, model, shape, device = (_object(header.get(name)) for name in ("workload", "model", "shape", "device"))
    facts = (
        ("rows of tokens", f"{text_of(workload.get('rows'))} ({text_of(workload.get('tokens'))} tokens unshared)"),
        ("model", text_of(model.get("name"))),
        ("layers", f"{text_of(model.get('layers'))}, of which {text_of(model.get('gdn_layers'))} delta net"),
        ("ranks", f"{text_of(shape.get('world'))} (TP {text_of(shape.get('tp'))}, CP {text_of(shape.get('cp'))})"),
        ("device", f"{text_of(device.get('kind'))}: {text_of(device.get('name'))}"),
        ("precision", text_of(header.get("dtype"))),
        ("rounds", text_of(header.get("repeat"))),
        ("automatic follows", text_of(_object(header.get("automatic")).get("rule"))),
    )
    return CellView(
        judgement=judgement,
        status=text_of(word.get("status")) or ("complete" if judgement.complete else "no word from the node"),
        reason=text_of(word.get("reason")),
        automatic=text_of(_object(header.get("automatic")).get("label")),
        facts=facts if header else (),
        plot=candidate_plot(judgement.measured),
        features=tuple(_features(item) for item in _objects(header.get("candidates"))),
        account=account(judgement.ledger),
        releases=release_rows(judgement.releases),
    )


def _group(judgement: GroupJudgement) -> GroupView:
    row, command = group_row(judgement), judgement.record.get("command")
    told = (
        ("not collected", row.counts.collection_errors),
        ("failed", row.counts.failed),
        ("error", row.counts.errors),
        ("skipped", row.counts.skipped),
        ("retried", row.counts.retried),
        ("xpassed", row.counts.xpassed),
        ("xfailed", row.counts.xfailed),
    )
    tests = tuple((what, text_of(test.test), text_of(test.reason)) for what, named in told for test in named)
    return GroupView(
        row=row,
        counts=count_words(row),
        took="" if row.wall_s is None else duration(row.wall_s),
        peak="" if row.peak_rss_bytes is None else byte_size(row.peak_rss_bytes),
        command=text_of(shlex.join(map(str, command[:200]))) if isinstance(command, list) else "",
        tests=tests[:MAX_TESTS],
        more_tests=max(0, len(tests) - MAX_TESTS),
    )


def _features(item: Mapping[str, Any]) -> FeatureRow:
    features = _object(item.get("features"))
    below = features.get("segments_below")
    counts = below if isinstance(below, list) else []
    return FeatureRow(
        label=text_of(item.get("label")),
        packed_tokens=_integer(features.get("packed_tokens")),
        segment_count=_integer(features.get("segment_count")),
        max_depth=_integer(features.get("max_depth")),
        below=tuple(_integer(counts[index]) if index < len(counts) else None for index in range(len(BELOW))),
    )


def _look(look: Mapping[str, Any]) -> Look:
    return Look(
        at=text_of(look.get("at")),
        asked=tuple((text_of(item.get("what")), text_of(item.get("answer"))) for item in _objects(look.get("asked"))),
        remaining=tuple(_named(item) for item in _list(look.get("remaining"))),
        unknown=tuple(_named(item) for item in _list(look.get("unknown"))),
    )


def _named(item: object) -> str:
    if isinstance(item, dict):
        return " ".join(text_of(value) for value in (item.get("kind"), item.get("id")) if value is not None)
    return text_of(item)


def _node_words(record: RunRecord) -> dict[str, Mapping[str, Any]]:
    """What the node said about each cell: its own account, else the run receipt's."""
    words: dict[str, Mapping[str, Any]] = {}
    for source in (record.stages.get(Stage.RUN, {}), record.node):
        for cell in _objects(source.get("cells")):
            if isinstance(cell.get("key"), str):
                words[cell["key"]] = {**words.get(cell["key"], {}), **cell}
    return words


def _time(value: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]
