"""The journal as bytes: lines of canonical JSON that each name the digest of the line before.

Each record holds `seq` (from 1), `at`, `kind`, `prev` (the SHA-256 of the line before, None for the first), its
`facts`, and `sum`, the SHA-256 of the record without `sum`, so that damage in the last line shows as well. A last line
without its newline is torn: whoever wrote it did not live to see it on disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrate.errors import ReceiptError
from orchestrate.receipts.canonical import canonical_bytes, parse_canonical, sha256_hex

__all__ = [
    "ATTEMPT_KIND",
    "MAX_RECORD_BYTES",
    "DamagedLineError",
    "JournalRecord",
    "JournalView",
    "decode_record",
    "encode_record",
    "parse_journal",
    "read_journal",
]

MAX_RECORD_BYTES = 4 << 20

ATTEMPT_KIND = "attempt"
"""The record with which every attempt after the first begins; its facts have the attempt's number."""


class DamagedLineError(ValueError):
    """Line `number` of a journal, its bytes `begin` to `end`, is not what it should be; `place` is the very byte."""

    def __init__(self, number: int, begin: int, end: int, place: int, why: str) -> None:
        super().__init__(why)
        self.number, self.begin, self.end, self.place, self.why = number, begin, end, place, why


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One line of a journal. `sha256` is the digest of the line without its newline."""

    seq: int
    at: str
    kind: str
    facts: Mapping[str, Any]
    sha256: str


@dataclass(frozen=True, slots=True)
class JournalView:
    """A journal as it was read. `torn_bytes` were left out at its end; `good_bytes` precede them."""

    records: tuple[JournalRecord, ...]
    good_bytes: int
    torn_bytes: int

    @property
    def head(self) -> str | None:
        """The digest of the last line; None for an empty journal."""
        return self.records[-1].sha256 if self.records else None

    def head_of(self, count: int) -> str | None:
        """The digest of the record that closes the first `count` ones; None when there are fewer."""
        return self.records[count - 1].sha256 if 1 <= count <= len(self.records) else None

    def last(self, *kinds: str) -> JournalRecord | None:
        """The newest record of one of these kinds."""
        return next((record for record in reversed(self.records) if record.kind in kinds), None)

    def all(self, *kinds: str) -> tuple[JournalRecord, ...]:
        """Every record of one of these kinds, oldest first."""
        return tuple(record for record in self.records if record.kind in kinds)

    @property
    def attempts(self) -> tuple[tuple[int, JournalView], ...]:
        """Each attempt's number and records; the first begins with the journal, each other one with its own record."""
        cuts: list[tuple[int, list[JournalRecord]]] = [(1, [])]
        for record in self.records:
            if record.kind == ATTEMPT_KIND:
                cuts.append((_number(record, cuts[-1][0] + 1), []))
            cuts[-1][1].append(record)
        return tuple((number, JournalView(tuple(records), 0, 0)) for number, records in cuts)

    @property
    def current(self) -> JournalView:
        """The records of the newest attempt."""
        return self.attempts[-1][1]


def read_journal(data: bytes) -> JournalView:
    """The chain of `data`, the bytes of a `journal.jsonl` that anybody may have written.

    A `ReceiptError` names the first line that breaks it, or that is not in the canonical form.
    """
    try:
        view = parse_journal(data)
        for number, line in enumerate(data.split(b"\n")[:-1], start=1):
            parse_canonical(line, what=f"journal line {number}")
    except DamagedLineError as error:
        raise ReceiptError(
            f"journal line {error.number}: {error.why}",
            remedy="the journal was damaged or edited; compare with a copy",
        ) from error
    return view


def parse_journal(data: bytes) -> JournalView:
    """The records of `data`, each checked by its sum and the one before it; `DamagedLineError` at the first bad one."""
    records: list[JournalRecord] = []
    offset = 0
    prev: str | None = None
    while (end := data.find(b"\n", offset)) >= 0:
        try:
            record = decode_record(data[offset:end], seq=len(records) + 1, prev=prev)
        except (ValueError, RecursionError) as error:
            place = offset + error.pos if isinstance(error, json.JSONDecodeError) else offset
            raise DamagedLineError(len(records) + 1, offset, end, place, str(error)) from error
        records.append(record)
        prev = record.sha256
        offset = end + 1
    return JournalView(tuple(records), good_bytes=offset, torn_bytes=len(data) - offset)


def encode_record(
    seq: int, at: str, kind: str, prev: str | None, facts: Mapping[str, Any]
) -> tuple[JournalRecord, bytes]:
    """A record and its line, with the newline."""
    tree = {"seq": seq, "at": at, "kind": kind, "prev": prev, "facts": facts}
    tree["sum"] = sha256_hex(canonical_bytes(tree))
    line = canonical_bytes(tree)
    return JournalRecord(seq, at, kind, dict(facts), sha256_hex(line)), line + b"\n"


def decode_record(line: bytes, *, seq: int | None = None, prev: str | None = None) -> JournalRecord:
    """The record on a line; where `seq` is given, it must be that record, and follow the one with digest `prev`.

    `ValueError` says what is wrong.
    """
    if len(line) > MAX_RECORD_BYTES:
        raise ValueError(f"it is longer than {MAX_RECORD_BYTES} bytes")
    # `sum` sorts last in the canonical form, so that the summed bytes are the line without it.
    body, mark, claimed = line[:-_SUM_BYTES], line[-_SUM_BYTES:-66], line[-66:-2]
    tree = json.loads(line)
    if not isinstance(tree, dict) or set(tree) != _KEYS or mark != _SUM_MARK:
        raise ValueError(f"it is not a record with the fields {', '.join(sorted(_KEYS))}")
    if sha256_hex(body + b"}").encode() != claimed:
        raise ValueError("its content is not what its sum says")
    if seq is not None and (tree["seq"] != seq or isinstance(tree["seq"], bool) or tree["prev"] != prev):
        raise ValueError("it does not follow the record before it")
    kind, at, facts = tree["kind"], tree["at"], tree["facts"]
    is_well_typed = isinstance(kind, str) and isinstance(at, str) and isinstance(facts, dict)
    if not is_well_typed:
        raise ValueError("its kind, time or facts are not what they should be")
    return JournalRecord(tree["seq"], at, kind, facts, sha256_hex(line))


_KEYS = {"seq", "at", "kind", "prev", "facts", "sum"}
_SUM_MARK = b',"sum":"'
_SUM_BYTES = len(_SUM_MARK) + 64 + len('"}')


def _number(record: JournalRecord, otherwise: int) -> int:
    number = record.facts.get("attempt")
    return number if isinstance(number, int) and not isinstance(number, bool) else otherwise
