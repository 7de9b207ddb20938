"""A run directory as far as it can be read: what `verify` judges and what `report` draws.

Reading never raises on content. What can not be read, or is not what it should be, becomes a problem in words; what
no digest binds is listed as uncovered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from orchestrate.cells.cell import slug
from orchestrate.errors import ReceiptError
from orchestrate.receipts import statement
from orchestrate.receipts.attempts import attempt_of_evidence, evidence_folder, final_attempt
from orchestrate.receipts.canonical import parse_canonical, parse_strict, sha256_hex
from orchestrate.receipts.completeness import (
    MAX_LINE_BYTES,
    MAX_ROWS_BYTES,
    CellJudgement,
    Expected,
    absent,
    judge_cell,
)
from orchestrate.receipts.files import Listing, hash_file, list_files, read_file, read_lines
from orchestrate.receipts.group_evidence import MAX_REPORT_BYTES, Groups, read_groups
from orchestrate.receipts.journal_chain import JournalView, read_journal
from orchestrate.receipts.statement import Receipt, Stage
from orchestrate.receipts.store import MAX_RECEIPT_BYTES, MAX_RECEIPTS, in_order, newest_closure

__all__ = ["RunRecord", "load_record"]

PLAN_SCHEMA = "orchestrate.plan/1"
_MAX_TOKEN_BYTES = 1 << 10
_MAX_PLAN_BYTES = 16 << 20
_MAX_JOURNAL_BYTES = 64 << 20
_MAX_RECEIPTS_BYTES = 64 << 20
_MAX_EVIDENCE_BYTES = 4 << 30
_MAX_TOTAL_BYTES = 16 << 30
_MAX_ENTRIES = 100_000
_MAX_REPEAT = 100_000


@dataclass(slots=True)
class RunRecord:
    """What is in a run directory.

    `receipts` are in the order in which they were written, or in no order where the chain is broken (then a problem
    says so). `digests` has the SHA-256 of `plan.json` and of every file of evidence, of whichever attempt. `cells` has
    one judgement for each cell that the plan expects, and `counted` the attempt whose evidence was judged: the first in
    which the cell is complete, else the newest that left some. Nothing is pooled. The
    `groups` of a qualification stand among the cells. `nodes` has the node's own
    `node.json` of each attempt that left one.
    """

    run_dir: Path
    files: Mapping[str, int] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    receipts: tuple[Receipt, ...] = ()
    closure: Receipt | None = None
    journal: JournalView | None = None
    digests: dict[str, str] = field(default_factory=dict)
    cells: tuple[CellJudgement, ...] = ()
    groups: Groups | None = None
    counted: dict[str, int] = field(default_factory=dict)
    nodes: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def stages(self) -> dict[Stage, Mapping[str, Any]]:
        """The facts of the newest receipt of each stage that has one in the newest attempt."""
        return {receipt.stage: receipt.facts for receipt in final_attempt(self.receipts)}

    @property
    def evidence(self) -> dict[str, int]:
        """Every file of evidence with its size, of all attempts."""
        return {name: size for name, size in self.files.items() if attempt_of_evidence(name) is not None}

    @property
    def evidence_attempts(self) -> tuple[int, ...]:
        """The attempts that left evidence, ascending."""
        return tuple(sorted({attempt for name in self.files if (attempt := attempt_of_evidence(name)) is not None}))

    @property
    def node(self) -> Mapping[str, Any]:
        """The node's own account of the newest attempt that left evidence; empty where it left none."""
        return self.nodes.get(self.evidence_attempts[-1], {}) if self.evidence_attempts else {}

    @property
    def closures(self) -> tuple[Receipt, ...]:
        """Every closure, first written first."""
        return tuple(receipt for receipt in self.receipts if receipt.stage is Stage.CLOSURE)


