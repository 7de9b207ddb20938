"""What the tests of a group did, counted from structured reports; never from the last line of a text.

Two forms: the lines of the pytest plugin that the node puts beside the tests (`harness.pytest-report/1`), and JUnit
XML, which knows less: nothing of what was deselected, nor of what was tried again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import Element, ParseError  # names only: defusedxml parses

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

__all__ = ["Named", "TestCounts", "from_junit", "from_pytest_report"]

REPORT_SCHEMA = "harness.pytest-report/1"
_PHASES = frozenset({"setup", "call", "teardown"})


@dataclass(frozen=True, slots=True)
class Named:
    """A test or module, and what is said about it."""

    test: str
    reason: str


@dataclass(frozen=True, slots=True)
class TestCounts:
    """Each test once, by what became of it in the end.

    `errors` are failures outside of the test itself (set-up, tear-down); `collection_errors` are modules that could not
    be read at all. `retried` counts tests that ran more than once, whatever came of it. `gaps` say why this is not all
    there is; empty where the report is whole.
    """

    __test__ = False  # pytest: this is a result, no test

    passed: int = 0
    failed: tuple[Named, ...] = ()
    errors: tuple[Named, ...] = ()
    skipped: tuple[Named, ...] = ()
    xfailed: tuple[Named, ...] = ()
    xpassed: tuple[Named, ...] = ()
    deselected: int = 0
    retried: tuple[Named, ...] = ()
    collection_errors: tuple[Named, ...] = ()
    gaps: tuple[str, ...] = ()

    @property
    def bad(self) -> tuple[Named, ...]:
        """What keeps a group from passing."""
        return (*self.failed, *self.errors)

    def as_facts(self) -> dict[str, Any]:
        """As the receipts and `--json` answers have it."""
        return {
            "passed": self.passed,
            "deselected": self.deselected,
            **{name: _rows(getattr(self, name)) for name in _NAMED},
            "gaps": list(self.gaps),
        }


_NAMED = ("failed", "errors", "skipped", "xfailed", "xpassed", "retried", "collection_errors")


def from_pytest_report(data: bytes) -> TestCounts:
    """The counts of a plugin's report. A group may have started pytest several times: they are added.

    What is damaged, unfinished or never ran is a gap.
    """
    sessions: dict[str, _Session] = {}
    gaps = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            session = sessions.setdefault(_text(row, "session"), _Session())
            session.read(row)
        except (ValueError, KeyError, TypeError, RecursionError):
            gaps.append(f"line {number} of the test report is damaged")
    if not sessions and not gaps:
        gaps.append("the test report is empty: no pytest was started, or none that could load the report's plugin")
    parts = [session.counts() for session in sessions.values()]
    return _sum(parts, gaps)


def from_junit(data: bytes) -> TestCounts:
    """The counts of a JUnit file; its totals must be those of its cases. A failure outside of a case is an error."""
    try:
        root = fromstring(data, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:  # an encoding may be unknown
        return TestCounts(gaps=(f"the JUnit report is damaged: {type(error).__name__}: {str(error)[:200]}",))
    if root.tag not in _SUITES:
        return TestCounts(gaps=(f"the report is no JUnit report: its root is {str(root.tag)[:50]!r}",))
    order = list(root.iter())
    parents = {child: element for element in order for child in element}
    found: dict[str, list[Named]] = {name: [] for name in ("passed", "failed", "errors", "skipped", "xfailed")}
    bad, retried = set(), []
    for element in order:
        if element.tag == "testcase":
            name, kind, reason = _case_name(element), *_kind(element)
            tries = sum(child.tag in _TRIES for child in element)
            retried += [Named(name, f"tried {tries + 1} times")] if tries else []
        elif element.tag in _BAD_TAGS and parents[element].tag != "testcase":
            name = f"{parents[element].get('name', '')} (outside of a test)".lstrip()
            kind, reason = "errors", _said(element)
        else:
            continue
        found[kind].append(Named(name, reason))
        if kind in {"failed", "errors"}:
            bad.add(element)
    return TestCounts(
        passed=len(found["passed"]),
        failed=tuple(found["failed"]),
        errors=tuple(found["errors"]),
        skipped=tuple(found["skipped"]),
        xfailed=tuple(found["xfailed"]),
        retried=tuple(retried),
        gaps=(*_strange_words(root), *_totals_differ(order, parents, bad)),
    )


@dataclass(slots=True)
class _Test:
    """One test while its phases come in. What failed stays failed until it is tried again: a subtest has rows too."""

    outcome: str = ""
    reason: str = ""
    ended: bool = False
    tries: int = 0

    def read(self, row: Mapping[str, Any]) -> None:
        when, outcome, reason = row["when"], row["outcome"], str(row.get("reason", ""))
        if when not in _PHASES or outcome not in {"passed", "failed", "skipped", "rerun"}:
            raise ValueError
        if when == "setup":
            self.tries += 1
            self.outcome, self.reason, self.ended = "", "", False
        self.ended = self.ended or when == "teardown"
        match outcome, when:
            case "rerun", _:
                self.outcome, self.reason = "", ""
            case "failed", "call":
                self.outcome, self.reason = "failed", reason
            case "failed", _:
                if self.outcome != "failed":
                    self.outcome, self.reason = "errors", reason
            case _ if self.outcome in {"failed", "errors"}:
                pass
            case "skipped", _:
                self.outcome, self.reason = ("xfailed" if row.get("xfail") else "skipped"), reason
            case "passed", "call":
                self.outcome, self.reason = ("xpassed" if row.get("xfail") else "passed"), reason


@dataclass(slots=True)
class _Session:
    """One pytest, from its start to its end."""

    tests: dict[str, _Test] = field(default_factory=dict)
    deselected: int = 0
    collected: int | None = None
    module_skips: list[Named] = field(default_factory=list)
    collection_errors: list[Named] = field(default_factory=list)
    exit_status: int | None = None

    def read(self, row: Mapping[str, Any]) -> None:
        if row.get("schema") != REPORT_SCHEMA:
            raise ValueError
        match row["kind"]:
            case "start":
                pass
            case "deselected":
                self.deselected += 1
            case "collected":
                self.collected = _number(row, "count")
            case "collect-error":
                self.collection_errors.append(Named(_text(row, "test"), _text(row, "reason")))
            case "collect-skipped":
                self.module_skips.append(Named(_text(row, "test"), _text(row, "reason")))
            case "test":
                self.tests.setdefault(_text(row, "test"), _Test()).read(row)
            case "finish":
                self.exit_status = _number(row, "exit_status")
            case _:
                raise ValueError

    def counts(self) -> TestCounts:
        named = {
            name: tuple(Named(test, one.reason) for test, one in self.tests.items() if one.outcome == name)
            for name in ("failed", "errors", "skipped", "xfailed", "xpassed")
        }
        named["skipped"] = (*self.module_skips, *named["skipped"])
        retried = tuple(
            Named(test, f"tried {one.tries} times, in the end {one.outcome or 'without a result'}")
            for test, one in self.tests.items()
            if one.tries > 1
        )
        return TestCounts(
            passed=sum(one.outcome == "passed" for one in self.tests.values()),
            **named,
            deselected=self.deselected,
            retried=retried,
            collection_errors=tuple(self.collection_errors),
            gaps=tuple(self._gaps()),
        )

    def _gaps(self) -> Iterable[str]:
        open_tests = [test for test, one in self.tests.items() if not one.outcome or not one.ended]
        if open_tests:
            yield f"{len(open_tests)} tests began and have no result, the first of them {open_tests[0]}"
        if self.exit_status is None:
            yield "pytest did not finish"
        elif self.exit_status not in {0, 1, 5}:
            yield f"pytest ended with status {self.exit_status}: {_STATUS.get(self.exit_status, 'unknown')}"
        elif self.exit_status == 1 and not any(one.outcome in {"failed", "errors"} for one in self.tests.values()):
            yield "pytest ended with status 1, and no test that failed is in the report"
        if self.collected is None:
            yield "the collection did not end"
        elif len(self.tests) < self.collected:
            yield f"{self.collected - len(self.tests)} of {self.collected} collected tests never ran"


_STATUS = {2: "it was interrupted, or could not collect", 3: "an error inside pytest", 4: "its command line is wrong"}


def _sum(parts: list[TestCounts], gaps: list[str]) -> TestCounts:
    named = {name: tuple(row for part in parts for row in getattr(part, name)) for name in _NAMED}
    return TestCounts(
        passed=sum(part.passed for part in parts),
        deselected=sum(part.deselected for part in parts),
        **named,
        gaps=(*gaps, *(gap for part in parts for gap in part.gaps)),
    )


_TRIES = frozenset({"flakyFailure", "flakyError", "rerunFailure", "rerunError"})
_WORDS = frozenset({"testsuites", "testsuite", "testcase", "failure", "error", "skipped"})
_LIKE_WORDS = frozenset({*_WORDS, "case", "test", "suite", "failed", "errors", "failures", "skip", "disabled"})
_SUITES = frozenset({"testsuites", "testsuite"})
_BAD_TAGS = frozenset({"failure", "error"})
_FAILED = frozenset({"fail", "failed", "failure", "error", "errored", "timeout", "aborted"})
_NOT_RUN = frozenset({"notrun", "disabled", "suppressed", "skipped", "ignored", "filtered"})


def _kind(case: Element) -> tuple[str, str]:
    """What became of a case, the worst that it says, and the reason."""
    said = {child.tag: child for child in reversed(case)}
    for tag, kind in (("failure", "failed"), ("error", "errors")):
        if tag in said:
            return kind, _said(said[tag])
    if word := _word_of_failure(case):
        return "failed", word
    if "skipped" in said:
        child = said["skipped"]
        return ("xfailed" if child.get("type") == "pytest.xfail" else "skipped"), _said(child)
    for name in ("result", "status"):
        if case.get(name, "").strip().lower() in _NOT_RUN:
            return "skipped", f"{name}: {case.get(name, '')[:100]}"
    return "passed", ""


def _said(element: Element) -> str:
    return (element.get("message") or element.text or "").strip()[:2000]


def _word_of_failure(element: Element) -> str:
    """The attribute by which an element says that it failed; empty where none does. The node reads them so, too."""
    for name in ("result", "status", "success"):
        word = element.get(name, "").strip().lower()
        if word == "false" if name == "success" else word in _FAILED:
            return f"{name}: {word}"
    return ""


def _strange_words(root: Element) -> Iterable[str]:
    """Elements that look like those of JUnit and are not: a reader that skips them would miss a failure."""
    for element in root.iter():
        tag = str(element.tag)
        if tag not in _WORDS and tag.rpartition("}")[2].lower() in _LIKE_WORDS:
            yield f"the JUnit report has the element {tag[:80]!r}, which is none of JUnit's"
            return


def _case_name(case: Element) -> str:
    return "::".join(part for part in (case.get("classname"), case.get("name")) if part) or "(without a name)"


def _totals_differ(order: list[Element], parents: Mapping[Element, Element], bad: set[Element]) -> Iterable[str]:
    """Each suite's totals, where it has any, are those of what is inside of it; somewhere there have to be some."""
    cases = {element for element in order if element.tag == "testcase"}
    differ = _outermost(order, parents, ("tests",), cases)
    if differ or not any(element.tag == "testsuite" for element in order):
        told, found = differ or (0, len(cases))
        yield f"the JUnit report says {told} tests and has {found}"
    if differ := _outermost(order, parents, ("failures", "errors"), bad):
        yield f"the JUnit report says {differ[0]} failures and errors and has {differ[1]}"
    if not bad and any(_word_of_failure(element) for element in order if element.tag in _SUITES):
        yield "the JUnit report says that a suite failed and has no failure"


def _outermost(
    order: list[Element], parents: Mapping[Element, Element], totals: Iterable[str], counted: set[Element]
) -> tuple[int, int] | None:
    """The total of the outermost suite whose total is not what it has inside, and what that is."""
    told: dict[Element, int] = defaultdict(int)
    has: dict[Element, int] = defaultdict(int)
    found = None
    for element in reversed(order):  # what is inside comes first
        has[element] += element in counted
        if element.tag in _SUITES:
            given = [_number_of(element.attrib[name]) for name in totals if name in element.attrib]
            if given:
                told[element] = sum(given) if min(given) >= 0 else -1
            if told[element] != has[element]:
                found = told[element], has[element]
        if element in parents:
            told[parents[element]] += told[element]
            has[parents[element]] += has[element]
    return found


def _number_of(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def _rows(rows: tuple[Named, ...]) -> list[dict[str, str]]:
    return [{"test": row.test, "reason": row.reason} for row in rows]


def _text(row: Mapping[str, Any], name: str) -> str:
    if not isinstance(row[name], str):
        raise TypeError
    return str(row[name])


def _number(row: Mapping[str, Any], name: str) -> int:
    if type(row[name]) is not int or row[name] < 0:
        raise TypeError
    return int(row[name])
