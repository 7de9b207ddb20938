"""The journal as verification sees it: lines that each name the digest of the line before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrate.errors import ReceiptError
from orchestrate.receipts.canonical import parse_strict, sha256_hex

__all__ = ["JournalChain", "JournalRecord", "read_journal"]


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One record: its place, its time as written, its kind, all of it, and the digest of its line."""

    seq: int
    at: str
    kind: str
    tree: dict[str, Any]
    sha256: str


@dataclass(frozen=True, slots=True)
class JournalChain:
    """The records of a journal whose chain holds. `torn` says that a last line without a newline was left out."""

    records: tuple[JournalRecord, ...]
    torn: bool

    def head(self, records: int) -> str | None:
        """The digest of the record that closes the first `records` ones; None when there are fewer."""
        return self.records[records - 1].sha256 if 1 <= records <= len(self.records) else None


def read_journal(data: bytes) -> JournalChain:
    """The chain of `data`, the bytes of `journal.jsonl`; a `ReceiptError` names the first line that breaks it."""
    *lines, rest = data.split(b"\n")
    records: list[JournalRecord] = []
    for number, line in enumerate(lines, start=1):
        what = f"journal line {number}"
        tree = parse_strict(line, what=what)
        previous = records[-1].sha256 if records else None
        if not isinstance(tree, dict) or not isinstance(tree.get("kind"), str) or not isinstance(tree.get("at"), str):
            raise _broken(what, "it is not a record with a kind and a time")
        if tree.get("seq") != number - 1 and tree.get("seq") != number:
            raise _broken(what, f"its number is {tree.get('seq')!r}")
        if records and tree.get("prev") != previous:
            raise _broken(what, "it does not follow the line before it")
        records.append(JournalRecord(number, tree["at"], tree["kind"], tree, sha256_hex(line)))
    return JournalChain(tuple(records), torn=bool(rest))


def _broken(what: str, why: str) -> ReceiptError:
    return ReceiptError(f"{what}: {why}", remedy="the journal was damaged or edited; compare with a copy")