def load_record(run_dir: Path) -> RunRecord:
    """Read the run directory at `run_dir`. Raises nothing for what it holds; see `RunRecord.problems`."""
    record = RunRecord(run_dir)
    with _noting(record, "the run directory"):
        listing = list_files(run_dir, limit=_MAX_ENTRIES)
        record.files = listing.files
        _refuse_strange(record, listing)
    _read_receipts(record)
    with _noting(record, "plan.json"):
        data = read_file(run_dir, "plan.json", limit=_MAX_PLAN_BYTES)
        record.digests["plan.json"] = sha256_hex(data)
        plan = parse_canonical(data, what="plan.json")
        if not isinstance(plan, dict) or plan.get("schema") != PLAN_SCHEMA:
            raise ReceiptError(f"plan.json is not an {PLAN_SCHEMA}", remedy="read it with the version that wrote it")
        record.plan = plan
    with _noting(record, "journal.jsonl"):
        record.journal = read_journal(read_file(run_dir, "journal.jsonl", limit=_MAX_JOURNAL_BYTES))
    _read_evidence(record)
    if "token" in record.files:
        with _noting(record, "the token"):
            token = read_file(run_dir, "token", limit=_MAX_TOKEN_BYTES)
            if sha256_hex(token.removesuffix(b"\n")) != record.plan.get("token_sha256"):
                raise ReceiptError("the token is not the one whose digest the plan has", remedy="restore the run")
    return record


@contextmanager
def _noting(record: RunRecord, what: str) -> Iterator[None]:
    try:
        yield
    except ReceiptError as error:
        record.problems.append(error.cause)
    except FileNotFoundError:
        record.problems.append(f"{what} is missing")
    except OSError as error:
        record.problems.append(f"{what} can not be read: {error.strerror}")


def _refuse_strange(record: RunRecord, listing: Listing) -> None:
    record.problems.extend(
        f"{name!r} is {kind}: a run directory holds plain files" for name, kind in list(listing.strange.items())[:20]
    )


def _read_receipts(record: RunRecord) -> None:
    names = [name.removeprefix("receipts/") for name in record.files if name.startswith("receipts/")]
    if not names:
        record.problems.append("there are no receipts")
        return
    if sum(record.files[f"receipts/{name}"] for name in names) > _MAX_RECEIPTS_BYTES:
        record.problems.append(f"the receipts are larger than {_MAX_RECEIPTS_BYTES} bytes and were not read")
        return
    found: list[Receipt] = []
    for name in names[:MAX_RECEIPTS]:
        with _noting(record, f"receipt {name}"):
            data = read_file(record.run_dir, f"receipts/{name}", limit=MAX_RECEIPT_BYTES)
            if name != f"{sha256_hex(data)}.json":
                raise ReceiptError(f"receipts/{name} does not have the content that its name promises", remedy="")
            found.append(statement.parse(data, name=f"receipt {name[:12]}"))
    record.receipts = tuple(found)
    with _noting(record, "the receipt chain"):
        record.receipts = in_order(found)
    with _noting(record, "the newest closure"):
        record.closure = newest_closure(record.receipts)


def _read_evidence(record: RunRecord) -> None:
    evidence = record.evidence
    if sum(evidence.values()) > _MAX_TOTAL_BYTES:
        record.problems.append(f"the evidence is larger than {_MAX_TOTAL_BYTES} bytes and was not read")
        return
    is_groups = record.plan.get("payload") == "groups"
    expected_cells = () if is_groups else _expected_cells(record)
    if len({slug(expected.key) for expected in expected_cells}) != len(expected_cells):
        record.problems.append("two cells of the plan share one folder of evidence")
    record.cells = tuple(_judge_all(record, expected) for expected in expected_cells)
    for name in evidence:
        if name not in record.digests:
            with _noting(record, repr(name)):
                record.digests[name] = hash_file(record.run_dir, name, limit=_MAX_EVIDENCE_BYTES)
    for attempt in record.evidence_attempts:
        name = f"{evidence_folder(attempt)}/node.json"
        if name in record.files:
            with _noting(record, name):
                node = parse_strict(read_file(record.run_dir, name, limit=_MAX_PLAN_BYTES), what=name)
                record.nodes[attempt] = node if isinstance(node, dict) else {}
    if is_groups:
        with _noting(record, "the groups"):
            record.groups = read_groups(record.plan, record.node, lambda name: _report(record, name))
            record.cells = record.groups.as_cells()
            if record.evidence_attempts:
                record.counted = dict.fromkeys((cell.key for cell in record.cells), record.evidence_attempts[-1])
    _hash_payload(record)


