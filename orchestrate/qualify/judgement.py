"""What a qualification showed, judged from its evidence: group by group, never from what somebody says of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrate.qualify.group_file import Report
from orchestrate.qualify.test_counts import TestCounts, from_junit, from_pytest_report
from orchestrate.verdict import Verdict

__all__ = ["GroupJudgement", "judge_groups", "verdict_of"]

NODE_SCHEMA = "harness.node/1"
NO_PYTEST = "pytest is not installed there (No module named pytest)"


@dataclass(frozen=True, slots=True)
class GroupJudgement:
    """One group. `counts` are None where its report is its exit code; `record` is the node's word on it."""

    name: str
    verdict: Verdict
    reason: str
    counts: TestCounts | None
    record: Mapping[str, Any]


def judge_groups(
    expected: Sequence[tuple[str, Report]], node: Mapping[str, Any], files: Mapping[str, bytes]
) -> tuple[GroupJudgement, ...]:
    """Each expected group, in order; `node` is the content of node.json.

    `files` are packages.json, which names what the node's Python has, and the reports, by their paths beside node.json.
    A group that the node says nothing of is `incomplete`, and so is one whose report is not whole.
    """
    records = _records(node)
    return tuple(_judge(name, report, records.get(name), files) for name, report in expected)


def verdict_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The one of groups that decides, in the node's own order; a qualification without a group is `incomplete`.

    A group that failed decides over one that is incomplete, which is often so for its sake.
    """
    found = set(verdicts)
    return next((verdict for verdict in _DECIDING if verdict in found), Verdict.INCOMPLETE)


_DECIDING = (
    Verdict.INFRASTRUCTURE,
    Verdict.HUNG,
    Verdict.FAILED,
    Verdict.CANCELLED,
    Verdict.INCOMPLETE,
    Verdict.PASSED,
)
_BY_STATUS = {
    "failed": Verdict.FAILED,
    "hung": Verdict.HUNG,
    "infrastructure": Verdict.INFRASTRUCTURE,
    "cancelled": Verdict.CANCELLED,
    "unsettled": Verdict.INCOMPLETE,
}


def _judge(name: str, report: Report, record: Mapping[str, Any] | None, files: Mapping[str, bytes]) -> GroupJudgement:
    if record is None:
        return GroupJudgement(name, Verdict.INCOMPLETE, "the node says nothing of it", None, {})
    status, said = str(record.get("status")), str(record.get("reason") or "")
    counts = _counts(name, report, files) if record.get("started_at") else None
    verdict = _BY_STATUS.get(status)
    if status != "complete" and verdict is None:
        return GroupJudgement(name, Verdict.INCOMPLETE, f"its status {status!r} is unknown", counts, record)
    if counts is None:
        started = bool(record.get("started_at"))
        if verdict is None and (not started or record.get("exit_code") != 0):
            return GroupJudgement(name, Verdict.INCOMPLETE, "it passed without having run", None, record)
        return GroupJudgement(name, verdict or Verdict.PASSED, said, None, record)
    if counts.collection_errors and verdict in {None, Verdict.INCOMPLETE}:
        first = counts.collection_errors[0]
        missing = f"{first.test} could not be collected: {_last_line(first.reason)}"
        return GroupJudgement(name, Verdict.INCOMPLETE, missing, counts, record)
    if verdict is not None:  # the node read the report too: what it calls failed did
        if counts.gaps == (NO_PYTEST,) and verdict is Verdict.INCOMPLETE and type(record.get("exit_code")) is int:
            said = f"it exited with {record['exit_code']}: {NO_PYTEST}"
        first_bad = f"; first: {counts.bad[0].test}: {_telling_line(counts.bad[0].reason)}" if counts.bad else ""
        return GroupJudgement(name, verdict, f"{said}{first_bad}", counts, record)
    return _passed_by_report(name, counts, record)


def _passed_by_report(name: str, counts: TestCounts, record: Mapping[str, Any]) -> GroupJudgement:
    """The command ended well: the report decides."""
    if counts.bad:
        reason = f"its report has {len(counts.bad)} failures, though it exited with 0; first: {counts.bad[0].test}"
        return GroupJudgement(name, Verdict.FAILED, reason, counts, record)
    if counts.gaps:
        return GroupJudgement(name, Verdict.INCOMPLETE, counts.gaps[0], counts, record)
    if counts.passed == 0:
        return GroupJudgement(name, Verdict.INCOMPLETE, _why_none_passed(counts), counts, record)
    return GroupJudgement(name, Verdict.PASSED, "", counts, record)


def _why_none_passed(counts: TestCounts) -> str:
    """Why none of the tests of a report without a failure passed."""
    marked = len(counts.xfailed) + len(counts.xpassed)
    if marked:
        return f"no test passed: {marked} are marked to fail, {len(counts.skipped)} were skipped"
    if counts.skipped:
        return f"all {len(counts.skipped)} tests were skipped"
    return f"all {counts.deselected} tests were deselected" if counts.deselected else "no test was collected"


def _counts(name: str, report: Report, files: Mapping[str, bytes]) -> TestCounts | None:
    match report:
        case Report.PYTEST:
            rows = files.get(f"groups/{name}/tests.jsonl", b"")
            if not rows and _lacks_pytest(files.get("packages.json", b"")):
                return TestCounts(gaps=(NO_PYTEST,))
            return from_pytest_report(rows)
        case Report.JUNIT:
            data = files.get(f"groups/{name}/junit.xml")
            return TestCounts(gaps=("it wrote no JUnit report",)) if data is None else from_junit(data)
        case Report.EXIT_CODE:
            return None


def _lacks_pytest(packages: bytes) -> bool:
    """Whether packages.json, which may be a stranger's, is there and does not have pytest."""
    try:
        listed = json.loads(packages)
    except (ValueError, RecursionError):
        return False
    return isinstance(listed, dict) and "pytest" not in map(str.lower, listed)


def _records(node: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    if node.get("schema") != NODE_SCHEMA or node.get("payload") != "groups":
        return {}
    rows = node.get("cells")
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("key"), str):
            found.setdefault(row["key"], row)
    return found


def _last_line(text: str) -> str:
    return (_lines(text) or ["without a reason"])[-1][:300]


def _telling_line(text: str) -> str:
    """The line of a failure that says what is wrong: the first, or the first that pytest marks; a traceback's last.

    A first line that only announces what follows has that with it ("AssertionError:", as numpy begins).
    """
    lines = _lines(text)
    if lines and lines[0].startswith("Traceback "):
        return _last_line(text)
    lines = [line[1:].strip() for line in lines if line.startswith("E ")] or lines or ["without a reason"]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:300]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
