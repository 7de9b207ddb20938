"""The files that one job of the gate leaves for the next. What another job wrote is read as a stranger's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrate.clock import from_wire, utc_now
from orchestrate.errors import ReceiptError, UsageError
from orchestrate.gate.asked import look_from
from orchestrate.gate.change import GATE_SCHEMA, Change, Checkout, attempt_of, identity_problems, read_sha
from orchestrate.gate.conclusion import CLOCKS_DIFFER, Classified, Reconciled, Refused
from orchestrate.receipts.canonical import parse_strict
from orchestrate.receipts.files import read_file
from orchestrate.verdict import Verdict

__all__ = [
    "ADMITTED",
    "CLASSIFIED",
    "LAUNCHED",
    "RECONCILED",
    "as_classified",
    "as_reconciled",
    "as_refused",
    "read_record",
    "write_record",
]

CLASSIFIED = "gate.json"
ADMITTED = "admit.json"
LAUNCHED = "launch.json"
RECONCILED = "reconcile.json"
_MAX_BYTES = 1 << 20


def write_record(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Write one record; `UsageError` where the folder can not be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"schema": GATE_SCHEMA, "kind": kind, **content}, sort_keys=True) + "\n")
    except OSError as error:
        raise UsageError(f"{path} can not be written: {error.strerror}", remedy="name another folder") from error


def read_record(path: Path, kind: str) -> dict[str, Any] | None:
    """A record of that kind; None where there is none or it is not one: then nothing is known."""
    try:
        tree = parse_strict(read_file(path.parent, path.name, limit=_MAX_BYTES), what=path.name)
    except (OSError, ReceiptError):
        return None
    is_one = isinstance(tree, dict) and tree.get("schema") == GATE_SCHEMA and tree.get("kind") == kind
    return tree if is_one else None


def as_classified(tree: Mapping[str, Any] | None) -> Classified | None:
    """The first step's record; None where it is not whole."""
    if tree is None:
        return None
    try:
        change, checkout = tree["change"], tree["checkout"]
        base = change["base"]
        texts = (*(change[name] for name in ("repository", "event", "branch")), tree["reason"])
        numbers = (change["run"], change["attempt"])
        if not (
            all(isinstance(text, str) for text in texts)
            and all(type(number) is int and 0 < number < 1 << 62 for number in numbers)
            and type(tree["needed"]) is type(change["from_fork"]) is bool
            and isinstance(checkout["parents"], list)
        ):
            return None
        made = Classified(
            change=Change(
                repository=change["repository"],
                event=change["event"],
                branch=change["branch"],
                head=read_sha("head", change["head"]),
                base=None if base is None else read_sha("base", base),
                tested=read_sha("tested", change["tested"]),
                from_fork=change["from_fork"],
                run=change["run"],
                attempt=change["attempt"],
            ),
            checkout=Checkout(
                commit=read_sha("commit", checkout["commit"]),
                parents=tuple(read_sha("parent", parent) for parent in checkout["parents"]),
                tree=read_sha("tree", checkout["tree"]),
                dirty=checkout["dirty"] is not False,
            ),
            needed=tree["needed"],
            reason=tree["reason"],
            launch=_words(tree.get("launch")),
            audit=_words(tree.get("audit")),
            own_files=_words(tree.get("own_files")) or (),
        )
    except (KeyError, TypeError, ValueError, UsageError):
        return None
    return replace(made, problems=identity_problems(made.change, made.checkout))


def as_reconciled(tree: Mapping[str, Any] | None, change: Change) -> Reconciled | None:
    """The look of a fresh machine after that change's workflow run; None where there is none that is whole."""
    if tree is None or type(tree.get("confirmed")) is not bool:
        return None
    attempt = attempt_of(tree.get("owner"), change.repository, change.run)
    try:
        at = from_wire(str(tree.get("at")))
    except (ValueError, OverflowError):
        return None
    if attempt is None or at > utc_now() + CLOCKS_DIFFER:
        return None
    lists = {name: tree.get(name) for name in ("found", "left", "unknown")}
    if not all(isinstance(rows, list) for rows in lists.values()):
        return None
    words = {name: tuple(str(row) for row in rows or ()) for name, rows in lists.items()}
    confirmed = tree["confirmed"] and not words["left"] and not words["unknown"]
    return Reconciled(confirmed=confirmed, **words, attempt=attempt, at=at, look=look_from(tree.get("look")))


def _words(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError
    return tuple(value)


def as_refused(tree: Mapping[str, Any] | None) -> Refused | None:
    """What the launch said; None where it said nothing that is a verdict."""
    if tree is None:
        return None
    try:
        verdict = Verdict.from_label(str(tree.get("verdict")))
    except ValueError:
        return None
    return Refused(verdict, str(tree.get("reason") or verdict.meaning))
