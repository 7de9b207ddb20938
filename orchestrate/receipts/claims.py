"""What a record proves and what it does not, in sentences for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrate.receipts.attempts import attempt_of_evidence
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
    count = sum(cell.complete for cell in record.cells)
    often = f"{record.plan.get('repeat')} times"
    if record.plan.get("schedule") == "racing":
        often += ", or until the rule of the race had decided against it (decided again here)"
    complete = (
        f"{count} of {len(record.cells)} expected cells are complete by their own rows: every mandatory candidate "
        f"and automatic measured {often}, in rounds in which no rank compiled anything, each admitted and unsplit"
    )
    if record.groups is not None:
        tests = sum(judgement.counts.passed for judgement in record.groups.judgements if judgement.counts is not None)
        complete = (
            f"{count} of {len(record.cells)} expected groups passed by their own reports, {tests} tests in all, on the "
            f"files of the commit {record.plan.get('source', {}).get('commit')}, unchanged from start to end"
        )
    facts = closure.facts
    said = [
        f"{len(record.receipts)} receipts form one unbroken chain that ends in the closure {closure.sha256}",
        f"plan, {len(evidence)} evidence files and the journal up to the closure are byte for byte what was closed",
        complete,
        f"the verdict {facts.get('verdict')} follows from these facts",
    ]
    census = record.stages.get(Stage.CENSUS)
    if census is not None and not census_gaps(census):
        said.append(f"two looks ({census.get('path')}) found nothing of this run left")
    if facts.get("test_verdict") == "passed" and _node_told_its_sources(record):
        said.append("the node digested its own sources at start and end, and they are the planned files")
    if facts.get("commit") and facts.get("dirty") is False:
        said.append(f"the plan names the commit {facts.get('commit')} with a clean tree")
    return tuple(said)


def not_proven(
    record: RunRecord, uncovered: tuple[str, ...], *, pinned: bool, signed_by: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """What a reader may not conclude.

    `pinned` says that the closure was compared with a digest from elsewhere, `signed_by` which keys, given by the
    reader, signed it.
    """
    closure = record.closure
    facts = closure.facts if closure else {}
    if signed_by:
        keys = ", ".join(key[:16] for key in signed_by)
        said = [f"who measured: the closure is signed by {keys}, and whoever holds that key could sign anything"]
    elif any(name.startswith(f"{SIGNATURES}/") for name in record.files):
        said = ["who made it: there are signatures, and none was checked (--require-signature KEY does)"]
    else:
        said = ["who made it: the receipts are not signed, and whoever holds the files can recompute the whole chain"]
    if pinned:
        said[0] += " (the expected closure pins these files to the digest that you gave)"
    else:
        said.append(
            "that this is the run you saw, or its newest state (later closures may have been taken away): give "
            "--expect-closure with the digest noted when the run ended"
        )
    said.append("that the node measured honestly: whoever ran it could have written other rows")
    if facts.get("device") != "h200":
        said.append(f"no GPU evidence: the run was on {_text(facts.get('device')) or 'an unknown device'}")
    if not facts.get("commit"):
        said.append("which commit ran: the plan names none")
    elif facts.get("dirty") is not False:
        said.append(f"that the commit {facts.get('commit')} is what ran: the tree had changes")
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


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
