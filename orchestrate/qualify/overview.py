"""A group in one row, for people: what its tests did, what became of its processes, what it took.

The node's record is a stranger's: every member may be missing or of another type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrate.qualify.judgement import GroupJudgement
from orchestrate.qualify.test_counts import Named, TestCounts
from orchestrate.verdict import Verdict

__all__ = ["GroupRow", "beside_source", "by_reason", "first_files", "group_row", "groups_as_json"]

MAX_TEXTS = 2000
"""How many reasons and names of skipped tests a `--json` answer has, over all groups."""

_FILES_SHOWN, _REASONS_SHOWN, _NAMES_SHOWN, _TEXT = 5, 20, 10, 300
_NO_COUNTS = TestCounts()


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group.

    `has_tests` is False where its exit code is its report; then all of `counts` are empty. Of its process family,
    `tracked` were seen, `outlived` its command and were ended, `left` are those that could not be. `on_gpus` of it were
    on GPUs; `others_on_gpus` were too, by pids (in a container perhaps the host's) that are none of its own. `beside`
    are the first of the `beside_count` files that lay beside the source after it. None is not known.
    """

    name: str
    verdict: Verdict
    reason: str
    has_tests: bool
    counts: TestCounts
    wall_s: float | None
    peak_rss_bytes: int | None
    tracked: int | None
    outlived: tuple[str, ...]
    killed: int | None
    left: tuple[str, ...]
    on_gpus: int | None = None
    others_on_gpus: int | None = None
    beside: tuple[str, ...] = ()
    beside_count: int = 0

    @property
    def family(self) -> str:
        """Its processes, in a few words."""
        if self.tracked is None:
            return "none seen"
        words = [f"{self.tracked} seen"]
        words += [f"{len(self.outlived)} outlived it"] if self.outlived else []
        words += [f"{self.killed} ended"] if self.killed else []
        words += [f"{self.on_gpus} on GPUs"] if self.on_gpus is not None else []
        words += [f"{self.others_on_gpus} other pids on GPUs"] if self.others_on_gpus else []
        return ", ".join([*words, f"{len(self.left)} LEFT" if self.left else "none left"])


def group_row(judgement: GroupJudgement) -> GroupRow:
    """The row of a judged group."""
    record = judgement.record
    family, retired = _object(record.get("family")), _object(record.get("retired"))
    on_gpus = _own_and_others(_object(family.get("gpu_processes")))
    beside_count, beside = beside_source(record)
    return GroupRow(
        name=judgement.name,
        verdict=judgement.verdict,
        reason=judgement.reason,
        has_tests=judgement.counts is not None,
        counts=judgement.counts or _NO_COUNTS,
        wall_s=_number(record.get("wall_s")),
        peak_rss_bytes=_whole(family.get("peak_rss_bytes")),
        tracked=_whole(family.get("tracked")) if record.get("started_at") else None,
        outlived=_texts(retired.get("outlived")),
        killed=_whole(retired.get("killed")),
        left=_texts(retired.get("left")),
        on_gpus=on_gpus[0],
        others_on_gpus=on_gpus[1],
        beside=beside,
        beside_count=beside_count,
    )


def groups_as_json(rows: Iterable[GroupRow]) -> list[dict[str, Any]]:
    """The groups of a `--json` answer, each in whole numbers and seconds.

    Its size is bounded: all counts are there, but of the skipped tests of a group the first reasons alone, and of these
    the first names, and over all groups no more reasons and names than `MAX_TEXTS`.
    """
    left = MAX_TEXTS
    answer = []
    for row in rows:
        reasons = list(by_reason(row.counts.skipped).items())
        skipped: list[dict[str, Any]] = []
        told, rest = reasons[: min(_REASONS_SHOWN, left)], reasons[min(_REASONS_SHOWN, left) :]
        left -= len(told)
        for reason, tests in told:
            names = [test[:_TEXT] for test in tests[: min(_NAMES_SHOWN, left)]]
            left -= len(names)
            skipped.append({"reason": reason[:_TEXT], "count": len(tests), "tests": names})
        if rest:
            count = sum(len(tests) for _, tests in rest)
            skipped.append({"reason": f"{len(rest)} more reasons", "count": count, "tests": []})
        answer.append(_as_json(row) | {"skipped": skipped})
    return answer


def _as_json(row: GroupRow) -> dict[str, Any]:
    counts = row.counts
    return {
        "name": row.name,
        "verdict": row.verdict.label,
        "reason": row.reason[: 4 * _TEXT],
        "has_tests": row.has_tests,
        "passed": counts.passed,
        "failed": len(counts.failed),
        "errors": len(counts.errors),
        "not_collected": len(counts.collection_errors),
        "xfailed": len(counts.xfailed),
        "xpassed": len(counts.xpassed),
        "deselected": counts.deselected,
        "retried": len(counts.retried),
        "wall_s": row.wall_s,
        "peak_rss_bytes": row.peak_rss_bytes,
        "processes": {
            "tracked": row.tracked,
            "outlived": len(row.outlived),
            "killed": row.killed,
            "left": list(row.left[:_NAMES_SHOWN]),
            "on_gpus": row.on_gpus,
            "others_on_gpus": row.others_on_gpus,
        },
        "beside_source": {"count": row.beside_count, "first": list(row.beside[:_NAMES_SHOWN])},
    }


def beside_source(record: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """How many files that the commit does not have lay beside its source after a group, and the first of them."""
    added = _object(record.get("added"))
    first = _texts(added.get("first"))
    return max(_whole(added.get("count")) or 0, len(first)), first


def first_files(names: Sequence[object], count: int) -> str:
    """How many files there are, and the first of them by their names."""
    more = f" and {count - _FILES_SHOWN} more" if count > _FILES_SHOWN else ""
    return (
        f"{count} file{'s' if count > 1 else ''}: {', '.join(str(name)[:200] for name in names[:_FILES_SHOWN])}{more}"
    )


def by_reason(tests: Iterable[Named]) -> dict[str, list[str]]:
    """Each reason once, with the tests that have it."""
    found: dict[str, list[str]] = {}
    for test in tests:
        found.setdefault(test.reason or "without a reason", []).append(test.test)
    return found


def _own_and_others(told: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """How many pids NVML saw on GPUs, of the family and of others; None where it was not, or not well, asked."""
    seen = told.get("seen")
    if not isinstance(seen, list) or told.get("problem") is not None:
        return None, None
    own: set[object] = set()
    others: set[object] = set()
    for row in map(_object, seen):
        (own if row.get("in_family") is True else others).add(_whole(row.get("pid")))
    return len(own), len(others)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    is_one = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return float(value) if is_one else None  # type: ignore[arg-type]  # narrowed by the line above


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(each)[:200] for each in value[:1000]) if isinstance(value, list) else ()
