"""Whether a closure's verdict follows from the facts beside it: the verdict is recomputed, not believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from orchestrate.receipts.canonical import canonical_bytes, sha256_hex
from orchestrate.receipts.completeness import CellJudgement
from orchestrate.receipts.statement import Stage
from orchestrate.verdict import Verdict

__all__ = ["census_gaps", "contradictions", "node_source_digest", "payload_gaps", "reasons_not_passed"]

Facts = Mapping[str, Any]
Stages = Mapping[Stage, Facts]
"""The facts of the newest receipt of each stage that has one."""


def contradictions(closure: Facts, stages: Stages, cells: Sequence[CellJudgement]) -> tuple[str, ...]:
    """Each way in which the verdict of `closure` does not follow; empty when it does."""
    try:
        verdict, tests = Verdict.from_label(str(closure.get("verdict"))), str(closure.get("test_verdict"))
        Verdict.from_label(tests)
    except ValueError as error:
        return (f"the closure has no verdict of the table: {error}",)
    found = list(_counts(closure, stages, cells))
    if closure.get("exit_code") != verdict.exit_code:
        found.append(f"the closure says {verdict} and exit code {closure.get('exit_code')!r}, not {verdict.exit_code}")
    if verdict is Verdict.PASSED:
        found.extend(f"the verdict is passed, but {gap}" for gap in reasons_not_passed(stages, cells))
        if tests != verdict.label:
            found.append(f"the verdict is passed, but the cells said {tests}")
    elif tests == Verdict.PASSED.label:
        found.extend(f"the cells are said to have passed, but {gap}" for gap in payload_gaps(stages, cells))
    found.extend(_teardown_contradictions(verdict, stages))
    found.extend(_missing_grounds(verdict, closure, stages, cells))
    return tuple(found)


def reasons_not_passed(stages: Stages, cells: Sequence[CellJudgement]) -> tuple[str, ...]:
    """What keeps a run from being `passed`; empty for a run whose every stage, cell and absence is there."""
    missing = [stage.value for stage in Stage if stage not in stages and stage is not Stage.CLOSURE]
    reasons = [f"there is no {stage} receipt" for stage in missing]
    reasons.extend(payload_gaps(stages, cells))
    reasons.extend(census_gaps(stages.get(Stage.CENSUS, {})) if Stage.CENSUS in stages else ())
    return tuple(reasons)


def payload_gaps(stages: Stages, cells: Sequence[CellJudgement]) -> tuple[str, ...]:
    """What keeps the cells from having passed: evidence, the payload's own end, or sources that changed."""
    gaps = [f"the cell {cell.key} is not complete: {cell.missing[0]}" for cell in cells if not cell.complete]
    if not cells:
        gaps.append("no cell was expected")
    run, collect = stages.get(Stage.RUN, {}), stages.get(Stage.COLLECT, {})
    if run.get("exit_code") != 0 or isinstance(run.get("exit_code"), bool):
        gaps.append(f"the payload's exit code is {run.get('exit_code')!r}")
    if run.get("signal") is not None:
        gaps.append(f"the payload was ended by signal {run.get('signal')!r}")
    if run.get("ended") != "by-itself":
        gaps.append(f"the payload ended {run.get('ended')!r}, not by itself")
    statuses = _statuses(run) | _statuses(collect)
    gaps.extend(f"a cell ended as {status!r}" for status in sorted(statuses - {"complete"}))
    if _sources_changed(collect):
        gaps.append("the sources on the node are not shown to be the same at start and end")
    gaps.extend(_other_sources(stages))
    return tuple(gaps)


def census_gaps(census: Facts) -> tuple[str, ...]:
    """What keeps a census from proving absence: it needs two separate looks that asked, and found nothing."""
    looks = [look for look in _list(census.get("looks")) if isinstance(look, Mapping)]
    gaps = []
    if len(looks) < 2:
        gaps.append(f"the census took {len(looks)} looks, absence needs two")
    times = [_time(look.get("at")) for look in looks]
    moments = [time for time in times if time is not None]
    if len(moments) != len(looks) or any(later <= earlier for earlier, later in pairwise(moments)):
        gaps.append("the looks of the census are not at separate, rising times")
    elif len(moments) > 1 and moments[-1] - moments[-2] < _MIN_GAP:
        gaps.append("the last two looks of the census are less than a second apart")
    for number, look in enumerate(looks, start=1):
        asked = _list(look.get("asked"))
        if not asked or not all(isinstance(item, dict) and item.get("what") for item in asked):
            gaps.append(f"look {number} of the census asked nothing")
    for number, look in list(enumerate(looks, start=1))[-2:]:
        gaps.extend(f"look {number} of the census {gap}" for gap in _findings(look))
    gaps.extend(f"the census {gap}" for gap in _findings(census))
    if census.get("confirmed") is not True:
        gaps.append("the census is not confirmed")
    return tuple(gaps)


