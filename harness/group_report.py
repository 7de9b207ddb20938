"""Why the report of a group whose command failed does not show a failure: nothing ran, or nobody knows what did.

Such a group is no failed one, whatever its exit code: docs/qualify.md, "Counting tests". The launcher counts the same
reports in full and never makes a failed group a better one, so that what is said here decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

__all__ = ["why_undecided"]

NO_TESTS = 5
"""pytest's own exit status where no test was collected, or none selected."""

_STATUS = {2: "it was interrupted, or could not collect", 3: "an error inside pytest", 4: "its command line is wrong"}


def why_undecided(report: str, folder: Path, exit_code: int | None) -> str:
    """Why nobody can say that tests of a group failed; empty where one did, or where its exit code alone is to blame.

    `report` is the group's kind of report, `folder` where it lies, `exit_code` that of its command (None: a signal).
    """
    match report:
        case "pytest":
            return _by_pytest(folder / "tests.jsonl", exit_code)
        case "junit":
            return _by_junit(folder / "junit.xml")
        case _:
            return ""


@dataclass(slots=True)
class _Session:
    """One pytest. `failed` holds what failed at its last try; `has_run` says that any test ran to its end."""

    failed: set[str] = field(default_factory=set)
    has_run: bool = False
    deselected: int = 0
    skipped: int = 0
    could_not_collect: bool = False
    status: int | None = None

    def read(self, row: Mapping[str, Any]) -> None:
        match row["kind"], row.get("outcome"):
            case "test", "failed":
                self.failed.add(row["test"])
            case "test", outcome:
                if row["when"] == "setup" or outcome == "rerun":
                    self.failed.discard(row["test"])
                self.skipped += outcome == "skipped" and not row.get("xfail")
                self.has_run |= bool(row.get("xfail")) or (row["when"] == "call" and outcome == "passed")
            case "deselected", _:
                self.deselected += 1
            case "collect-skipped", _:
                self.skipped += 1
            case "collect-error", _:
                self.could_not_collect = True
            case "finish", _:
                if type(row["exit_status"]) is not int:
                    raise TypeError
                self.status = row["exit_status"]


def _by_pytest(path: Path, exit_code: int | None) -> str:
    sessions: dict[str, _Session] = {}
    damaged = False
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            row = json.loads(line) if line else None
            if row is not None:
                sessions.setdefault(row["session"], _Session()).read(row)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            damaged = True
    told = list(sessions.values())
    if any(session.could_not_collect for session in told):
        return "pytest could not collect every test"
    if any(session.failed for session in told):
        return ""
    if damaged:
        return "the test report is damaged"
    if not told:
        return "the test report is empty: no pytest was started, or none that could load the report's plugin"
    for session in told:
        if session.status is None:
            return "pytest did not finish"
        if session.status not in {0, 1, NO_TESTS}:
            return f"pytest ended with status {session.status}: {_STATUS.get(session.status, 'unknown')}"
    if not any(session.has_run for session in told):
        return _why_nothing_ran(told)
    empty = [session for session in told if session.status == NO_TESTS]
    return (
        f"in one of its {len(told)} runs of pytest {_why_nothing_ran(empty)}" if exit_code == NO_TESTS and empty else ""
    )


def _why_nothing_ran(sessions: Sequence[_Session]) -> str:
    skipped, deselected = (sum(getattr(each, name) for each in sessions) for name in ("skipped", "deselected"))
    if skipped:
        return f"all {skipped} tests were skipped"
    return f"all {deselected} tests were deselected" if deselected else "no test was collected"


def _by_junit(path: Path) -> str:
    if not path.exists():
        return "it wrote no JUnit report"
    path_of: list[str] = []
    seen: dict[str, set[int]] = {"failure": set(), "skipped": set()}  # by the number of the case
    cases = 0

    def begin(tag: str, attributes: Mapping[str, str]) -> None:
        nonlocal cases
        if tag == "testcase":
            cases += 1
            if _says(attributes, _FAILED) or attributes.get("success", "").strip().lower() == "false":
                seen["failure"].add(cases)
            elif _says(attributes, _NOT_RUN):
                seen["skipped"].add(cases)
        elif tag in {"failure", "error"}:  # outside of a case, too
            seen["failure"].add(cases)
        elif tag == "skipped" and path_of and path_of[-1] == "testcase":
            seen["skipped"].add(cases)
        path_of.append(tag)

    def end(_tag: str) -> None:
        path_of.pop()

    def refuse(*_declared: object) -> None:  # a type of document: it may declare entities
        raise ValueError

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.StartDoctypeDeclHandler = begin, end, refuse
    try:
        parser.Parse(path.read_bytes(), True)
    except (expat.ExpatError, ValueError, LookupError):
        return "the JUnit report is damaged"
    if seen["failure"]:
        return ""
    if not cases:
        return "its JUnit report has no test"
    return f"all {cases} tests were skipped" if len(seen["skipped"]) == cases else ""


def _says(attributes: Mapping[str, str], words: frozenset[str]) -> bool:
    return any(attributes.get(name, "").strip().lower() in words for name in ("result", "status"))


_FAILED = frozenset({"fail", "failed", "failure", "error", "errored", "timeout", "aborted"})
_NOT_RUN = frozenset({"notrun", "disabled", "suppressed", "skipped", "ignored", "filtered"})
