"""One receipt: an in-toto Statement v1 about one stage of one run.

>>> made = statement(
...     Stage.PLAN, run_id="r20260101-000000-abcdef", attempt=1, previous=None,
...     started_at="2026-01-01T00:00:00Z", ended_at="2026-01-01T00:00:01Z",
...     facts={"plan_sha256": "0" * 64}, subjects=[Subject("plan.json", "0" * 64)],
... )
>>> made["predicateType"]
'urn:orchestrate:receipt:plan:v1'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from orchestrate.errors import ReceiptError
from orchestrate.receipts.canonical import canonical_bytes, parse_canonical, sha256_hex

__all__ = ["RECEIPT_SCHEMA", "STATEMENT_TYPE", "Receipt", "Stage", "Subject", "is_safe_name", "parse", "statement"]

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
RECEIPT_SCHEMA = "orchestrate.receipt/1"


class Stage(StrEnum):
    """The stages of a run, in the order in which they happen."""

    PLAN = "plan"
    ADMIT = "admit"
    ACQUIRE = "acquire"
    RUN = "run"
    COLLECT = "collect"
    TEARDOWN = "teardown"
    CENSUS = "census"
    CLOSURE = "closure"

    @property
    def predicate_type(self) -> str:
        """The in-toto predicate type of a receipt of this stage."""
        return f"urn:orchestrate:receipt:{self.value}:v1"


@dataclass(frozen=True, slots=True)
class Subject:
    """A file that a receipt binds: its path inside the run directory, and its SHA-256."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """A parsed receipt. `previous` is the digest of the receipt written before it, None for the first of a run."""

    sha256: str
    stage: Stage
    run_id: str
    attempt: int
    previous: str | None
    started_at: datetime
    ended_at: datetime
    facts: Mapping[str, Any]
    subjects: tuple[Subject, ...]


def statement(
    stage: Stage,
    *,
    run_id: str,
    attempt: int,
    previous: str | None,
    started_at: str,
    ended_at: str,
    facts: Mapping[str, Any],
    subjects: Iterable[Subject],
) -> dict[str, Any]:
    """The in-toto Statement v1 of one stage, ready for `ReceiptStore.put`.

    Every receipt needs a subject (in-toto demands one): `plan.json` is what a stage without files of its own binds.
    Times are RFC 3339 in UTC. Raises `ReceiptError` when a field is not what `parse` would accept again.
    """
    made = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": subject.name, "digest": {"sha256": subject.sha256}} for subject in subjects],
        "predicateType": stage.predicate_type,
        "predicate": {
            "schema": RECEIPT_SCHEMA,
            "stage": stage.value,
            "run_id": run_id,
            "attempt": attempt,
            "previous": previous,
            "started_at": started_at,
            "ended_at": ended_at,
            "facts": dict(facts),
        },
    }
    parse(canonical_bytes(made))
    return made


def parse(data: bytes, *, name: str = "the receipt") -> Receipt:
    """The receipt whose canonical bytes are `data`; a `ReceiptError` names what is wrong with `name` otherwise."""
    tree = parse_canonical(data, what=name)
    fields = _object(tree, {"_type", "subject", "predicateType", "predicate"}, name)
    predicate = _object(fields["predicate"], _PREDICATE_FIELDS, f"the predicate of {name}")
    if fields["_type"] != STATEMENT_TYPE:
        raise _wrong(name, f"_type is {fields['_type']!r}, not an in-toto Statement v1")
    if predicate["schema"] != RECEIPT_SCHEMA:
        raise _wrong(name, f"schema is {predicate['schema']!r}, this version reads {RECEIPT_SCHEMA!r}")
    if predicate["stage"] not in list(Stage):
        raise _wrong(name, f"stage is {predicate['stage']!r}, not one of {', '.join(Stage)}")
    stage = Stage(predicate["stage"])
    if fields["predicateType"] != stage.predicate_type:
        raise _wrong(name, f"predicateType {fields['predicateType']!r} is not that of the stage {stage.value!r}")
    attempt = predicate["attempt"]
    if not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 1:
        raise _wrong(name, f"attempt is {attempt!r}, not a number from 1")
    if not isinstance(predicate["facts"], dict):
        raise _wrong(name, "facts is not an object")
    previous = predicate["previous"]
    return Receipt(
        sha256=sha256_hex(data),
        stage=stage,
        run_id=_matching(predicate["run_id"], _RUN_ID, "run_id", name),
        attempt=attempt,
        previous=None if previous is None else _matching(previous, _SHA256, "previous", name),
        started_at=_time(predicate["started_at"], "started_at", name),
        ended_at=_time(predicate["ended_at"], "ended_at", name),
        facts=predicate["facts"],
        subjects=_subjects(fields["subject"], name),
    )


def is_safe_name(name: str) -> bool:
    """Whether `name` is a plain relative path: nothing absolute, no `..`, no control characters, no backslash."""
    return (
        0 < len(name) <= 1024
        and all(part not in {"", ".", ".."} for part in name.split("/"))
        and "\\" not in name
        and name.isprintable()
    )


_PREDICATE_FIELDS = {"schema", "stage", "run_id", "attempt", "previous", "started_at", "ended_at", "facts"}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)")


def _object(value: Any, keys: set[str], what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != keys:
        raise _wrong(what, f"it must be an object with exactly the keys {', '.join(sorted(keys))}")
    return value


def _subjects(value: Any, name: str) -> tuple[Subject, ...]:
    if not isinstance(value, list) or not value:
        raise _wrong(name, "it binds no subject")
    subjects = []
    for item in value:
        digest = _object(item, {"name", "digest"}, f"a subject of {name}")["digest"]
        path = item["name"]
        if not isinstance(path, str) or not is_safe_name(path):
            raise _wrong(name, f"the subject {path!r} is not a plain path inside the run directory")
        sha256 = _object(digest, {"sha256"}, f"the digest of {path!r} in {name}")["sha256"]
        subjects.append(Subject(path, _matching(sha256, _SHA256, f"the digest of {path!r}", name)))
    if len({subject.name for subject in subjects}) != len(subjects):
        raise _wrong(name, "it binds one name twice")
    return tuple(subjects)


def _matching(value: Any, pattern: re.Pattern[str], field: str, name: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _wrong(name, f"{field} is {value!r}, which does not have the form {pattern.pattern}")
    return value


def _time(value: Any, field: str, name: str) -> datetime:
    text = _matching(value, _TIME, field, name)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise _wrong(name, f"{field} is {value!r}: {error}") from error


def _wrong(name: str, what: str) -> ReceiptError:
    return ReceiptError(f"{name}: {what}", remedy="receipts are written once and never edited; make a new run")