def _counts(closure: Facts, stages: Stages, cells: Sequence[CellJudgement]) -> list[str]:
    found = []
    expected, complete = len(cells), sum(cell.complete for cell in cells)
    if closure.get("cells") != {"expected": expected, "complete": complete}:
        found.append(
            f"the closure counts cells as {closure.get('cells')!r}, plan and evidence say {complete} of {expected}"
        )
    missing = [stage.value for stage in Stage if stage not in stages and stage is not Stage.CLOSURE]
    if _list(closure.get("missing")) != missing:
        found.append(f"the closure names the missing stages {closure.get('missing')!r}, they are {missing!r}")
    return found


def _teardown_contradictions(verdict: Verdict, stages: Stages) -> list[str]:
    census = stages.get(Stage.CENSUS)
    gaps = census_gaps(census) if census is not None else ("there is no census receipt",)
    something_could_exist = census is not None or any(stage in stages for stage in (Stage.ACQUIRE, Stage.RUN))
    unconfirmed = verdict is Verdict.TEARDOWN_UNCONFIRMED
    if something_could_exist and gaps and not unconfirmed:
        return [f"the verdict is {verdict}, but teardown is not proven: {gap}" for gap in gaps]
    if unconfirmed and not gaps:
        return ["the verdict is teardown-unconfirmed, but the census proves that nothing is left"]
    return []


def _missing_grounds(verdict: Verdict, closure: Facts, stages: Stages, cells: Sequence[CellJudgement]) -> list[str]:
    """A verdict other than passed must have its ground in the facts too: a wrong alarm is not the truth either."""
    run = stages.get(Stage.RUN, {})
    statuses = _statuses(run) | _statuses(stages.get(Stage.COLLECT, {})) | {str(cell.outcome) for cell in cells}
    gaps = reasons_not_passed(stages, cells)
    match verdict:
        case Verdict.FAILED:
            changed = _sources_changed(stages.get(Stage.COLLECT, {}))
            grounded = changed or "failed" in statuses or run.get("exit_code") == Verdict.FAILED.exit_code
        case Verdict.HUNG:
            grounded = "hung" in statuses or run.get("exit_code") == Verdict.HUNG.exit_code
        case Verdict.CAPACITY | Verdict.NOT_RUN | Verdict.UNSATISFIABLE:
            grounded = Stage.RUN not in stages
        case Verdict.INFRASTRUCTURE | Verdict.INCOMPLETE:
            grounded = bool(gaps) or bool(closure.get("reason"))
        case Verdict.CANCELLED | Verdict.TEARDOWN_UNCONFIRMED | Verdict.PASSED:
            # A signal may come after the last cell; the other two are checked against the census and the cells.
            grounded = True
    tests = str(closure.get("test_verdict"))
    found = [] if grounded else [f"the verdict is {verdict}, but nothing in the receipts says so"]
    if tests != verdict.label and verdict not in _OVERRIDING:
        found.append(f"the verdict is {verdict}, but the cells said {tests}")
    return found


_NODE_SOURCES = (".py", ".json", ".txt")
_MIN_GAP = timedelta(seconds=1)
_OVERRIDING = (Verdict.CANCELLED, Verdict.TEARDOWN_UNCONFIRMED, Verdict.INFRASTRUCTURE, Verdict.INCOMPLETE)
"""The verdicts that something outside the cells can bring about."""


def _statuses(facts: Facts) -> set[str]:
    return {str(cell.get("status")) for cell in _list(facts.get("cells")) if isinstance(cell, Mapping)}


def _sources_changed(collect: Facts) -> bool:
    """Whether the sources are not shown to be the same at start and end."""
    sources = collect.get("sources")
    start, end = (sources.get("start"), sources.get("end")) if isinstance(sources, Mapping) else (None, None)
    return not isinstance(start, str) or start != end


def node_source_digest(pins: Facts) -> str:
    """What the node's own digest of its sources must be for the source files that `pins` maps to their SHA-256.

    The node digests its code and data, not its notes: `.py`, `.json` and `.txt` (`harness/node_run.py`).
    """
    return sha256_hex(canonical_bytes({path: pin for path, pin in pins.items() if path.endswith(_NODE_SOURCES)}))


def _other_sources(stages: Stages) -> list[str]:
    """Whether the plan's pins and what collection and node say of the sources are different files."""
    source = _object(_object(stages.get(Stage.PLAN, {}).get("plan")).get("source"))
    sources = _object(stages.get(Stage.COLLECT, {}).get("sources"))
    node = _object(sources.get("node"))
    gaps = []
    if isinstance(sources.get("start"), str) and sources.get("start") != source.get("pins_sha256"):
        gaps.append("the sources at the start are not the planned ones")
    planned = node_source_digest(_object(source.get("pins")))
    if node and [node.get("start"), node.get("end")] != [planned, planned]:
        gaps.append("the sources that the node ran are not the planned ones")
    return gaps


def _findings(look: Facts) -> list[str]:
    findings = []
    for name, word in (("remaining", "found something left"), ("unknown", "could not tell everything")):
        value = look.get(name)
        if not isinstance(value, list):
            findings.append(f"does not say what is {name}")
        elif value:
            findings.append(f"{word}: {str(value[0])[:120]}")
    return findings


def _time(value: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def _object(value: object) -> Facts:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
