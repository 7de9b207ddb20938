"""What a record proves and what it does not, in sentences for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrate.qualify.overview import beside_source, first_files
from orchestrate.receipts.attempts import attempt_of_evidence
from orchestrate.receipts.group_evidence import Groups
from orchestrate.receipts.journal_chain import JournalRecord
from orchestrate.receipts.judgement import census_gaps
from orchestrate.receipts.record import RunRecord
from orchestrate.receipts.signing import SIGNATURES
from orchestrate.receipts.statement import Receipt, Stage

__all__ = ["not_proven", "proven", "records_after", "uncovered_files"]


def uncovered_files(record: RunRecord) -> tuple[str, ...]:
    """The files of the run directory that nothing binds.

    The journal is bound by its own chain, the token by its digest in the plan, an empty lock by being empty, a
    signature by what it signs.
    """
    bound = {subject.name for receipt in record.receipts for subject in receipt.subjects}
    planned = record.plan.get("payload_files")
    bound |= (
        set(planned) if isinstance(planned, dict) else set()
    )  # the plan names their digests, and the reader compared
    covered = bound | {"journal.jsonl", "token"} | {f"receipts/{receipt.sha256}.json" for receipt in record.receipts}
    return tuple(
        name
        for name, size in record.files.items()
        if name not in covered and (name, size) != ("lock", 0) and not name.startswith(f"{SIGNATURES}/")
    )


def proven(record: RunRecord) -> tuple[str, ...]:
    """What the receipts of a record without problems prove; nothing without a closure."""
    closure = record.closure
    if closure is None:
        return ()
    bound = {subject.name for receipt in record.receipts for subject in receipt.subjects}
    evidence = [name for name in bound if attempt_of_evidence(name) is not None]
    closed = f"plan, {len(evidence)} evidence files and the journal" if evidence else "plan and journal"
    facts = closure.facts
    said = [
        f"{len(record.receipts)} receipts form one unbroken chain that ends in the closure {closure.sha256}",
        f"{closed} up to the closure are byte for byte what was closed",
        *(_groups(record, record.groups) if record.groups is not None else _cells(record)),
        f"the verdict {facts.get('verdict')} follows from these facts",
    ]
    census = record.stages.get(Stage.CENSUS)
    if census is not None and not census_gaps(census):
        said.append(f"two looks ({census.get('path')}) found nothing of this run left")
    if facts.get("test_verdict") == "passed" and _node_told_its_sources(record):
        said.append("the node digested its own sources at start and end, and they are the planned files")
    if facts.get("commit") and facts.get("dirty") is False:
        tree = " with a clean tree" if record.groups is None else ", and nothing of the working tree travelled"
        said.append(f"the plan names the commit {facts.get('commit')}{tree}")
    return tuple(said)


def not_proven(
    record: RunRecord, uncovered: tuple[str, ...], *, pinned: bool, signed_by: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """What a reader may not conclude.

    `pinned` says that the closure was compared with a digest from elsewhere, `signed_by` which keys, given by the
    reader, signed it.
    """
    closure = record.closure
    if signed_by:
        keys = ", ".join(key[:16] for key in signed_by)
        said = [f"who made it: the closure is signed by {keys}, and whoever holds that key could sign anything"]
    elif any(name.startswith(f"{SIGNATURES}/") for name in record.files):
        said = ["who made it: there are signatures, and none was checked (--require-signature KEY does)"]
    else:
        said = ["who made it: the receipts are not signed, and whoever holds the files can recompute the whole chain"]
    if pinned:
        said[0] += " (the expected closure pins these files to the digest that you gave)"
    else:
        taken = "a closure" if closure is None else "later closures"
        said.append(
            f"that this is the run you saw, or its newest state ({taken} may have been taken away): give "
            "--expect-closure with the digest noted when the run ended"
        )
    said.extend(_not_proven_of_results(record))
    said.extend(_not_proven_of_groups(record))
    census = record.stages.get(Stage.CENSUS, {})
    if census.get("path") == "via-server":
        said.append("absence at the provider itself: the census asked through SkyPilot's server")
    if closure is not None and (tail := records_after(record, closure)):
        said.append(
            f"what the journal says after the closure ({len(tail)}: {', '.join(later.kind for later in tail[:5])})"
        )
    if record.journal is not None and record.journal.torn_bytes:
        said.append("the last line of the journal: it was cut while it was written, and left out")
    said.extend(
        f"that the cell {_excluded(item)} works: it was excluded" for item in _list(record.plan.get("exclusions"))
    )
    said.extend(f"anything about {name}: no receipt binds it" for name in uncovered[:10])
    if len(uncovered) > 10:
        said.append(f"anything about {len(uncovered) - 10} more files that no receipt binds")
    return tuple(said)


def _cells(record: RunRecord) -> list[str]:
    count, expected = sum(cell.complete for cell in record.cells), len(record.cells)
    if not record.evidence:
        return [f"0 of {expected} expected cells are complete: {_why_none(record)}"]
    if not count:
        return [f"0 of {expected} expected cells are complete by their own rows"]
    often = f"{record.plan.get('repeat')} times"
    if record.plan.get("schedule") == "racing":
        often += ", or until the rule of the race had decided against it (decided again here)"
    said = (
        f"{count} of {expected} expected cells are complete by their own rows: every mandatory candidate "
        f"and automatic measured {often}, in rounds in which no rank compiled anything, each admitted and unsplit"
    )
    return [said]


def _groups(record: RunRecord, groups: Groups) -> list[str]:
    expected = len(record.cells)
    if not record.evidence:
        return [f"0 of {expected} expected groups passed: {_why_none(record)}"]
    passed = [
        judgement.counts for cell, judgement in zip(record.cells, groups.judgements, strict=True) if cell.complete
    ]
    said = f"{len(passed)} of {expected} expected groups passed by their own reports"
    if passed:
        said += f", {sum(counts.passed for counts in passed if counts is not None)} tests in all"
    if None in passed:
        said += f" ({passed.count(None)} of them by exit code alone)"
    if groups.source_gaps or not any(judgement.record.get("started_at") for judgement in groups.judgements):
        return [said]
    commit = _object(record.plan.get("source")).get("commit")
    return [said, f"the groups that were started ran on the files of the commit {commit}, unchanged from start to end"]


def _why_none(record: RunRecord) -> str:
    started = any(receipt.stage is Stage.RUN for receipt in record.receipts)
    return "no evidence of any came home" if started else "no receipt says that any was started"


def _not_proven_of_results(record: RunRecord) -> list[str]:
    """What nobody may conclude about what ran, on what and of which commit; the plan has that, closed or not."""
    source = _object(record.plan.get("source"))
    commit, dirty = _text(source.get("commit")), source.get("dirty")
    of_groups = record.plan.get("payload") == "groups"
    said = []
    if not record.evidence:
        said.append(f"no GPU evidence, nor any other: no {'group' if of_groups else 'cell'} left any")
    else:
        written = "reports" if of_groups else "rows"
        said.append(f"that the node measured honestly: whoever ran it could have written other {written}")
        stated = record.closure.facts if record.closure else record.stages.get(Stage.COLLECT, {})
        device = _text(stated.get("device"))
        if device is None:
            said.append("no GPU evidence: no receipt says on which device the run was")
        elif device != "h200":
            said.append(f"no GPU evidence: the run was on {device}")
    if commit is None:
        said.append("which commit ran: the plan names none")
    elif not record.evidence:
        said.append(f"that the commit {commit} ran: there is no evidence of it")
    elif dirty is not False:
        what = "the tree had changes" if dirty else "nobody knows whether the tree had changes"
        said.append(f"that the commit {commit} is what ran: {what}")
    elif record.closure is None:
        said.append(f"that the commit {commit} is what ran: the run is not closed")
    return said


def _not_proven_of_groups(record: RunRecord) -> list[str]:
    """What of the commit no group saw, and what groups saw that is not of it."""
    said = []
    left_out = _list(_object(record.plan.get("qualified")).get("left_out"))
    if left_out:
        said.append(f"anything about what the archive of the commit leaves out: {first_files(left_out, len(left_out))}")
    judged = record.groups.judgements if record.groups else ()
    name, (count, beside) = max(
        ((each.name, beside_source(each.record)) for each in judged), key=lambda told: told[1][0], default=("", (0, ()))
    )
    if count:
        said.append(
            f"that each group saw the commit's files alone: beside them lay, after {name}, {first_files(beside, count)}"
        )
    return said


def records_after(record: RunRecord, closure: Receipt) -> tuple[JournalRecord, ...]:
    """The journal records that came after the head that `closure` names."""
    claim = closure.facts.get("journal")
    count = claim.get("records") if isinstance(claim, Mapping) else None
    if record.journal is None or not isinstance(count, int) or count < 0:
        return ()
    return record.journal.records[count:]


def _node_told_its_sources(record: RunRecord) -> bool:
    sources = record.stages.get(Stage.COLLECT, {}).get("sources")
    return isinstance(sources, dict) and isinstance(sources.get("node"), dict)


def _excluded(item: object) -> str:
    if isinstance(item, dict):
        return f"{_text(item.get('key'))} ({_text(item.get('reason'))})"
    return repr(item)[:120]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
