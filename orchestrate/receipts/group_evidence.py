"""The evidence of command groups: judged again from the reports that came home, as cells are from their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrate.errors import ReceiptError
from orchestrate.qualify.group_file import Report
from orchestrate.qualify.judgement import GroupJudgement, judge_groups, verdict_of
from orchestrate.receipts.canonical import parse_strict
from orchestrate.receipts.completeness import CellJudgement
from orchestrate.verdict import Verdict

__all__ = ["MAX_REPORT_BYTES", "Groups", "expected_groups", "read_groups"]

MAX_REPORT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Groups:
    """The judged groups, and what is wrong with the source that they ran on (nothing where it was the planned one).

    `changed` says that the node saw that source change.
    """

    judgements: tuple[GroupJudgement, ...]
    source_gaps: tuple[str, ...]
    changed: bool = False

    @property
    def verdict(self) -> Verdict:
        """What the groups amount to together."""
        return verdict_of([*(judgement.verdict for judgement in self.judgements), *self._of_source])

    @property
    def causes(self) -> tuple[tuple[Verdict, str], ...]:
        """Each verdict that keeps the whole from passing, with why; what is to be said of the source comes last."""
        open_groups = [each for each in self.judgements if each.verdict is not Verdict.PASSED]
        told = [(each.verdict, f"{each.name}: {each.verdict}: {each.reason}") for each in open_groups]
        return (*told, *((self._of_source[0], gap) for gap in self.source_gaps))

    @property
    def _of_source(self) -> tuple[Verdict, ...]:
        return (Verdict.FAILED if self.changed else Verdict.INCOMPLETE,) if self.source_gaps else ()

    def as_cells(self) -> tuple[CellJudgement, ...]:
        """Each group as a cell: complete only if it passed, on exactly the planned source."""
        return tuple(self._as_cell(judgement) for judgement in self.judgements)

    def _as_cell(self, judgement: GroupJudgement) -> CellJudgement:
        missing = [] if judgement.verdict is Verdict.PASSED else [f"{judgement.verdict}: {judgement.reason}"]
        missing += self.source_gaps
        counts = judgement.counts
        return CellJudgement(
            key=judgement.name,
            complete=not missing,
            rows=0 if counts is None else counts.passed,
            missing=tuple(missing),
            outcome=judgement.verdict.label,
        )


def expected_groups(plan: Mapping[str, Any]) -> tuple[tuple[str, Report], ...]:
    """The groups of a plan, in order; `ReceiptError` where it does not name them, each once."""
    told = plan.get("qualification")
    rows = told.get("groups") if isinstance(told, dict) else None
    try:
        groups = tuple((str(row["name"]), Report(row["report"])) for row in rows or ())
    except (KeyError, TypeError, ValueError) as error:
        raise ReceiptError("the plan's groups are not groups", remedy="make a new run") from error
    names = [name for name, _ in groups]
    if not names or len(set(names)) != len(names) or names != plan.get("cells"):
        raise ReceiptError("the plan does not list its groups, each once", remedy="make a new run")
    return groups


def read_groups(plan: Mapping[str, Any], node: Mapping[str, Any], read: Callable[[str], bytes | None]) -> Groups:
    """Judge the groups of a plan. `read` gives an evidence file by its path below the evidence, None for none."""
    expected = expected_groups(plan)
    names = ["packages.json"]
    names += [f"groups/{name}/{file}" for name, _ in expected for file in ("tests.jsonl", "junit.xml")]
    files = {name: data for name in names if (data := read(name)) is not None}
    return Groups(
        judge_groups(expected, node, files),
        tuple(_source_gaps(plan, node, read("sources.json"))),
        changed=bool(_object(node.get("qualified")).get("changed")),
    )


def _source_gaps(plan: Mapping[str, Any], node: Mapping[str, Any], sources: bytes | None) -> list[str]:
    planned, ran = _object(plan.get("qualified")), _object(node.get("qualified"))
    if not ran:
        return ["the node does not say which source it ran"]
    gaps = []
    if ran.get("archive_sha256") != planned.get("archive_sha256"):
        gaps.append("the node ran another archive than the planned one")
    if ran.get("changed") != []:
        changed = ran.get("changed")
        first = ", ".join(map(str, changed[:3])) if isinstance(changed, list) else repr(changed)
        gaps.append(f"source files changed while the groups ran: {first}")
    try:
        seen = None if sources is None else parse_strict(sources, what="sources.json")
    except ReceiptError:
        seen = None
    if seen != planned.get("files"):
        gaps.append("the files that the node unpacked are not those of the commit")
    return gaps


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
