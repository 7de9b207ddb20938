"""Whether everything else that a passed run left says so too: node, journal, run and collect receipt, plan, times.

The verdict itself is recomputed in `judgement`. What is here are second accounts of the same run; one that says
something else is a contradiction, and a run that contradicts itself has not passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from orchestrate.receipts.attempts import evidence_folder
from orchestrate.receipts.judgement import node_source_digest
from orchestrate.receipts.record import RunRecord
from orchestrate.receipts.statement import Receipt, Stage

__all__ = ["second_accounts", "time_gaps"]

_SLACK = timedelta(seconds=1)


def second_accounts(record: RunRecord, closure: Receipt) -> list[str]:
    """Each account in the run that does not agree with `closure` saying passed; empty when all of them do."""
    keys = [cell.key for cell in record.cells]
    found = [
        *_node(record, keys),
        *_receipts(record, closure, keys),
        *_plan(record),
        *_journal(record),
        *_looks(record),
    ]
    return [f"the verdict is passed, but {gap}" for gap in found]


def time_gaps(record: RunRecord) -> list[str]:
    """The receipts that end before they start."""
    return [
        f"the {receipt.stage} receipt {receipt.sha256[:12]} ends before it starts"
        for receipt in record.receipts
        if receipt.ended_at < receipt.started_at
    ]


def _node(record: RunRecord, keys: list[str]) -> Iterator[str]:
    """What the nodes say of the cells whose evidence counts; the newest one must say that it ended well."""
    newest = record.evidence_attempts[-1] if record.evidence_attempts else 1
    for attempt in sorted({newest, *record.counted.values()}):
        folder, node = evidence_folder(attempt), record.nodes.get(attempt, {})
        if f"{folder}/preflight.json" not in record.files:
            yield f"there is no {folder}/preflight.json"
        if not node:
            yield f"there is no {folder}/node.json"
            continue
        ours = [key for key in keys if record.counted.get(key) == attempt]
        yield from _one_node(record, attempt, node, ours, is_newest=attempt == newest)


def _one_node(
    record: RunRecord, attempt: int, node: Mapping[str, Any], keys: list[str], *, is_newest: bool
) -> Iterator[str]:
    who = "the node" if attempt == 1 else f"the node of attempt {attempt}"
    if node.get("run_id") != record.plan.get("run_id"):
        yield f"{who} ran {node.get('run_id')!r}"
    if is_newest:
        if node.get("exit_code") != 0 or isinstance(node.get("exit_code"), bool):
            yield f"{who} says that its exit code was {node.get('exit_code')!r}"
        if node.get("stopped") is not None:
            yield f"{who} says that it was stopped: {node.get('stopped')!r}"
    yield from _node_sources(record, who, node)
    cells = [cell for cell in _objects(node.get("cells")) if is_newest or cell.get("key") in keys]
    yield from _statuses(who, {"cells": cells}, keys)
    for cell in cells:
        if cell.get("exit_code") not in (None, 0) or cell.get("signal") is not None:
            yield f"{who} says that {cell.get('key')!r} ended with {cell.get('exit_code')!r}, {cell.get('signal')!r}"


def _node_sources(record: RunRecord, who: str, node: Mapping[str, Any]) -> Iterator[str]:
    """Evidence of other source files than the planned ones is evidence of another commit."""
    source, sources = record.plan.get("source"), node.get("sources")
    if not isinstance(source, Mapping) or not isinstance(source.get("pins"), Mapping) or not isinstance(sources, dict):
        return
    planned = node_source_digest(source["pins"])
    if [sources.get("start"), sources.get("end")] != [planned, planned]:
        yield f"{who} ran other source files than the planned ones"


def _receipts(record: RunRecord, closure: Receipt, keys: list[str]) -> Iterator[str]:
    run, collect = record.stages.get(Stage.RUN, {}), record.stages.get(Stage.COLLECT, {})
    yield from _statuses("the run receipt", run, keys)
    yield from _statuses("the collect receipt", collect, keys)
    if run.get("fault") is not None:
        yield f"the run receipt has the fault {run.get('fault')!r}"
    if collect.get("problem") is not None:
        yield f"the collect receipt has the problem {collect.get('problem')!r}"
    for cell in _objects(collect.get("cells")):
        if cell.get("missing"):
            yield f"the collect receipt says that {cell.get('key')!r} misses {cell.get('missing')!r}"
    admitted, required = record.stages.get(Stage.ADMIT, {}).get("device"), record.plan.get("device_required")
    if admitted != required:
        yield f"the device {admitted!r} was admitted, the plan asks for {required!r}"
    teardown = closure.facts.get("teardown", {"confirmed": True})
    said = teardown if isinstance(teardown, Mapping) else {}
    if said.get("confirmed") is not True or said.get("remaining") or said.get("unknown"):
        yield f"the closure says of the teardown {teardown!r}"


def _statuses(who: str, facts: Mapping[str, Any], keys: list[str]) -> Iterator[str]:
    cells = _objects(facts.get("cells"))
    if sorted(str(cell.get("key")) for cell in cells) != sorted(keys):
        yield f"{who} does not name exactly the cells of the plan"
    for cell in cells:
        if cell.get("status") != "complete":
            yield f"{who} says that {cell.get('key')!r} ended as {cell.get('status')!r}"


def _plan(record: RunRecord) -> Iterator[str]:
    plan = record.plan
    source = plan.get("source")
    if not isinstance(source, Mapping) or not isinstance(source.get("pins"), Mapping) or not source["pins"]:
        yield "the plan pins no source file"
    environment = plan.get("environment")
    given = environment if isinstance(environment, Mapping) else {}
    for name, ours in (
        ("REPEAT", plan.get("repeat")),
        ("SCHEDULE", plan.get("schedule", "fixed")),
        ("CELL_SET", plan.get("cell_set")),
        ("RUN_ID", plan.get("run_id")),
    ):
        if name in given and given[name] != str(ours):
            yield f"the plan gives the node {name}={given[name]!r} and says {ours!r}"


def _journal(record: RunRecord) -> Iterator[str]:
    if record.journal is None:
        return
    ends = [each.facts for each in record.journal.current.all("run-ended")]
    if not ends:
        yield "the journal does not say how the payload ended"
    for facts in ends:
        if facts.get("ended") != "by-itself" or facts.get("exit_code") != 0 or facts.get("fault") is not None:
            yield f"the journal says that the payload ended {facts.get('ended')!r}, {facts.get('exit_code')!r}"
    for attempt, records in record.journal.attempts:
        for each in records.all("cell"):
            counts = record.counted.get(str(each.facts.get("cell")), attempt) == attempt
            if counts and each.facts.get("status", "complete") not in (None, "complete"):
                yield f"the journal says that {each.facts.get('cell')!r} ended as {each.facts.get('status')!r}"


def _looks(record: RunRecord) -> Iterator[str]:
    taken = next((receipt for receipt in reversed(record.receipts) if receipt.stage is Stage.CENSUS), None)
    if taken is None:
        return
    for look in _objects(taken.facts.get("looks")):
        at = _time(look.get("at"))
        if at is not None and not taken.started_at - _SLACK <= at <= taken.ended_at + _SLACK:
            yield f"a look of the census was at {look.get('at')}, outside of the time of the census"


def _time(value: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
