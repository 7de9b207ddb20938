"""The answer: do the ranks agree, and if not, which disagreement came first, of what kind, and who is odd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from orchestrate.analysis.trace.calls import describe
from orchestrate.analysis.trace.compare import Compared
from orchestrate.analysis.trace.findings import Finding, Lag, Undecided
from orchestrate.analysis.trace.lag import find_lag, is_swapped
from orchestrate.analysis.trace.layouts import LayoutRow, layout_rows
from orchestrate.analysis.trace.model import Ended, State
from orchestrate.analysis.trace.odd import names_of, odd_words
from orchestrate.analysis.trace.reconcile import Kind, odd_of_classes

__all__ = ["Answer", "Decision", "make_answer"]

SCHEMA = "orchestrate.trace-diff/1"


class Decision(StrEnum):
    """What the traces say."""

    AGREE = "agree"
    DIVERGE = "diverge"
    UNDECIDABLE = "undecidable"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to whether the ranks agree. `first` is the first disagreement, `further` those of other groups.

    `layouts` are the forwards around it, or around the first in which ranks ran different layouts (`parted`).
    """

    decision: Decision
    summary: str
    first: Finding | None
    further: tuple[Finding, ...]
    undecided: tuple[Undecided, ...]
    layouts: tuple[LayoutRow, ...]
    parted: LayoutRow | None
    compared: Compared

    def sentences(self, finding: Finding) -> tuple[str, ...]:
        """What there is to say about one disagreement, the most telling first."""
        return (*_sentences(finding), *self._context_sentences(finding))

    def as_json(self) -> dict[str, Any]:
        """The answer as the one object of `--json`; docs/trace.md describes it."""
        job = self.compared.job
        return {
            "schema": SCHEMA,
            "verdict": self.decision.value,
            "summary": self.summary,
            "matched": self.compared.matched,
            "ranks": [
                {
                    "rank": rank,
                    "file": str(trace.path),
                    "format": trace.format,
                    "records": self.compared.records[rank],
                    "end": trace.end.how.value,
                    "starts_late": trace.starts_late,
                }
                for rank, trace in job.traces.items()
            ],
            "missing_ranks": list(job.missing),
            "divergence": None if self.first is None else self._finding_json(self.first),
            "further": [self._finding_json(finding) for finding in self.further],
            "undecided": [
                {
                    "rank": place.rank,
                    "file": None if place.path is None else str(place.path),
                    "offset": place.offset,
                    "why": place.why,
                }
                for place in self.undecided
            ],
            "layouts": [row.as_json() for row in self.layouts],
            "layouts_part_at": None if self.parted is None else self.parted.as_json(),
            "notes": list(job.notes),
        }

    def _finding_json(self, finding: Finding) -> dict[str, Any]:
        mismatch = finding.mismatch
        return {
            "kind": finding.kind.value,
            "seen_as": None if mismatch is None else mismatch.kind.value,
            "group": {
                "name": finding.group.name,
                "desc": finding.group.desc,
                "ranks": None if finding.group.ranks is None else list(finding.group.ranks),
                "pair": None if finding.group.pair is None else list(finding.group.pair),
            },
            "sequence": sequence_of(finding),
            "odd": None if finding.odd is None else list(finding.odd),
            "missing": _missing(finding),
            "said": {} if mismatch is None else {str(rank): said for rank, said in mismatch.said.items()},
            "pairs": []
            if mismatch is None
            else [
                {"from": p.sender, "to": p.receiver, "sends": p.sends, "expects": p.expects, "unit": p.unit}
                for p in mismatch.pairs
            ],
            "lag": None if finding.lag is None else _lag_json(finding.lag),
            "sentences": list(self.sentences(finding)),
            "records": {
                str(rank): None if record is None else self.record_json(rank, record)
                for rank, record in sorted(finding.records.items())
            },
        }

    def record_json(self, rank: int, record: Any) -> dict[str, Any]:
        """One record, with all that is known of it."""
        interned = self.compared.job.interned
        call, context = interned.calls[int(record["call"])], interned.contexts[int(record["context"])]
        return {
            "op": call.op,
            "words": describe(call),
            "group": str(interned.groups[int(record["group"])]),
            "sequence": int(record["key"]) if record["p2p"] else int(record["key"]) >> 12,
            "input_sizes": [list(size) for size in call.input_sizes],
            "output_sizes": [list(size) for size in call.output_sizes],
            "dtypes": list(dict.fromkeys(call.input_dtypes + call.output_dtypes)),
            "send_splits": None if call.send_splits is None else list(call.send_splits),
            "recv_splits": None if call.recv_splits is None else list(call.recv_splits),
            "reduce_op": call.reduce_op,
            "root": call.root,
            "peer": call.peer,
            "layout": context.layout,
            "phase": context.phase,
            "direction": "backward" if context.backward else "forward",
            "tag": context.tag,
            "forward": None if record["forward"] < 0 else int(record["forward"]),
            "state": State(int(record["state"])).name.lower(),
            "start_ns": int(record["start"]),
            "end_ns": int(record["end"]) or None,
            "record": int(record["ref"]),
            "callers": [str(frame) for frame in self.compared.job.traces[rank].frames(record)],
        }

    def _context_sentences(self, finding: Finding) -> list[str]:
        lagging = None if self.parted is None else self.parted.lag
        said = []
        if self.parted is not None:
            said.append(self.parted.words())
        if lagging is not None and finding.lag is None:
            said.append(lagging)
        lacking = _missing(finding)
        if lacking and all(self.compared.job.traces[rank].end.how is Ended.OPEN for rank in lacking):
            verb = "was killed, hangs or still runs" if len(lacking) == 1 else "were killed, hang or still run"
            said.append(f"{names_of(lacking)} {verb}: what would have come next is not known")
        return said


