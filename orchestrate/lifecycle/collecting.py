"""What came home of a run: every evidence file by digest, and each cell judged by its own rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrate.errors import ReceiptError
from orchestrate.lifecycle.divergence import first_divergence
from orchestrate.lifecycle.journal import JournalView
from orchestrate.lifecycle.outcome import BY_STATUS, Cause
from orchestrate.lifecycle.plan import Plan
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.lifecycle.source import changed_files
from orchestrate.receipts.canonical import canonical_bytes, sha256_hex
from orchestrate.receipts.completeness import CellJudgement
from orchestrate.receipts.files import read_file
from orchestrate.receipts.group_evidence import Groups
from orchestrate.receipts.judgement import node_source_digest
from orchestrate.receipts.record import load_record
from orchestrate.receipts.statement import Subject
from orchestrate.verdict import Verdict

__all__ = ["CellWord", "Collected", "collect_evidence", "node_words"]


@dataclass(frozen=True, slots=True)
class CellWord:
    """The node's word on one cell: its status, why, and which cells ran beside it."""

    key: str
    status: str
    reason: str
    ran_with: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Collected:
    """The evidence of a run as it lies in its directory.

    `device` is what the node found (`none` before any node did). `changed` are the source files whose digest is not
    the planned one any more, or that the node saw change. `groups` are a qualification's, None where cells ran.
    """

    device: str
    words: tuple[CellWord, ...]
    cells: tuple[CellJudgement, ...]
    subjects: tuple[Subject, ...]
    files: int
    bytes: int
    changed: tuple[str, ...]
    sources: Mapping[str, Any]
    groups: Groups | None = None

    @property
    def complete(self) -> int:
        """How many cells are complete by their rows."""
        return sum(cell.complete for cell in self.cells)

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is missing, cell by cell."""
        gaps = tuple(f"{cell.key}: {cell.missing[0]}" for cell in self.cells if not cell.complete)
        if self.sources["end"] is None:
            gaps = (*gaps, "nobody looked whether the sources stayed the same")
        return gaps or (() if self.cells else ("no cell was expected",))

    @property
    def told(self) -> tuple[Cause, ...]:
        """Why what is not complete is not: a group's own report knows more than the node, which knows more of cells."""
        if self.groups is not None:
            return tuple(Cause(verdict, said) for verdict, said in self.groups.causes)
        return tuple(
            Cause(BY_STATUS.get(word.status, Verdict.INCOMPLETE), f"{word.key}: {word.reason}")
            for word in self.words
            if word.reason
        )

    def as_facts(self, problem: str | None) -> dict[str, Any]:
        """The facts of the collect receipt."""
        return {
            "device": self.device,
            "cells": [
                {
                    "key": cell.key,
                    "status": word.status,
                    "complete": cell.complete,
                    "rows": cell.rows,
                    "missing": list(cell.missing),
                    **({"reason": word.reason} if word.status == "hung" else {}),
                }
                for cell, word in zip(self.cells, self.words, strict=True)
            ],
            "sources": dict(self.sources),
            "files": self.files,
            "bytes": self.bytes,
            "problem": problem,
        }


def collect_evidence(run: RunDirectory, plan: Plan, journal: JournalView, pins: Mapping[str, str] | None) -> Collected:
    """Judge what is in the run directory now.

    `pins` are the digests of the source files as they are now, None where they can not be known.
    """
    record = load_record(run.path)
    evidence = record.evidence
    planned = plan.tree["source"]["pins"]
    changed = [] if pins is None else list(changed_files(planned, pins))
    node_sources = record.node.get("sources")
    seen = node_sources if isinstance(node_sources, dict) else {}
    expected = node_source_digest(planned)
    start = str(plan.tree["source"]["pins_sha256"])
    end: str | None
    if pins is not None:
        end = sha256_hex(canonical_bytes(dict(pins)))
    else:  # who looks from elsewhere, or later, has only the node's word
        end = start if seen.get("end") == expected else None
    if seen and seen.get("start") != expected:
        changed.append("(the node ran other files than the planned ones)")
    if seen.get("start") != seen.get("end"):
        changed.append("(seen by the node)")
        end = f"changed on the node: {seen.get('end')}"
    return Collected(
        device=_device(run, plan, record.evidence_attempts),
        words=tuple(_with_divergence(run, record.evidence_attempts, word) for word in node_words(run, plan, journal)),
        cells=record.cells,
        subjects=tuple(Subject(name, record.digests[name]) for name in sorted(evidence) if name in record.digests),
        files=len(evidence),
        bytes=sum(evidence.values()),
        changed=tuple(changed),
        sources={"start": start, "end": end, "node": seen or None},
        groups=record.groups,
    )


def node_words(run: RunDirectory, plan: Plan, journal: JournalView) -> tuple[CellWord, ...]:
    """The node's word on each expected cell: from its final account, else from the progress that reached the journal.

    A cell that it began and never ended was `interrupted`, one that it never began is `not-run`. Where a later attempt
    ran a cell again, the later word counts.
    """
    words: dict[str, Mapping[str, Any]] = {}
    for attempt, records in journal.attempts:
        for record in records.all("cell"):
            status = record.facts.get("status") if record.facts.get("event") == "cell-ended" else "interrupted"
            words[str(record.facts.get("cell"))] = {**record.facts, "status": status}
        words.update(_account(run.evidence_of(attempt)))
    return tuple(_word(key, words.get(key, {})) for key in plan.cells)


def _with_divergence(run: RunDirectory, attempts: Sequence[int], word: CellWord) -> CellWord:
    """The word on a hung cell with the first collective that its ranks disagree about."""
    if word.status != "hung" or not attempts:
        return word
    said = first_divergence(run.evidence_of(attempts[-1]), word.key)
    return replace(word, reason=f"{word.reason}; {said}" if word.reason else said)


def _account(evidence: Path) -> dict[str, Mapping[str, Any]]:
    """The cells of the final account that a node left in its evidence."""
    try:
        node = json.loads(read_file(evidence, "node.json", limit=_MAX_BYTES))
    except (OSError, ValueError, RecursionError, ReceiptError):
        return {}
    cells = node.get("cells") if isinstance(node, dict) else None
    listed = [cell for cell in cells if isinstance(cell, dict)] if isinstance(cells, list) else []
    return {cell["key"]: cell for cell in listed if isinstance(cell.get("key"), str)}


def _word(key: str, said: Mapping[str, Any]) -> CellWord:
    beside = said.get("ran_with")
    ran_with = tuple(str(other) for other in beside) if isinstance(beside, list) else ()
    return CellWord(key, str(said.get("status") or "not-run"), str(said.get("reason") or ""), ran_with)


def _device(run: RunDirectory, plan: Plan, attempts: Sequence[int]) -> str:
    for attempt in reversed(attempts):
        try:
            device = json.loads(read_file(run.evidence_of(attempt), "preflight.json", limit=_MAX_BYTES))["device"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError, ReceiptError):
            continue
        return device if isinstance(device, str) else plan.device
    return plan.device if attempts else "none"


_MAX_BYTES = 16 << 20
