"""The comparison: every rank's trace read once, as a stream, and each group's records aligned over its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from orchestrate.analysis.trace.channel import Channel
from orchestrate.analysis.trace.crossings import Crossing, explained
from orchestrate.analysis.trace.findings import Finding, Undecided
from orchestrate.analysis.trace.flight_recorder import FlightRecorderTrace
from orchestrate.analysis.trace.folder import Job
from orchestrate.analysis.trace.forwards import Forwards
from orchestrate.analysis.trace.model import Block, Ended, Group, Interned, RankTrace
from orchestrate.analysis.trace.order import OrderWatch
from orchestrate.analysis.trace.reconcile import Kind

__all__ = ["WINDOW", "Compared", "compare"]

WINDOW = 65_536
"""Records of one rank that are held at a time."""
LASTING = 256
"""Records after a disagreement that are kept, to recognise a lag by."""
_STEP = 16_384
"""Records that are decoded at a time: what fits a cache."""
_MOST_RANKS_IN_PAIRS = 16


@dataclass(frozen=True, slots=True)
class Compared:
    """Everything that the traces of a job say about each other.

    `findings` hold the first disagreement of each group, `unfinished` the first collective of each that fits and never
    completed; `undecided` are the places where a trace says too little. `records` counts them by rank.
    """

    job: Job
    findings: tuple[Finding, ...]
    unfinished: tuple[Finding, ...]
    undecided: tuple[Undecided, ...]
    forwards: Mapping[int, Forwards]
    records: Mapping[int, int]
    matched: int
    channels: Mapping[int, Channel]


def compare(job: Job, *, window: int = WINDOW) -> Compared:
    """Compare the traces of `job`, holding at most about `window` records of each rank and group at a time."""
    run = _Run(job, window)
    run.read()
    return run.compared()


@dataclass(slots=True)
class _Reading:
    trace: RankTrace
    blocks: Iterator[Block]
    forwards: Forwards
    seen: dict[int, int] = field(default_factory=dict)
    """The channels of the groups of which it has records."""
    records: int = 0
    last: int = -1
    """The number of its last record."""
    ended: bool = False


class _Run:
    def __init__(self, job: Job, window: int) -> None:
        self._job = job
        self._interned: Interned = job.interned
        self._window = window
        step = max(1024, min(window, _STEP))
        self._readings = {rank: _Reading(trace, trace.blocks(step), Forwards()) for rank, trace in job.traces.items()}
        self._channels: dict[int, Channel] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._declared: dict[str, dict[int, Group]] = {}
        self._conflicts: set[str] = set()
        self._orders: dict[tuple[int, int], OrderWatch] = {}
        self._anyone: set[tuple[str, int]] = set()
        self._overflow: list[Undecided] = []
        timed = [rank for rank, trace in job.traces.items() if not trace.starts_late]
        if len(timed) <= _MOST_RANKS_IN_PAIRS:
            for first, second in combinations(timed, 2):
                watch = OrderWatch(job.traces[first], job.traces[second], window)
                self._orders[first, second] = watch

    def read(self) -> None:
        """Read all traces, always the one that others wait for."""
        readings = self._readings
        while going := [rank for rank, reading in readings.items() if not reading.ended]:
            waiting = {rank: sum(channel.waiting(rank) for channel in self._channels.values()) for rank in going}
            rank = min(going, key=lambda rank: (waiting[rank], readings[rank].records))
            if waiting[rank] > 8 * self._window:
                self._overflow.append(
                    Undecided(
                        rank, f"ranks are more than {8 * self._window:,} records apart; a larger --window may tell"
                    )
                )
                return
            block = next(readings[rank].blocks, None)
            if block is None:
                readings[rank].ended = True
                self._advance(self._channels.values())
            else:
                self._take(rank, block)

    def compared(self) -> Compared:
        """What was found, once all is read."""
        channels = self._channels.values()
        for channel in channels:
            channel.finish()
        findings = [channel.finding for channel in channels if channel.finding is not None]
        findings = [finding for finding in findings if not self._from_anyone(finding)]
        unfinished, waits, unknown = self._unfinished()
        findings += waits
        undecided = [
            *self._overflow,
            *unknown,
            *(place for channel in channels for place in channel.undecided),
            *self._cuts(),
        ]
        return Compared(
            job=self._job,
            findings=tuple(self._with_orders(findings)),
            unfinished=tuple(unfinished),
            undecided=tuple(undecided),
            forwards={rank: reading.forwards for rank, reading in self._readings.items()},
            records={rank: reading.records for rank, reading in self._readings.items()},
            matched=sum(channel.matched for channel in channels),
            channels=dict(self._channels),
        )

    def _unfinished(self) -> tuple[list[Finding], list[Finding], list[Undecided]]:
        """What all of a group never finished or only some did; orders that cross; groups that may have more ranks.

        A rank of which there is no such record may be the one that all wait for.
        """
        certain: list[Finding] = []
        waits: list[Finding] = []
        unknown: list[Undecided] = []
        alone: list[tuple[int, np.void]] = []
        for channel in self._channels.values():
            finding = channel.unfinished
            if finding is None:
                continue
            everybody = self._everybody(channel.group)
            if channel.all_are_here(everybody) or _some_completed(finding):
                certain.append(finding)
            elif everybody is None:
                rank, record = next((r, one) for r, one in sorted(finding.records.items()) if one is not None)
                where = f"#{int(record['key']) >> 12} of group {channel.group}"
                path = self._job.traces[rank].path
                unknown.append(Undecided(rank, f"{where} did not end, and who else is in the group is not said", path))
                if len(finding.records) == 1 and int(record["ref"]) == self._readings[rank].last:
                    record = record.copy()
                    record["group"] = channel.number
                    alone.append((rank, record))
        if len(alone) == self._job.world_size == 2 and alone[0][0] != alone[1][0]:
            # Nobody waits alone, so in a job of two each waits for the other.
            (first, one), (second, other) = alone
            waits, unknown = explained(self._job, [Crossing((first, second), (one, other), (False, False))]), []
        return certain, waits, unknown

    def _everybody(self, group: Group) -> tuple[int, ...] | None:
        if group.ranks is None and group.desc == "default_pg":
            return tuple(range(self._job.world_size))
        return group.ranks

    def _take(self, rank: int, block: Block) -> None:
        reading = self._readings[rank]
        reading.records += len(block)
        reading.last = int(block["ref"][-1]) if len(block) else reading.last
        reading.forwards.add(block)
        groups = block["group"]
        touched = []
        translate = np.arange(len(self._interned.groups))
        for number in np.unique(groups).tolist():
            channel = self._channel(rank, number)
            translate[number] = channel.number
            of_group = block[groups == number] if len(groups) else block
            channel.add(rank, of_group)
            touched.append(channel)
        self._advance(touched)
        self._watch(rank, block, translate)

    def _watch(self, rank: int, block: Block, translate: NDArray[np.int64]) -> None:
        watches = [(pair, watch) for pair, watch in self._orders.items() if rank in pair]
        if not watches or len(self._channels) < 2:
            return
        collective = block[block["p2p"] == 0].copy()
        collective["group"] = translate[collective["group"]]
        members = {number: channel.members for number, channel in self._channels.items()}
        for pair, watch in watches:
            both = [number for number, ranks in members.items() if set(pair) <= set(ranks)]
            part = collective if len(both) == len(members) else collective[np.isin(collective["group"], both)]
            watch.add(pair.index(rank), part)

    def _advance(self, channels: Iterable[Channel]) -> None:
        ended = {rank: reading.ended for rank, reading in self._readings.items()}
        for channel in channels:
            channel.advance(ended)

    def _channel(self, rank: int, number: int) -> Channel:
        """The channel of a group that `rank` has a record of; descriptions do not tell groups apart."""
        known = self._readings[rank].seen.get(number)
        if known is not None:
            return self._channels[known]
        group = self._interned.groups[number]
        if group.pair is not None and -1 in group.pair:
            self._anyone.add((group.name, group.pair[1]))
        identity = (group.name, group.ranks, group.pair, group.tag)
        known = self._numbers.setdefault(identity, number)
        if known not in self._channels:
            members = self._members(group)
            self._channels[known] = Channel(known, group, members, self._job.traces, self._interned, LASTING)
        self._readings[rank].seen[number] = known
        if group.pair is None:
            self._declare(rank, group)
        return self._channels[known]

    def _members(self, group: Group) -> list[int]:
        ranks = group.pair if group.pair is not None else group.ranks
        if ranks is not None:
            return [rank for rank in self._job.traces if rank in ranks]
        if group.desc == "default_pg":
            return list(self._job.traces)
        # Who is in it is not said: those that use it. Such traces are dumps, which name all their groups at once.
        named = {(group.name, group.ranks)}
        return [
            rank
            for rank, trace in self._job.traces.items()
            if any((self._interned.groups[n].name, self._interned.groups[n].ranks) in named for n in trace.groups)
        ]

    def _declare(self, rank: int, group: Group) -> None:
        """Notice two ranks that name the same group and do not agree about who is in it."""
        declared = self._declared.setdefault(group.name, {})
        declared.setdefault(rank, group)
        if group.ranks is None or group.name in self._conflicts:
            return
        for other, theirs in declared.items():
            if theirs.ranks is None or theirs.ranks == group.ranks or declared[rank] is not group:
                continue
            if rank in theirs.ranks or other in group.ranks:
                self._conflicts.add(group.name)
                return

    def _from_anyone(self, finding: Finding) -> bool:
        """Whether a message may have been received by a rank that receives from anyone: its order is not known."""
        pair = finding.group.pair
        return pair is not None and (-1 in pair or (finding.group.name, pair[1]) in self._anyone)

    def _with_orders(self, findings: list[Finding]) -> list[Finding]:
        """The findings, with a group's missing ranks explained where ranks use groups in opposite order."""
        crossings = [found for watch in self._orders.values() if (found := watch.crossing()) is not None]
        orders = explained(self._job, crossings)
        for name in sorted(self._conflicts):
            findings = [finding for finding in findings if finding.group.name != name or finding.group.pair is not None]
            findings.append(self._conflict(name))
        kept = []
        for order in orders:
            places = {(int(r["group"]), int(r["key"])) for r in order.records.values() if r is not None}
            same = [f for f in findings if f.group.pair is None and (f.channel, f.key) in places]
            if any(finding.kind is not Kind.MISSING_RANK for finding in same):
                continue
            findings = [finding for finding in findings if not any(finding is one for one in same)]
            kept.append(order)
        return findings + kept

    def _conflict(self, name: str) -> Finding:
        declared = {rank: group for rank, group in self._declared[name].items() if group.ranks is not None}
        said = {rank: "ranks " + ", ".join(map(str, group.ranks or ())) for rank, group in declared.items()}
        merged: Finding | None = None
        for channel in self._channels.values():
            if channel.group.name == name and channel.group.pair is None:
                if channel.finding is None or channel.finding.kind is not Kind.GROUP:
                    channel.conflict((), said)
                    channel.finish()
                found = channel.finding
                if merged is None:
                    merged = found
                elif found is not None:
                    merged.records |= {rank: r for rank, r in found.records.items() if r is not None}
        if merged is None:
            raise AssertionError("a group that was declared has a channel")
        return merged

    def _cuts(self) -> list[Undecided]:
        """Traces that do not hold to their end, and ranks without one."""
        places = [
            Undecided(rank, f"rank {rank}: {trace.end.why}", trace.path, trace.end.offset)
            for rank, trace in self._job.traces.items()
            if trace.end.how is Ended.CUT
        ]
        places += [Undecided(rank, f"there is no trace of rank {rank}") for rank in self._job.missing]
        for rank, trace in self._job.traces.items():
            for number, size in (trace.implied if isinstance(trace, FlightRecorderTrace) else {}).items():
                channel = self._channels[self._readings[rank].seen[number]]
                if channel.group.ranks is None and size > len(channel.members) and rank == channel.members[0]:
                    few = f"{size} ranks, as an all_gather says, but there are traces of {len(channel.members)}"
                    places.append(Undecided(rank, f"group {channel.group} has {few}", trace.path))
        return places


def _some_completed(finding: Finding) -> bool:
    return finding.mismatch is not None and "completed" in finding.mismatch.said.values()
