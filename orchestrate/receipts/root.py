"""The root closure of several runs: one statement over the newest closure of each, by whoever verified them together.

It is an audit receipt of its own: it says who verified what and when, and what came of it. It edits no run, and a run
that is closed again later is not the one that it names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrate.errors import ReceiptError, UsageError
from orchestrate.receipts.canonical import canonical_bytes, parse_canonical
from orchestrate.receipts.signing import PublicKey, opened_envelope
from orchestrate.receipts.statement import STATEMENT_TYPE
from orchestrate.receipts.verify import Verification
from orchestrate.verdict import Verdict

__all__ = ["ROOT_SCHEMA", "Root", "read_root", "root_problems", "root_statement"]

ROOT_SCHEMA = "orchestrate.root/1"
MAX_ROOT_BYTES = 16 << 20
_PREDICATE_TYPE = "urn:orchestrate:receipt:root:v1"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Root:
    """A root closure that was read: run id to the digest of its closure. `problems` say what is wrong with it."""

    closures: Mapping[str, str]
    problems: tuple[str, ...]


def root_statement(found: Sequence[Verification], *, by: str, at: str, asked: Mapping[str, Any]) -> bytes:
    """The in-toto Statement v1, in canonical JSON, over the runs that were verified.

    Its verdict is the worst of theirs, `incomplete` where one does not hold.

    Args:
        found: at least one, each of another run.
        by: who verified them.
        at: when, RFC 3339.
        asked: what was asked for beside that they hold, as JSON.

    Raises:
        UsageError: a run has no closure, or is named twice.
    """
    closures = [(each.run_id, each.closure_sha256) for each in found]
    if missing := [str(run_id) for run_id, sha256 in closures if sha256 is None or run_id is None]:
        raise UsageError(f"the run {missing[0]} has no closure to be named", remedy="leave it out, or close it first")
    names = [run_id for run_id, _ in closures]
    if twice := [run_id for run_id in names if names.count(run_id) > 1]:
        raise UsageError(f"the run {twice[0]} is named twice", remedy="name each run once")
    verdicts = [each.verdict if each.holds else _worse(each.verdict) for each in found]
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": f"{run_id}/receipts/{sha256}.json", "digest": {"sha256": sha256}}
            for run_id, sha256 in sorted(closures, key=str)
        ],
        "predicateType": _PREDICATE_TYPE,
        "predicate": {
            "schema": ROOT_SCHEMA,
            "by": by,
            "at": at,
            "asked": dict(asked),
            "holds": all(each.holds for each in found),
            "verdict": max(verdicts, key=list(Verdict).index).label,
            "runs": [
                {
                    "run_id": each.run_id,
                    "closure": each.closure_sha256,
                    "holds": each.holds,
                    "verdict": each.verdict.label,
                    "test_verdict": each.test_verdict.label,
                    "device": each.device,
                    "commit": each.commit,
                    "problems": list(each.problems[:10]),
                }
                for each in sorted(found, key=lambda each: str(each.run_id))
            ],
        },
    }
    return canonical_bytes(statement)


def _worse(verdict: Verdict) -> Verdict:
    return max(verdict, Verdict.INCOMPLETE, key=list(Verdict).index)


def read_root(data: bytes, keys: Sequence[PublicKey]) -> Root:
    """The root closure in a file, alone or in a DSSE envelope, which each of `keys` must have signed.

    Raises:
        ReceiptError: it is none.
    """
    problems: tuple[str, ...] = ()
    if keys or b'"payloadType"' in data:
        data, problems = opened_envelope(data, keys, what="the root closure")
    tree = parse_canonical(data, what="the root closure")
    predicate = tree.get("predicate") if isinstance(tree, dict) else None
    if not isinstance(predicate, dict) or tree.get("predicateType") != _PREDICATE_TYPE:
        raise ReceiptError("that is no root closure", remedy="name the file that `verify --root` wrote")
    if predicate.get("schema") != ROOT_SCHEMA:
        raise ReceiptError(
            f"the root closure has the schema {predicate.get('schema')!r:.100}, this version reads {ROOT_SCHEMA!r}",
            remedy="read it by the version that wrote it",
        )
    rows = predicate.get("runs")
    closures: dict[str, str] = {}
    for row in rows if isinstance(rows, list) else []:
        run_id, sha256 = (row.get("run_id"), row.get("closure")) if isinstance(row, dict) else (None, None)
        if not isinstance(run_id, str) or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise ReceiptError("the root closure has a run without its closure", remedy="verify and write it again")
        closures[run_id] = sha256
    if predicate.get("holds") is not True:
        problems = (*problems, "the root closure says itself that not every run of it held")
    return Root(closures, problems)


def root_problems(root: Root, found: Sequence[Verification]) -> tuple[str, ...]:
    """Why these runs are not the ones of a root closure, each with the closure that it names, and no other."""
    problems = list(root.problems)
    named = {str(each.run_id): each.closure_sha256 for each in found}
    for run_id, sha256 in root.closures.items():
        if run_id not in named:
            problems.append(f"the root closure names the run {run_id}, which is not among these")
        elif named[run_id] != sha256:
            problems.append(f"the run {run_id} has the closure {named[run_id]}, the root closure names {sha256}")
    problems.extend(f"the run {run_id} is not in the root closure" for run_id in named if run_id not in root.closures)
    return tuple(problems)
