"""Verification of a run directory, offline: does everything in it say one thing, and does the verdict follow?

Formally: the receipts form one chain that ends in one newest closure; the closure lists them all; every file that a
receipt binds has the bound digest, and no evidence file is unbound; the journal's chain holds and contains the head
that the closure names; the cells are complete exactly as claimed, judged again from their rows; and the verdict
follows from the facts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from orchestrate.receipts.attempts import attempt_of_evidence
from orchestrate.receipts.canonical import canonical_bytes, sha256_hex
from orchestrate.receipts.claims import not_proven, proven, records_after, uncovered_files
from orchestrate.receipts.consistency import second_accounts, time_gaps
from orchestrate.receipts.journal_match import journal_gaps
from orchestrate.receipts.judgement import contradictions
from orchestrate.receipts.record import RunRecord, load_record
from orchestrate.receipts.reviews import (
    WrittenReview,
    measured_verdict,
    review_of,
    reviewed,
    reviews_in,
    written_reviews,
)
from orchestrate.receipts.signing import PublicKey, SignatureCheck, check_signatures
from orchestrate.receipts.statement import Receipt, Stage
from orchestrate.verdict import Verdict

__all__ = ["Verification", "verify_record", "verify_run"]

BENIGN_RECORDS = frozenset({"note", "closure"})
"""Journal kinds that may follow the newest closure: they say that it was written, or change nothing."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer of `verify`.

    `holds` says that the receipts are whole and truly say `verdict`; it does not say that the run passed. `problems`
    is empty exactly when `holds`. `uncovered` are the files of the run directory that no digest binds. `commit`,
    `device` and the verdicts are what the newest closure says (None, `unknown` and `incomplete` without one). `reviews`
    are all that were said of it, in order, and `by_review` which one the verdict stands by, empty where it is the run's
    own. `doubt` says why the verdict is no more than a claim of the files; empty where it can be relied on.
    """

    holds: bool
    run_id: str | None
    verdict: Verdict
    test_verdict: Verdict
    closure_sha256: str | None
    device: str
    commit: str | None
    proves: tuple[str, ...]
    does_not_prove: tuple[str, ...]
    problems: tuple[str, ...]
    uncovered: tuple[str, ...]
    reviews: tuple[WrittenReview, ...] = ()
    by_review: str = ""
    doubt: str = ""

    @property
    def meaning(self) -> str:
        """One line for people: what the verdict means, by which review it stands, or that the files only claim it."""
        if self.doubt:
            return f"the files claim {self.verdict}, but {self.doubt}"
        return self.by_review or self.verdict.meaning

    def as_json(self) -> dict[str, Any]:
        """The answer of `verify --json`."""
        return {
            "holds": self.holds,
            "run_id": self.run_id,
            "verdict": self.verdict.label,
            "test_verdict": self.test_verdict.label,
            "closure_sha256": self.closure_sha256,
            "device": self.device,
            "commit": self.commit,
            "proves": list(self.proves),
            "does_not_prove": list(self.does_not_prove),
            "problems": list(self.problems),
            "uncovered": list(self.uncovered),
            "reviews": [each.as_json() for each in self.reviews],
            "by_review": self.by_review or None,
        }


def verify_run(
    run_dir: Path,
    *,
    expect_closure: str | None = None,
    expect_commit: str | None = None,
    require_passed: bool = False,
    require_signatures: Sequence[PublicKey] = (),
) -> Verification:
    """Verify the run directory `run_dir` offline, following no link and trusting no file.

    Args:
        run_dir: the run directory, on this machine or fetched from elsewhere.
        expect_closure: the SHA-256 that the newest closure must have, as noted when the run ended.
        expect_commit: the commit (full, or at least 7 hex digits) that must have run, with a clean tree.
        require_passed: the verdict must be `passed` as well.
        require_signatures: the newest closure must be signed by each of these keys. Which reviews are is told.
    """
    record = load_record(run_dir)
    signatures, signed = None, set[str]()
    if require_signatures and record.closure is not None:
        signatures = check_signatures(run_dir, record.closure.sha256, require_signatures)
        reviews = [closure.sha256 for closure in record.closures if review_of(closure) is not None]
        signed = {each for each in reviews if check_signatures(run_dir, each, require_signatures).signed_by}
    return verify_record(
        record,
        expect_closure=expect_closure,
        expect_commit=expect_commit,
        require_passed=require_passed,
        signatures=signatures,
        signed=signed,
    )


def verify_record(
    record: RunRecord,
    *,
    expect_closure: str | None = None,
    expect_commit: str | None = None,
    require_passed: bool = False,
    signatures: SignatureCheck | None = None,
    signed: Collection[str] = (),
) -> Verification:
    """`verify_run` on a record that was read already, and whose signatures were checked already where they matter.

    `signed` are the closures with a review that were found to be signed.
    """
    problems = list(record.problems)
    problems.extend(_identity(record))
    problems.extend(_order(record.receipts))
    problems.extend(time_gaps(record))
    problems.extend(_plan(record))
    problems.extend(_bound_files(record))
    problems.extend(_collected(record))
    problems.extend(journal_gaps(record))
    for before, closed in zip((None, *record.closures), record.closures, strict=False):
        problems.extend(_closure(record, closed, before))
    closure = record.closure
    facts = closure.facts if closure else {}
    by_review = ""
    if closure is None:
        problems.append("the run has no closure: it is incomplete")
    else:
        measured, by_review = _before_reviews(record, closure, problems)
        problems.extend(contradictions(measured, record.stages, record.cells))
        if measured.get("verdict") == Verdict.PASSED.label:
            problems.extend(second_accounts(record, closure))
        problems.extend(_device(record, facts))
        problems.extend(_journal_tail(record, closure))
    doubt = "they do not fit together: nothing in them can be relied on" if problems and closure is not None else ""
    problems.extend(_expectations(record, expect_closure, expect_commit))
    verdict, tests = _verdict(facts.get("verdict")), _verdict(facts.get("test_verdict"))
    if signatures is not None:
        problems.extend(signatures.problems)
    if problems and closure is not None:
        doubt = doubt or "they are not what was asked for"
    if require_passed and verdict is not Verdict.PASSED:
        problems.append(f"the verdict is {verdict}, and passed is required")
    problems = list(dict.fromkeys(_one_line(problem) for problem in problems))
    uncovered = uncovered_files(record)
    return Verification(
        holds=not problems,
        run_id=_text(record.plan.get("run_id")) or (closure.run_id if closure else None),
        verdict=verdict,
        test_verdict=tests,
        closure_sha256=closure.sha256 if closure else None,
        device=_text(facts.get("device")) or "unknown",
        commit=_text(facts.get("commit")),
        proves=proven(record) if not problems else (),
        does_not_prove=not_proven(
            record,
            uncovered,
            pinned=expect_closure is not None,
            signed_by=() if signatures is None else signatures.signed_by,
        ),
        problems=tuple(problems),
        uncovered=uncovered,
        reviews=written_reviews(record.closures, record.files, signed),
        by_review=by_review,
        doubt=doubt,
    )


def _before_reviews(record: RunRecord, closure: Receipt, problems: list[str]) -> tuple[Mapping[str, Any], str]:
    """The newest closure's facts as they would be without any review, and which one its verdict stands by.

    What the reviews make of the facts is checked.
    """
    reviews = reviews_in(record.receipts)
    if not reviews:
        return closure.facts, ""
    measured = measured_verdict(closure.facts)
    verdict, told = reviewed(measured, reviews)
    if closure.facts.get("verdict") != verdict.label or closure.facts.get("exit_code") != verdict.exit_code:
        problems.append(
            f"with its {len(reviews)} reviews the verdict is {verdict}, not {closure.facts.get('verdict')!r}"
        )
    return {**closure.facts, "verdict": measured.label, "exit_code": measured.exit_code}, told


def _identity(record: RunRecord) -> list[str]:
    ids = {receipt.run_id for receipt in record.receipts}
    named = record.plan.get("run_id")
    return [f"a receipt of the run {run_id!r} lies in the run {named!r}" for run_id in sorted(ids) if run_id != named]


def _order(receipts: tuple[Receipt, ...]) -> list[str]:
    if not receipts:
        return []
    found = []
    if receipts[0].stage is not Stage.PLAN or any(receipt.stage is Stage.PLAN for receipt in receipts[1:]):
        found.append("the chain does not begin with its only plan receipt")
    order = list(Stage)
    for earlier, later in pairwise(receipts):
        again = later.attempt > earlier.attempt or earlier.stage is Stage.CLOSURE
        if later.attempt < earlier.attempt or not (again or order.index(later.stage) > order.index(earlier.stage)):
            found.append(f"the {later.stage} receipt {later.sha256[:12]} can not follow a {earlier.stage} receipt")
    return found


def _plan(record: RunRecord) -> list[str]:
    first = record.stages.get(Stage.PLAN)
    if first is None or not record.plan:
        return []
    found = []
    if first.get("plan_sha256") != record.digests.get("plan.json"):
        found.append("plan.json is not the plan that the plan receipt binds")
    if first.get("plan") != record.plan:
        found.append("the plan in the plan receipt is not plan.json")
    source = record.plan.get("source")
    if not isinstance(source, dict) or source.get("pins_sha256") != sha256_hex(canonical_bytes(source.get("pins"))):
        found.append("the plan's source pins do not have the digest that the plan gives them")
    pins = source.get("pins") if isinstance(source, dict) else None
    manifest = pins.get("harness/sets/manifest.json") if isinstance(pins, dict) else None
    has_cells = record.plan.get("payload", "cells") == "cells"
    if has_cells and manifest is not None and manifest != record.plan.get("manifest_sha256"):
        found.append("the plan's manifest is not the manifest among its source pins")
    return found


def _bound_files(record: RunRecord) -> list[str]:
    found = []
    bound: set[str] = set()
    for receipt in record.receipts:
        for subject in receipt.subjects:
            bound.add(subject.name)
            actual = record.digests.get(subject.name) or _receipt_digest(record, subject.name)
            if subject.name not in record.files:
                found.append(f"{subject.name} is missing, the {receipt.stage} receipt binds it")
            elif actual is None:
                found.append(f"{subject.name} is bound by the {receipt.stage} receipt, but can not be checked")
            elif actual != subject.sha256:
                found.append(f"{subject.name} is not the file that the {receipt.stage} receipt binds: it was changed")
    if record.receipts and "plan.json" not in bound:
        found.append("no receipt binds plan.json")
    collected = max((receipt.attempt for receipt in record.receipts if receipt.stage is Stage.COLLECT), default=0)
    extra = [name for name in record.evidence if name not in bound and (attempt_of_evidence(name) or 0) <= collected]
    if extra:
        found.extend(f"{name!r} is an evidence file that no receipt lists" for name in extra[:20])
    return found


def _receipt_digest(record: RunRecord, name: str) -> str | None:
    digests = {f"receipts/{receipt.sha256}.json": receipt.sha256 for receipt in record.receipts}
    return digests.get(name)


def _collected(record: RunRecord) -> list[str]:
    collect = record.stages.get(Stage.COLLECT)
    if collect is None:
        return []
    found: list[str] = []
    claims = {cell.get("key"): cell for cell in _objects(collect.get("cells")) if isinstance(cell.get("key"), str)}
    expected = {cell.key: cell for cell in record.cells}
    found.extend(f"the expected cell {key} is missing from the collect receipt" for key in expected.keys() - claims)
    found.extend(
        f"the collect receipt has the cell {key!r}, which is not in the plan" for key in claims.keys() - expected
    )
    if len(_list(collect.get("cells"))) != len(claims):
        found.append("the collect receipt lists a cell twice, or something that is not a cell")
    for key in expected.keys() & claims.keys():
        judged, claim = expected[key], claims[key]
        if claim.get("complete") is not judged.complete:
            why = "; ".join(judged.missing[:3]) or "its rows say it is"
            found.append(f"the collect receipt says complete={claim.get('complete')!r} of {key}: {why}")
        if claim.get("rows") != judged.rows:
            found.append(f"the collect receipt counts {claim.get('rows')!r} rows of {key}, there are {judged.rows}")
    evidence = list(record.evidence.values())
    for name, ours in (("files", len(evidence)), ("bytes", sum(evidence))):
        if collect.get(name) != ours:
            found.append(f"the collect receipt counts {collect.get(name)!r} {name} of evidence, there are {ours}")
    return sorted(found)


def _closure(record: RunRecord, closure: Receipt, before: Receipt | None) -> list[str]:
    short = closure.sha256[:12]
    found = []
    index = record.receipts.index(closure)
    listed = [
        {"stage": receipt.stage.value, "attempt": receipt.attempt, "sha256": receipt.sha256}
        for receipt in record.receipts[:index]
        if receipt.stage is not Stage.CLOSURE
    ]
    if closure.facts.get("receipts") != listed:
        found.append(f"the closure {short} does not list exactly the receipts before it: one was removed or added")
    if closure.facts.get("supersedes") != (before.sha256 if before else None):
        found.append(f"the closure {short} does not name the closure before it")
    found.extend(_journal_head(record, closure))
    source = record.plan.get("source")
    planned = source if isinstance(source, dict) else {}
    found.extend(
        f"the closure {short} says {name} {closure.facts.get(name)!r}, the plan {planned.get(name)!r}"
        for name in ("commit", "dirty", "tree")
        if closure.facts.get(name) != planned.get(name)
    )
    return found


def _journal_head(record: RunRecord, closure: Receipt) -> list[str]:
    claim = closure.facts.get("journal")
    count = claim.get("records") if isinstance(claim, Mapping) else None
    if not isinstance(claim, Mapping) or not isinstance(count, int) or isinstance(count, bool) or count < 1:
        return [f"the closure {closure.sha256[:12]} does not name the head of the journal"]
    if record.journal is None:
        return []
    if record.journal.head_of(count) != claim.get("head"):
        return [f"record {count} of the journal is not the head that the closure {closure.sha256[:12]} names"]
    return []


def _journal_tail(record: RunRecord, closure: Receipt) -> list[str]:
    for later in records_after(record, closure):
        if later.kind not in BENIGN_RECORDS:
            what = f"the journal goes on after the newest closure with {later.kind!r}"
            return [f"{what}: what happened since is not closed"]
        if later.kind == "closure" and later.facts.get("closure_sha256") != closure.sha256:
            return ["the journal announces another closure than the newest"]
    return []


def _device(record: RunRecord, facts: Mapping[str, Any]) -> list[str]:
    device = facts.get("device")
    found = []
    required = record.plan.get("device_required")
    if any(cell.complete for cell in record.cells) and device != required:
        found.append(f"the plan asks for the device {required!r}, the closure says {device!r}")
    collect = record.stages.get(Stage.COLLECT)
    if collect is not None and collect.get("device") != device:
        found.append(f"the closure says the device {device!r}, the collect receipt {collect.get('device')!r}")
    for cell in record.cells:
        measured = cell.header.get("device")
        kind = measured.get("kind") if isinstance(measured, dict) else None
        if cell.header and kind != device:
            found.append(f"the closure says the device {device!r}, the rows of {cell.key} were measured on {kind!r}")
    return found


def _expectations(record: RunRecord, expect_closure: str | None, expect_commit: str | None) -> list[str]:
    found = []
    closure = record.closure
    if expect_closure is not None and (closure is None or closure.sha256 != expect_closure.lower()):
        older = [item for item in record.closures if item.sha256 == expect_closure.lower()]
        what = "is superseded by a newer one" if older else "is not in this run"
        found.append(f"the expected closure {expect_closure[:16]} {what}; the newest is {closure and closure.sha256}")
    if expect_commit is not None:
        commit = _text(closure.facts.get("commit")) if closure else None
        dirty = closure.facts.get("dirty") if closure else None
        if not re.fullmatch(r"[0-9a-fA-F]{7,64}", expect_commit):
            found.append(f"the expected commit {expect_commit[:80]!r} is not 7 to 64 hex digits")
        elif commit is None or not commit.startswith(expect_commit.lower()):
            found.append(f"the commit that ran is {commit}, not the expected {expect_commit}")
        elif dirty is not False:
            found.append(f"the commit {commit} ran with changes that are not committed")
    return found


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:500])


def _verdict(label: object) -> Verdict:
    try:
        return Verdict.from_label(str(label))
    except ValueError:
        return Verdict.INCOMPLETE


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]