def _report(record: RunRecord, name: str) -> bytes | None:
    """A report of the newest attempt."""
    attempts = record.evidence_attempts
    path = f"{evidence_folder(attempts[-1])}/{name}" if attempts else ""
    if path not in record.files:
        return None
    return read_file(record.run_dir, path, limit=MAX_REPORT_BYTES)


def _hash_payload(record: RunRecord) -> None:
    """The files that travelled must be the planned ones; a run that was fetched without them says so."""
    planned = record.plan.get("payload_files")
    for name, sha256 in planned.items() if isinstance(planned, dict) else ():
        if name in record.files:
            with _noting(record, repr(name)):
                record.digests[name] = hash_file(record.run_dir, name, limit=_MAX_EVIDENCE_BYTES)
                if record.digests[name] != sha256:
                    record.problems.append(f"{name} is not the file that the plan names")


def _judge_all(record: RunRecord, expected: Expected) -> CellJudgement:
    """The cell by the rows of one attempt: the first that is complete, else the newest that left any."""
    judgement = absent(expected, "it left no evidence")
    for attempt in record.evidence_attempts:
        name = f"{evidence_folder(attempt)}/cells/{slug(expected.key)}/rows.jsonl"
        if name in record.files:
            judgement = _judge(record, expected, name)
            record.counted[expected.key] = attempt
            if judgement.complete:
                break
    return judgement


def _judge(record: RunRecord, expected: Expected, name: str) -> CellJudgement:
    digest = hashlib.sha256()
    try:
        lines = read_lines(record.run_dir, name, limit=MAX_ROWS_BYTES, line_limit=MAX_LINE_BYTES, digest=digest)
        judgement = judge_cell(lines, expected)
    except (ReceiptError, OSError) as error:
        return absent(expected, f"its evidence can not be read: {error}")
    record.digests[name] = digest.hexdigest()
    return judgement


def _expected_cells(record: RunRecord) -> tuple[Expected, ...]:
    plan = record.plan
    if not plan:
        return ()
    keys, repeat, run_id = plan.get("cells"), plan.get("repeat"), plan.get("run_id")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        record.problems.append("the plan does not list its cells, each once")
        return ()
    if not _is_count(repeat) or not isinstance(run_id, str):
        record.problems.append(f"the plan has no run_id, or no number of rounds from 1 to {_MAX_REPEAT}")
        return ()
    schedule = plan.get("schedule", "fixed")
    if schedule not in ("fixed", "racing"):
        record.problems.append(f"the plan has no schedule that there is: {str(schedule)[:40]!r}")
        return ()
    candidates = plan.get("candidates")
    by_key = candidates if isinstance(candidates, dict) else {}
    expected = []
    for key in keys:
        labels = by_key.get(key)
        if labels is not None and not (
            isinstance(labels, list) and labels and all(isinstance(label, str) for label in labels)
        ):
            record.problems.append(f"the plan's candidates of {key!r} are not labels")
            labels = None
        if labels is None and key.partition("|")[0] not in _corpora(plan):
            record.problems.append(f"the plan has no candidates of {key!r}, which reads no corpus")
        mandatory = None if labels is None else tuple(labels)
        expected.append(Expected(key, run_id, repeat, mandatory, racing=schedule == "racing"))
    return tuple(expected)


def _is_count(repeat: object) -> TypeGuard[int]:
    return isinstance(repeat, int) and not isinstance(repeat, bool) and 1 <= repeat <= _MAX_REPEAT


def _corpora(plan: Mapping[str, Any]) -> set[object]:
    corpora = plan.get("corpora")
    names = [item.get("name") for item in corpora if isinstance(item, dict)] if isinstance(corpora, list) else []
    return {name for name in names if isinstance(name, str)}
