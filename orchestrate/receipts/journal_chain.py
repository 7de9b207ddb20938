"""The journal as verification sees it: lines that each name the digest of the line before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrate.errors import ReceiptError
from orchestrate.receipts.canonical import canonical_bytes, parse_canonical, sha256_hex

__all__ = ["MAX_RECORD_BYTES", "JournalChain", "JournalRecord", "read_journal"]

MAX_RECORD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One record: its place from 1, its time as written, its kind, its facts, and the digest of its line."""

    seq: int
    at: str
    kind: str
    facts: Mapping[str, Any]
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
    """The chain of `data`, the bytes of `journal.jsonl`; a `ReceiptError` names the first line that breaks it.

    Each line is canonical JSON: `seq` from 1, `at`, `kind`, `facts`, `prev` (the digest of the line before, None for
    the first) and `sum` (the digest of the record without `sum`).
    """
    *lines, rest = data.split(b"\n")
    records: list[JournalRecord] = []
    for number, line in enumerate(lines, start=1):
        what = f"journal line {number}"
        if len(line) > MAX_RECORD_BYTES:
            raise _broken(what, f"it is longer than {MAX_RECORD_BYTES} bytes")
        tree = parse_canonical(line, what=what)
        if not isinstance(tree, dict) or set(tree) != _FIELDS:
            raise _broken(what, f"it is not a record with the fields {', '.join(sorted(_FIELDS))}")
        claimed = tree.pop("sum")
        if claimed != sha256_hex(canonical_bytes(tree)):
            raise _broken(what, "its content is not what its sum says")
        if tree["seq"] != number or tree["prev"] != (records[-1].sha256 if records else None):
            raise _broken(what, "it does not follow the line before it")
        kind, at, facts = tree["kind"], tree["at"], tree["facts"]
        if not isinstance(kind, str) or not isinstance(at, str) or not isinstance(facts, dict):
            raise _broken(what, "its kind, time or facts are not what they should be")
        records.append(JournalRecord(number, at, kind, facts, sha256_hex(line)))
    return JournalChain(tuple(records), torn=bool(rest))


_FIELDS = {"seq", "at", "kind", "prev", "facts", "sum"}


def _broken(what: str, why: str) -> ReceiptError:
    return ReceiptError(f"{what}: {why}", remedy="the journal was damaged or edited; compare with a copy")
