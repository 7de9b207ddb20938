"""Whether the evidence of one cell is complete: a pure judgement over its rows, which may be anything.

A cell is complete only if its own rows say so: one header that fits the plan, every mandatory candidate warmed up
under its own label, it and `automatic` measured in exactly `REPEAT` rounds with one usable row each, and an end row
that says `complete`. A row is usable when no rank compiled anything in it (`none` on every rank) and its layout was
admitted, ran unsplit, and was live. (The harness writes what it had to measure again as a further warm-up.)

In a race a candidate needs the rounds that the rule gives it (`orchestrate.receipts.racing`), decided again here from
the times, and where these are fewer than `REPEAT` a `decided` row that names the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from orchestrate.cells.cell import Cell, parse_key
from orchestrate.errors import ReceiptError, UsageError
from orchestrate.receipts.canonical import parse_strict
from orchestrate.receipts.racing import MOST_ROUNDS, rounds_of_race

__all__ = [
    "EVIDENCE_SCHEMA",
    "MAX_LINE_BYTES",
    "MAX_ROWS_BYTES",
    "CellJudgement",
    "Expected",
    "Measured",
    "absent",
    "judge_cell",
]

EVIDENCE_SCHEMA = "harness.evidence/1"
MAX_LINE_BYTES = 4 << 20
MAX_ROWS_BYTES = 256 << 20
_MAX_GAPS = 20
_MAX_RELEASES = 1000
_MIN_MS, _MAX_MS = 1e-6, 1e9
_ROLES = ("candidate", "automatic")


@dataclass(frozen=True, slots=True)
class Expected:
    """What the plan expects of a cell.

    `candidates` are the mandatory labels; None where only the node can know them (a private corpus): then those of
    the header are mandatory. `racing` expects the racing schedule, which says by a rule who needs fewer rounds.
    """

    key: str
    run_id: str
    repeat: int
    candidates: tuple[str, ...] | None = None
    racing: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """The usable rounds of one candidate: max-rank forward plus backward time by round, in milliseconds."""

    label: str
    role: str
    elapsed_ms: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class CellJudgement:
    """What the evidence of a cell amounts to.

    `missing` names each gap in words and is empty exactly when `complete`. `header` is the cell row (empty when there
    is none); `measured` has one entry a candidate, in the header's order, `automatic` last. `releases` are the cache
    releases that memory admission needed, the first of them where there are very many (`release_count` counts all), and
    `ledger` is their account, both as the rows have them.
    """

    key: str
    complete: bool
    rows: int
    missing: tuple[str, ...]
    outcome: str | None = None
    header: Mapping[str, Any] = field(default_factory=dict)
    measured: tuple[Measured, ...] = ()
    releases: tuple[Mapping[str, Any], ...] = ()
    release_count: int = 0
    ledger: Mapping[str, Any] = field(default_factory=dict)


def absent(expected: Expected, why: str) -> CellJudgement:
    """The judgement of a cell that left no readable evidence."""
    return CellJudgement(expected.key, complete=False, rows=0, missing=(why,))


def judge_cell(lines: Iterable[bytes], expected: Expected) -> CellJudgement:
    """Judge the rows of one cell, given as the lines of its `rows.jsonl`, each with its newline.

    Never raises on what the lines hold: whatever is wrong becomes a gap that names the line.
    """
    reading = _Reading(expected)
    for number, line in enumerate(lines, start=1):
        reading.take(number, line)
    return reading.judgement()


class _Reading:
    """The state while the rows of one cell go by."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self.gaps: list[str] = []
        self.more_gaps = 0
        self.rows = 0
        self.header: dict[str, Any] | None = None
        self.world = 0
        self.labels: tuple[str, ...] = ()
        self.warmed: set[str] = set()
        self.automatic: str | None = None
        self.rounds: dict[tuple[str, str], dict[int, float]] = {}
        self.decided: dict[tuple[object, object], object] = {}
        self.race: dict[str, int] | None = None
        self.outcome: str | None = None
        self.releases: list[dict[str, Any]] = []
        self.release_count = 0
        self.ledger: Mapping[str, Any] = {}

    def take(self, number: int, line: bytes) -> None:
        where = f"line {number}"
        if len(line) >= MAX_LINE_BYTES:
            self.gap(f"{where} is longer than {MAX_LINE_BYTES} bytes")
            return
        if not line.endswith(b"\n"):
            self.gap(f"{where}, the last one, is cut")
            return
        try:
            row = parse_strict(line, what=where)
        except ReceiptError as error:
            self.gap(error.cause)
            return
        if not isinstance(row, dict) or row.get("schema") != EVIDENCE_SCHEMA:
            self.gap(f"{where} is not a row of {EVIDENCE_SCHEMA}")
            return
        self.rows += 1
        self.take_admission(row)
        if self.outcome is not None:
            self.gap(f"{where} comes after the end row")
        kind = row.get("row")
        if kind == "cell":
            self.take_header(where, row)
        elif self.header is None:
            self.gap(f"{where} comes before the cell row")
        elif kind == "measure":
            self.take_measure(where, row)
        elif kind == "end":
            self.take_end(where, row)
        elif kind == "decided" and self.expected.racing:
            self.decided[str(row.get("role")), str(row.get("candidate"))] = row.get("round")
        elif kind == "warmup":
            self.warmed.add(str(row.get("candidate")))
        else:
            self.gap(f"{where} is a row of unknown kind {str(kind)[:40]!r}")

    def take_admission(self, row: dict[str, Any]) -> None:
        admission = row.get("admission")
        if not isinstance(admission, dict):
            return
        releases = admission.get("releases")
        found = [each for each in releases if isinstance(each, dict)] if _is_list(releases) else []
        self.release_count += len(found)
        self.releases += found[: _MAX_RELEASES - len(self.releases)]
        ledger = admission.get("ledger")
        if isinstance(ledger, dict):
            self.ledger = ledger

    def take_header(self, where: str, row: dict[str, Any]) -> None:
        if self.header is not None:
            self.gap(f"{where} is a second cell row")
            return
        self.header = row
        for name, ours in (
            ("cell", self.expected.key),
            ("run_id", self.expected.run_id),
            ("repeat", self.expected.repeat),
        ):
            if row.get(name) != ours or type(row.get(name)) is not type(ours):
                self.gap(f"{where} says {name} {str(row.get(name))[:80]!r}, the plan says {ours!r}")
        schedule = "racing" if self.expected.racing else "fixed"
        if row.get("schedule", "fixed") != schedule:
            self.gap(f"{where} was measured with the schedule {str(row.get('schedule'))[:40]!r}, not {schedule!r}")
        self.world = self.read_world(where, row)
        self.read_candidates(where, row)

    def read_world(self, where: str, row: dict[str, Any]) -> int:
        shape = row.get("shape")
        sizes = shape if isinstance(shape, dict) else {}
        tp, cp, world = sizes.get("tp"), sizes.get("cp"), sizes.get("world")
        if not (_is_count(tp) and _is_count(cp) and _is_count(world) and tp * cp == world):
            self.gap(f"{where} has no shape with world = tp * cp")
            return 0
        try:
            cell = parse_key(self.expected.key)
        except UsageError as error:
            self.gap(f"the plan's cell is {error.cause}")
            return 0
        if (cell.tp, cell.cp) != (tp, cp):
            self.gap(f"{where} says tp{tp} cp{cp}, which is not the shape of the cell")
        if sizes.get("ep", 1) != 1 or isinstance(sizes.get("ep"), bool):
            self.gap(f"{where} says ep{str(sizes.get('ep'))[:40]}: EP above 1 is refused")
        self.compare_names(where, row, cell)
        return world

    def compare_names(self, where: str, row: dict[str, Any], cell: Cell) -> None:
        wanted: dict[str, dict[str, object]] = {
            "workload": {"name": cell.workload, "group": cell.group},
            "model": {"name": cell.model, "layers": cell.layers},
        }
        for name, fields in wanted.items():
            about = row.get(name)
            if not isinstance(about, dict):
                self.gap(f"{where} has no {name}")
                continue
            for part, ours in fields.items():
                if about.get(part) != ours or isinstance(about.get(part), bool):
                    self.gap(f"{where} says {name} {part} {str(about.get(part))[:80]!r}, the cell's is {ours!r}")

    def read_candidates(self, where: str, row: dict[str, Any]) -> None:
        candidates = row.get("candidates")
        items = candidates if _is_list(candidates) else []
        labels = [item.get("label") if isinstance(item, dict) else None for item in items]
        names = [label for label in labels if isinstance(label, str)]
        if not names or len(names) != len(labels):
            self.gap(f"{where} does not list the candidates of the cell")
        if len(set(names)) != len(names):
            self.gap(f"{where} lists a candidate twice")
        self.labels = tuple(dict.fromkeys(names))
        automatic = row.get("automatic")
        label = automatic.get("label") if isinstance(automatic, dict) else None
        if isinstance(label, str):
            self.automatic = label
        else:
            self.gap(f"{where} does not say which layout is automatic")
        if isinstance(label, str) and label not in self.labels:
            self.gap(f"{where} says automatic follows {label[:80]!r}, which is not a candidate of the cell")

    def take_measure(self, where: str, row: dict[str, Any]) -> None:
        role, label, turn = row.get("role"), row.get("candidate"), row.get("round")
        if not isinstance(role, str) or role not in _ROLES or not isinstance(label, str):
            self.gap(f"{where} measures neither a candidate nor automatic")
            return
        if role == "candidate" and label not in self.labels:
            self.gap(f"{where} measures {label[:80]!r}, which is not a candidate of the cell")
            return
        if role == "automatic" and label != self.automatic:
            self.gap(f"{where} measures {label[:80]!r} as automatic, the cell row says {self.automatic!r}")
            return
        if not _is_count(turn, least=0) or turn >= self.expected.repeat:
            self.gap(f"{where} has no round of {self.expected.repeat}")
            return
        why = _unusable(row, self.world)
        if why:
            self.gap(f"{where} ({label[:80]}, {role}, round {turn}) is not usable: {why}")
            return
        rounds = self.rounds.setdefault((role, label), {})
        if turn in rounds:
            self.gap(f"{where} measures {label[:80]!r} ({role}) in round {turn} again")
            return
        rounds[turn] = float(row["elapsed_ms"])

    def take_end(self, where: str, row: dict[str, Any]) -> None:
        self.outcome = str(row.get("outcome"))[:40]
        if self.outcome != "complete":
            self.gap(f"the cell ended as {self.outcome!r}: {str(row.get('reason'))[:200]}")
        if row.get("rows") != self.rows - 1:
            self.gap(f"{where} counts {str(row.get('rows'))[:40]} rows, there are {self.rows - 1} before it")

    def judgement(self) -> CellJudgement:
        if self.header is None:
            self.gap("there is no cell row")
        elif self.outcome is None:
            self.gap("there is no end row: the cell was cut short")
        if self.expected.racing and self.expected.repeat > MOST_ROUNDS:
            self.gap(f"a race of {self.expected.repeat} rounds: at most {MOST_ROUNDS} are judged")
        for label in self.expected.candidates or ():
            # The header's `equal` does not help: the plan's labels are of different layouts already.
            if label not in self.labels:
                self.gap(f"the mandatory candidate {label!r} is not among the cell's candidates")
        wanted = [("candidate", label) for label in self.labels]
        if self.automatic is not None:
            wanted.append(("automatic", self.automatic))
        for role, label in wanted:
            self.check_rounds(role, label)
        for label in self.labels:
            if label not in self.warmed:
                self.gap(f"{label[:80]!r} was measured without a warm-up")
        missing = tuple(self.gaps) + ((f"and {self.more_gaps} more gaps",) if self.more_gaps else ())
        return CellJudgement(
            key=self.expected.key,
            complete=not missing,
            rows=self.rows,
            missing=missing,
            outcome=self.outcome,
            header=self.header or {},
            measured=tuple(Measured(label, role, self.rounds.get((role, label), {})) for role, label in wanted),
            releases=tuple(self.releases),
            release_count=self.release_count,
            ledger=self.ledger,
        )

    def check_rounds(self, role: str, label: str) -> None:
        rounds, wanted = self.rounds.get((role, label), {}), self.rounds_wanted(label)
        name = "automatic" if role == "automatic" else repr(label[:80])
        # `take_measure` keeps whole turns from 0 alone; `wanted` is the word of a file, so no range of it is made.
        if len(rounds) != wanted or any(turn >= wanted for turn in rounds):
            said = f", which the rule of the race gives it, of {self.expected.repeat}" if self.expected.racing else ""
            self.gap(f"{name} has {len(rounds)} usable rounds of {wanted}{said}")
        decided = self.decided.get((role, label))
        if wanted < self.expected.repeat and (not _is_count(decided, least=0) or decided != wanted - 1):
            self.gap(f"{name} stopped after round {wanted - 1} without a decision that says so")

    def rounds_wanted(self, label: str) -> int:
        """How many rounds a label needs: all, or in a race as many as the rule gives it, decided again from the times.

        `automatic` races with the candidate that it picked.
        """
        if not self.expected.racing or label not in self.labels or self.expected.repeat > MOST_ROUNDS:
            return self.expected.repeat
        if self.race is None:
            rounds = [self.rounds.get(("candidate", each), {}) for each in self.labels]
            times_ms = [[of[turn] for turn in sorted(of)] for of in rounds]
            self.race = dict(zip(self.labels, rounds_of_race(times_ms, self.expected.repeat), strict=True))
        return self.race[label]

    def gap(self, text: str) -> None:
        if len(self.gaps) < _MAX_GAPS:
            self.gaps.append(text)
        else:
            self.more_gaps += 1


def _unusable(row: dict[str, Any], world: int) -> str:
    statuses = row.get("compile")
    if not _is_list(statuses) or len(statuses) != world or any(status != "none" for status in statuses):
        return f"compile statuses are {str(statuses)[:80]}, not 'none' on each of {world} ranks"
    for name in ("admitted", "unsplit", "layout_live"):
        if row.get(name) is not True:
            return f"{name} is {str(row.get(name))[:40]}"
    elapsed = row.get("elapsed_ms")
    if not isinstance(elapsed, int | float) or isinstance(elapsed, bool) or not _MIN_MS <= elapsed < _MAX_MS:
        return f"elapsed_ms is {str(elapsed)[:40]}"
    ranks = row.get("per_rank_ms")
    if not _is_list(ranks) or len(ranks) != world:
        return f"per_rank_ms does not have {world} ranks"
    if any(not isinstance(rank, int | float) or isinstance(rank, bool) for rank in ranks) or max(ranks) != elapsed:
        return "elapsed_ms is not the time of the slowest rank"
    return ""


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_count(value: object, *, least: int = 1) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
