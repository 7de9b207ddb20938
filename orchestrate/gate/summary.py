"""The job summary: what a reviewer reads before they believe a check. Markdown, bounded by whoever writes it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from orchestrate.gate.conclusion import Classified, Conclusion, Evidence, Reconciled
from orchestrate.markup import code, escaped
from orchestrate.qualify.overview import GroupRow, by_reason
from orchestrate.qualify.test_counts import Named, TestCounts
from orchestrate.verdict import Verdict

__all__ = ["summarise", "told"]

_MAX_ROWS = 200


def summarise(
    conclusion: Conclusion,
    classified: Classified | None,
    evidence: Evidence | None,
    reconciled: Reconciled | None,
    *,
    cells: Sequence[Mapping[str, Any]] = (),
    groups: Sequence[GroupRow] = (),
    capacity: Mapping[str, Any] | None = None,
    remarks: Sequence[str] = (),
    page_url: str | None = None,
) -> str:
    """The summary of a gate.

    `cells` are the rows of the collect receipt, `groups` those of a qualification, `capacity` what the closure
    says of a refusal, `remarks` are for whoever reviews the change, `page_url` where the report page can be read.
    """
    parts = [f"## {escaped(conclusion.title)}", "", escaped(conclusion.reason), ""]
    parts += _identity(classified, evidence)
    parts += _list("Problems", conclusion.problems)
    own = [] if classified is None else [f"the change touches {name}, the gate's own" for name in classified.own_files]
    parts += _list("To be reviewed by a person", (*remarks, *own))
    parts += _table("Cells", ("cell", "status", "complete", "rows", "missing"), map(_cell, cells))
    parts += _table("Groups", _GROUP_HEADS, map(_group, groups))
    parts += _capacity(capacity)
    parts += ["### What is left", ""]
    parts += _bullets(_teardown(evidence, reconciled))
    if evidence is not None:
        parts += _list("What this proves", evidence.found.proves)
        parts += _list("What this does not prove", evidence.found.does_not_prove)
    else:
        parts += _list("What this proves", _proven_without_run(conclusion, reconciled))
        parts += _list(
            "What this does not prove", ["anything about how the change behaves: nothing of it was measured"]
        )
    if page_url:
        parts += [f"[The report page of the run]({_url(page_url)})", ""]
    parts += _tests("Failed tests", groups, lambda counts: (*counts.collection_errors, *counts.bad))
    parts += _tests("Skipped tests", groups, lambda counts: counts.skipped)
    parts += _tests("Tests that were tried again", groups, lambda counts: counts.retried)
    return "\n".join(parts) + "\n"


def told(
    conclusion: Conclusion, groups: Sequence[GroupRow] = (), remarks: Sequence[str] = ()
) -> list[tuple[str, str, str]]:
    """Level, title and text of each annotation, worst first. A group that never began is no finding of its own."""
    level = "notice" if conclusion.verdict is None else conclusion.verdict.annotation
    rows = [(level, conclusion.title, conclusion.reason)]
    rows += [("error", "GPU gate", problem) for problem in conclusion.problems if problem != conclusion.reason]
    order = list(Verdict)
    bad = [row for row in groups if row.verdict is not Verdict.PASSED and row.wall_s is not None]
    bad.sort(key=lambda row: order.index(row.verdict), reverse=True)
    rows += [(row.verdict.annotation, f"group {row.name}: {row.verdict.label}", row.reason) for row in bad]
    rows += [("warning", "GPU gate: to be reviewed", remark) for remark in remarks]
    return rows


def _proven_without_run(conclusion: Conclusion, reconciled: Reconciled | None) -> list[str]:
    if conclusion.verdict is None:
        return ["no path of the change needs GPUs, by the policy of its base; nothing ran"]
    if conclusion.verdict is Verdict.NOT_RUN:
        return ["nothing was asked for, so nothing ran"]
    if reconciled is not None and reconciled.confirmed:
        return ["nothing of this workflow run is left where the fresh machine looked"]
    return ["nothing: no run directory came, and whether anything ran is not known"]


def _identity(classified: Classified | None, evidence: Evidence | None) -> list[str]:
    if classified is None:
        return []
    change, checkout = classified.change, classified.checkout
    rows = [
        ("head", change.head),
        ("base", change.base or "none"),
        ("tested commit", checkout.commit),
        ("tested tree", checkout.tree),
        ("commit that ran", evidence.found.commit if evidence and evidence.ran else None),
        ("workflow run", f"{change.run}, attempt {change.attempt}"),
    ]
    if evidence is not None:
        rows += [("run", evidence.found.run_id), ("closure", evidence.found.closure_sha256)]
        rows += [("device", evidence.found.device), ("cells said", evidence.found.test_verdict.label)]
    return ["| | |", "| --- | --- |", *(f"| {name} | {code(value or 'none')} |" for name, value in rows), ""]


def _cell(row: Mapping[str, Any]) -> tuple[Any, ...]:
    missing = row.get("missing")
    first = missing[0] if isinstance(missing, list) and missing else ""
    return row.get("key"), row.get("status"), "yes" if row.get("complete") is True else "no", row.get("rows"), first


_TESTS = ("passed", "failed", "skipped", "xfailed", "deselected")
_GROUP_HEADS = ("group", "verdict", *_TESTS, "time", "peak memory", "processes", "why")


def _group(row: GroupRow) -> tuple[Any, ...]:
    counts = row.counts
    tests: tuple[Any, ...] = (
        counts.passed,
        len(counts.bad) + len(counts.collection_errors),
        len(counts.skipped),
        len(counts.xfailed),
        counts.deselected,
    )
    return (
        row.name,
        row.verdict.label,
        *(tests if row.has_tests else ("-",) * len(_TESTS)),
        None if row.wall_s is None else f"{row.wall_s:.1f} s",
        None if row.peak_rss_bytes is None else f"{row.peak_rss_bytes / 2**20:.0f} MiB",
        row.family,
        row.reason,
    )


def _tests(title: str, groups: Sequence[GroupRow], of: Callable[[TestCounts], Sequence[Named]]) -> list[str]:
    rows = [
        (group.name, reason, len(tests), tests[0])
        for group in groups
        for reason, tests in by_reason(of(group.counts)).items()
    ]
    return _table(title, ("group", "reason", "tests", "the first"), rows)


def _capacity(facts: Mapping[str, Any] | None) -> list[str]:
    """What was tried, and that nothing ran."""
    if facts is None:
        return []
    heads = ("where", "reason", "decided by", "what it said", "at (UTC)")
    names = ("where", "reason", "basis", "detail", "at")
    lines = _table("What was tried", heads, [[row.get(name) for name in names] for row in _rows(facts.get("offers"))])
    seen = ("where", "kind", "total", "free", "source")
    free = [[row.get(name) for name in seen] for row in _rows(facts.get("availability"))]
    lines += _table("What there is", ("where", "kind", "total", "free", "known from"), free)
    asked = facts.get("asked")
    if isinstance(asked, Mapping):
        words = ", ".join(f"{name} {value}" for name, value in sorted(asked.items()))
        lines += [f"Asked for: {code(words or 'nothing that is named')}", ""]
    said = ["Something of it ran all the same." if facts.get("nothing_ran") is False else "Nothing ran."]
    withdrawal = facts.get("withdrawal")
    if not isinstance(withdrawal, Mapping):
        said.append("Whether the request was withdrawn is not known.")
    else:
        how = escaped(withdrawal.get("how") or "")
        if withdrawal.get("withdrawn") is not True:
            said.append(f"Nothing was withdrawn: {how}.")
        else:
            proof = "that was confirmed" if withdrawal.get("confirmed") is True else "that was NOT confirmed"
            said.append(f"The request was withdrawn, and {proof}: {how}.")
    again = facts.get("retry_after_s")
    said.append(f"Try again in {again} s." if type(again) in {int, float} else "When to try again is not known.")
    return [*lines, " ".join(said), ""]


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _teardown(evidence: Evidence | None, reconciled: Reconciled | None) -> list[str]:
    lines = []
    if evidence is not None:
        teardown = evidence.closure.get("teardown")
        confirmed = isinstance(teardown, Mapping) and teardown.get("confirmed") is True
        path = evidence.census.get("path")
        if path is None:
            lines.append(
                "the run made no census of its own: nothing was acquired" if confirmed else "no census: NOT confirmed"
            )
        else:
            lines.append(f"the run's own census ({path}): {'nothing left' if confirmed else 'NOT confirmed'}")
    else:
        lines.append("no run directory came: the run itself proves nothing")
    if reconciled is None:
        lines.append("nobody looked afterwards from a fresh machine")
    else:
        lines.append(f"a fresh machine looked: {'nothing left' if reconciled.confirmed else 'NOT confirmed'}")
        lines += [f"it found and removed: {item}" for item in reconciled.found]
        lines += [f"still there: {item}" for item in reconciled.left]
        lines += [f"could not be looked at: {item}" for item in reconciled.unknown]
    return lines


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [f"| {' | '.join(code('' if cell is None else cell) for cell in row)} |" for row in rows]
    if not lines:
        return []
    more = ["", f"*and {len(lines) - _MAX_ROWS} more*"] if len(lines) > _MAX_ROWS else []
    head = [f"### {title}", "", f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return [*head, *lines[:_MAX_ROWS], *more, ""]


def _list(title: str, lines: Sequence[str]) -> list[str]:
    return [f"### {title}", "", *_bullets(lines)] if lines else []


def _bullets(lines: Sequence[str]) -> list[str]:
    more = [f"- and {len(lines) - _MAX_ROWS} more"] if len(lines) > _MAX_ROWS else []
    return [*(f"- {escaped(line)}" for line in lines[:_MAX_ROWS]), *more, ""]


def _url(text: str) -> str:
    return "".join(each for each in text if each.isascii() and (each.isalnum() or each in "-._~:/?#=&%"))