def _missing(finding: Finding) -> list[int]:
    said = {} if finding.mismatch is None else finding.mismatch.said
    return sorted(rank for rank, record in finding.records.items() if record is None or said.get(rank) == "has none")


def sequence_of(finding: Finding) -> int:
    """The sequence number in the group (of the message, for point to point)."""
    return finding.key if finding.group.pair is not None else finding.key >> 12


def make_answer(compared: Compared) -> Answer:
    """Decide: a disagreement that is certain is one, whatever else is cut; else a place in doubt is undecidable."""
    findings = [_refined(compared, finding) for finding in compared.findings]
    certain = _in_order(findings) or _in_order(list(compared.unfinished))
    first = certain[0] if certain else None
    around = _forward_of(first)
    rows, parted = layout_rows(compared.forwards, compared.job.interned, around)
    undecided = compared.undecided
    if not any(compared.records.values()):
        undecided = (*undecided, Undecided(-1, "there is no record in any trace"))
    alone = list(compared.job.traces.values()) if len(compared.job.traces) == 1 else []
    if any(trace.world_size is None for trace in alone):
        rank = next(iter(compared.job.traces))
        why = "only its trace is here, and it does not say how many ranks there are"
        undecided = (*undecided, Undecided(rank, why))
    if first is not None or (parted is not None and parted.certain):
        decision = Decision.DIVERGE
    else:
        decision = Decision.UNDECIDABLE if undecided else Decision.AGREE
    answer = Answer(decision, "", first, tuple(certain[1:]), tuple(undecided), rows, parted, compared)
    return replace(answer, summary=_summary(answer))


def _refined(compared: Compared, finding: Finding) -> Finding:
    """The finding as a lag or an exchanged order, where what follows shows that it is one."""
    channel = compared.channels.get(finding.channel)
    plain = {Kind.OPERATION, Kind.DTYPE, Kind.ROOT, Kind.REDUCE_OP, Kind.SIZE, Kind.SPLIT}
    if channel is None or finding.kind not in plain:
        return finding
    if is_swapped(channel, finding):
        finding.kind = Kind.ORDER
        return finding
    lag = find_lag(channel, finding)
    if lag is not None:
        finding.kind, finding.lag = Kind.LAG, lag
        members = len(channel.members)
        finding.odd = lag.ranks if 2 * len(lag.ranks) < members else None
    elif finding.odd is None and finding.kind is Kind.SPLIT:
        layouts = {
            rank: compared.job.interned.contexts[int(record["context"])].layout
            for rank, record in finding.records.items()
            if record is not None
        }
        if len(set(layouts.values())) > 1:
            finding.odd = odd_of_classes(layouts)
    return finding


def _in_order(findings: Sequence[Finding]) -> list[Finding]:
    """First what began first; but what ranks did before another in their own order comes before it."""
    rest = sorted(findings, key=lambda finding: finding.start_ns)
    ordered: list[Finding] = []
    while rest:
        first = rest[0]
        for finding in rest[1:]:
            if _precedes(finding, first):
                first = finding
        rest.remove(first)
        ordered.append(first)
    return ordered


def _precedes(one: Finding, other: Finding) -> bool:
    common = [
        (int(record["ref"]), int(later["ref"]))
        for rank, record in one.records.items()
        if record is not None and (later := other.records.get(rank)) is not None
    ]
    return bool(common) and all(before < after for before, after in common)


def _forward_of(finding: Finding | None) -> int | None:
    if finding is None:
        return None
    forwards = [int(record["forward"]) for record in finding.records.values() if record is not None]
    known = [forward for forward in forwards if forward >= 0]
    return min(known) if known else None


def _summary(answer: Answer) -> str:
    compared = answer.compared
    total = sum(compared.records.values())
    if answer.first is not None:
        return f"{_where(answer, answer.first)}: {answer.sentences(answer.first)[0]}"
    match answer.decision:
        case Decision.DIVERGE:
            return "" if answer.parted is None else f"every collective fits, but {answer.parted.words()}"
        case Decision.UNDECIDABLE:
            return f"undecidable: {answer.undecided[0]}; what can be compared agrees ({compared.matched:,} collectives)"
        case Decision.AGREE:
            return f"{len(compared.records)} ranks agree: {compared.matched:,} collectives, {total:,} records"


def _where(answer: Answer, finding: Finding) -> str:
    interned = answer.compared.job.interned
    there = [record for record in finding.records.values() if record is not None]
    if finding.place is not None:
        there = [record for record in there if (record["group"], record["key"]) == (finding.channel, finding.place)]
    ops = {interned.calls[int(record["call"])].op for record in there}
    what = " / ".join(sorted(ops))
    unit = "message" if finding.group.pair is not None else "group"
    words = f"{finding.kind.value} at {what} #{sequence_of(finding):,} of {unit} {finding.group}"
    forward = _forward_of(finding)
    return words if forward is None else f"{words}, forward {forward}"


def _sentences(finding: Finding) -> list[str]:
    mismatch = finding.mismatch
    said = list(finding.words)
    if finding.lag is not None:
        said.append(_lag_words(finding.lag))
    if finding.kind is Kind.ORDER and not finding.words and finding.odd:
        said.append(f"{names_of(finding.odd)} issues the same two collectives in the opposite order")
    if mismatch is not None and mismatch.kind is Kind.MISSING_RANK and not finding.words:
        lacking = [rank for rank, words in mismatch.said.items() if words == "has none"]
        present = [rank for rank, words in mismatch.said.items() if words == "has it"]
        said.append(
            f"{names_of(lacking)} never issued it"
            if 2 * len(lacking) <= len(mismatch.said)
            else f"only {names_of(present)} issued it, {names_of(lacking)} did not"
        )
    elif mismatch is not None and mismatch.kind is Kind.NEVER_COMPLETED:
        said.append(_unfinished_words(mismatch.said))
    elif mismatch is not None and not finding.words:
        said += [str(pair) for pair in _telling(mismatch.pairs, finding.odd)] or [_said_words(mismatch.said)]
        said += [mismatch.note] if mismatch.note else []
    said.append(odd_words(finding.odd, len(finding.records)))
    return [sentence for sentence in said if sentence]


def _telling(pairs: Sequence[Any], odd: tuple[int, ...] | None) -> list[Any]:
    """The pairs by how far they are apart; those between the odd ranks and the others first."""
    weight = [((pair.sender in (odd or ())) + (pair.receiver in (odd or ())), pair) for pair in pairs]
    return [pair for _, pair in sorted(weight, key=lambda one: (one[0] == 0, -abs(one[1].sends - one[1].expects)))]


def _said_words(said: Mapping[int, str]) -> str:
    by_words: dict[str, list[int]] = {}
    for rank, words in said.items():
        by_words.setdefault(words, []).append(rank)
    return ", ".join(f"{names_of(ranks)}: {words}" for words, ranks in by_words.items())


def _unfinished_words(said: Mapping[int, str]) -> str:
    stuck = [rank for rank, words in said.items() if words != "completed"]
    if len(stuck) == len(said):
        return "all ranks issued it alike, and none completed it"
    return _said_words({rank: said[rank] for rank in stuck}) + ", while the others completed it"


def _lag_words(lag: Lag) -> str:
    way = "behind the others: it did so many more" if lag.behind else "ahead of the others: it left so many out"
    verb = "run" if len(lag.ranks) > 1 else "runs"
    unit = "record" if lag.by == 1 else "records"
    return f"{names_of(lag.ranks)} {verb} {lag.by} {unit} {way} (from there on {lag.matched} fit when shifted)"


def _lag_json(lag: Lag) -> dict[str, Any]:
    return {
        "ranks": list(lag.ranks),
        "by": lag.by,
        "direction": "behind" if lag.behind else "ahead",
        "matched": lag.matched,
    }
