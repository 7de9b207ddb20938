"""One group's stream of collectives, aligned over its ranks by sequence and compared block by block."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrate.analysis.trace.calls import needs_everybody
from orchestrate.analysis.trace.findings import Finding, Undecided
from orchestrate.analysis.trace.model import RECORD, Block, Ended, Group, Interned, RankTrace, State
from orchestrate.analysis.trace.reconcile import Kind, Mismatch, odd_of_classes, reconcile

__all__ = ["Channel"]

_HEAD = 8
"""Records before a finding that are kept to be shown."""
_MOST_COMBINATIONS = 100_000


class Channel:
    """The records of `group` (or of one of its point-to-point channels), by rank.

    `members` are the ranks whose traces are here; `lasting` says how many records after a disagreement are kept.
    """

    def __init__(
        self, number: int, group: Group, members: Sequence[int], traces: Mapping[int, RankTrace], interned: Interned,
        lasting: int,
    ) -> None:  # fmt: skip
        self.number = number
        self.group = group
        self.members = tuple(members)
        self.matched = 0
        self.finding: Finding | None = None
        self.unfinished: Finding | None = None
        self.undecided: list[Undecided] = []
        self._traces = traces
        self._interned = interned
        self._lasting = lasting
        self._queues: dict[int, Block] = {rank: np.zeros(0, RECORD) for rank in members}
        self._heads: dict[int, Block] = dict(self._queues)
        self._fit: dict[tuple[int, ...], Mismatch | None] = {}
        self._begun = False
        self._closed = False
        self._met = False  # whether its members have completed one that needs everybody: then they are everybody

    def all_are_here(self, everybody: Collection[int] | None) -> bool:
        """Whether what is `unfinished` has a record of each rank of the group; None for not said who they are."""
        if self.unfinished is None:
            return False
        if everybody is None:
            return self._met and len(self.unfinished.records) > 1
        return set(everybody) <= {rank for rank, record in self.unfinished.records.items() if record is not None}

    def waiting(self, rank: int) -> int:
        """Records of `rank` that wait for those of others."""
        return 0 if self._closed or rank not in self._queues else len(self._queues[rank])

    def add(self, rank: int, records: Block) -> None:
        """Take the next records of `rank`."""
        if rank not in self._queues:
            return
        queue = self._queues[rank]
        if self.unfinished is not None and self._traces[rank].end.how is not Ended.DUMP and len(records):
            record = self.unfinished.records.get(rank)
            if record is not None and record["state"] == State.PENDING:
                self.unfinished = None
        if self._closed:
            room = self._lasting - len(queue)
            records = records[: max(room, 0)]
        if len(records):
            self._queues[rank] = np.concatenate([queue, records]) if len(queue) else records

    def advance(self, ended: Mapping[int, bool]) -> None:
        """Compare what has come from every rank; `ended` says of whom no more will come."""
        while not self._closed:
            lacking = [rank for rank in self.members if not len(self._queues[rank])]
            if any(not ended[rank] for rank in lacking) or len(lacking) == len(self.members):
                return
            if not self._begun:
                self._begin()
                continue
            if lacking:
                self._leftover(lacking)
                continue
            self._compare(min(len(queue) for queue in self._queues.values()))

    def conflict(self, words: Sequence[str], said: Mapping[int, str]) -> None:
        """The ranks do not agree about who is in the group: its first records are the disagreement."""
        records = {rank: queue[0] if len(queue) else None for rank, queue in self._queues.items()}
        mismatch = Mismatch(Kind.GROUP, said, odd_of_classes(said))
        self._found(Kind.GROUP, records, mismatch.odd, mismatch, tuple(words))

    def _begin(self) -> None:
        """Where a ring was overwritten, leave out what came before the latest start: nothing compares to it."""
        self._begun = True
        late = [rank for rank in self.members if self._traces[rank].starts_late]
        firsts = {rank: int(queue[0]["key"]) for rank, queue in self._queues.items() if len(queue)}
        empty = [rank for rank in late if rank not in firsts]
        if empty and self.group.pair is None:
            for rank in empty:
                self._undecided(rank, f"nothing of group {self.group} is left in it: its start was overwritten")
            self._leave_out(empty)
            self._begun = False
            return
        if late and self.group.pair is not None:
            self._undecided(late[0], f"its start was overwritten: messages of {self.group} can not be counted")
            self._close()
            return
        start = max((firsts[rank] for rank in late), default=0)
        if start <= min(firsts.values()):
            return
        for rank in late:
            if firsts[rank] > min(firsts.values()):
                sequence = firsts[rank] >> 12
                self._undecided(rank, f"its start was overwritten: group {self.group} is in it from #{sequence} on")
        # The first one left may have lost fellows of the same sequence number.
        for rank, queue in self._queues.items():
            self._queues[rank] = queue[np.searchsorted(queue["key"], ((start >> 12) + 1) << 12) :]

    def _compare(self, count: int) -> None:
        heads = {rank: queue[:count] for rank, queue in self._queues.items()}
        leader = heads[self.members[0]]["key"]
        apart = np.zeros(count, np.bool_)
        for rank in self.members[1:]:
            apart |= heads[rank]["key"] != leader
        first_apart = int(np.argmax(apart)) if apart.any() else count
        first, mismatch = self._first_mismatch(heads, first_apart)
        self._look_for_unfinished(heads, first)
        self._met = self._met or self._have_met(heads, first)
        self._drop(first)
        if mismatch is not None:
            records = {rank: self._queues[rank][0] for rank in self.members}
            self._found(mismatch.kind, records, mismatch.odd, mismatch)
        elif first < count:
            self._gap()

    def _first_mismatch(self, heads: Mapping[int, Block], count: int) -> tuple[int, Mismatch | None]:
        """Where the first of `count` records stands whose calls do not fit together, and how not."""
        calls = np.stack([heads[rank]["call"][:count] for rank in self.members])
        codes, combinations = _combined(calls)
        wrong: dict[int, Mismatch] = {}
        for code, combination in enumerate(combinations):
            found = self._fits(combination)
            if found is not None:
                wrong[code] = found
        if not wrong:
            return count, None
        places = np.flatnonzero(np.isin(codes, list(wrong)))
        return int(places[0]), wrong[int(codes[places[0]])]

    def _fits(self, combination: tuple[int, ...]) -> Mismatch | None:
        if combination not in self._fit:
            if len(self._fit) > _MOST_COMBINATIONS:
                self._fit.clear()
            calls = {rank: self._interned.calls[call] for rank, call in zip(self.members, combination, strict=True)}
            self._fit[combination] = reconcile(self.group, calls)
        return self._fit[combination]

    def fits(self, records: Mapping[int, np.void]) -> bool:
        """Whether these records would be one collective."""
        return self._fits(tuple(int(records[rank]["call"]) for rank in self.members)) is None

    def _look_for_unfinished(self, heads: Mapping[int, Block], count: int) -> None:
        """The first collective that fits together and that some rank never finished."""
        if self.unfinished is not None or self.group.pair is not None:
            return
        stuck, retired = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        for rank in self.members:
            stuck |= self._stuck(rank, heads[rank]["state"][:count])
            retired |= heads[rank]["state"][:count] == State.RETIRED
        stuck &= ~retired  # gloo marks an entry some time after it ended: where one rank has, all have joined
        if not stuck.any():
            return
        place = int(np.argmax(stuck))
        records: dict[int, Any] = {rank: heads[rank][place] for rank in self.members}
        how = {rank: _how_far(int(record["state"])) for rank, record in records.items()}
        mismatch = Mismatch(Kind.NEVER_COMPLETED, how, odd_of_classes(how) if len(set(how.values())) > 1 else ())
        self.unfinished = Finding(
            Kind.NEVER_COMPLETED, self.group, self.number, records, mismatch.odd, mismatch,
            tails={rank: heads[rank][place : place + self._lasting].copy() for rank in self.members},
            heads={rank: heads[rank][max(0, place - _HEAD) : place].copy() for rank in self.members},
        )  # fmt: skip

    def _have_met(self, heads: Mapping[int, Block], count: int) -> bool:
        done = np.ones(count, np.bool_)
        for rank in self.members:
            done &= np.isin(heads[rank]["state"][:count], [State.COMPLETED, State.RETIRED])
        calls = np.unique(heads[self.members[0]]["call"][:count][done])
        return any(needs_everybody(self._interned.calls[int(call)].op) for call in calls)

    def _stuck(self, rank: int, states: NDArray[np.int8]) -> NDArray[np.bool_]:
        """Which of the next records of `rank` never ended.

        A call that others of its rank follow has returned, even if its file has lost when: it is no evidence.
        """
        pending = states == State.PENDING
        if self._traces[rank].end.how is not Ended.DUMP:
            pending[: len(self._queues[rank]) - 1] = False
        return np.asarray(pending | (states == State.WAITING) | (states == State.RAISED))

    def _gap(self) -> None:
        """The first records have different sequence numbers: some ranks have none of the lowest one."""
        firsts = {rank: int(queue[0]["key"]) for rank, queue in self._queues.items()}
        lowest = min(firsts.values())
        lacking = [rank for rank, key in firsts.items() if key != lowest]
        self._missing(lacking, within=True)

    def _leftover(self, lacking: Sequence[int]) -> None:
        """The traces of `lacking` have ended, others go on."""
        lowest = min(int(queue[0]["key"]) for queue in self._queues.values() if len(queue))
        behind = [r for r, queue in self._queues.items() if len(queue) and int(queue[0]["key"]) != lowest]
        self._missing([*lacking, *behind], within=False)

    def _missing(self, lacking: Sequence[int], *, within: bool) -> None:
        present: dict[int, Any] = {rank: self._queues[rank][0] for rank in self.members if rank not in lacking}
        doubts = {rank: why for rank in lacking if (why := self._doubt(rank, present, within=within)) is not None}
        for rank, why in doubts.items():
            self._undecided(rank, why)
        certain = [rank for rank in lacking if rank not in doubts]
        if not certain:
            self._leave_out(doubts)
            return
        # Of those in doubt nothing is said: they may have been there.
        said = dict.fromkeys(present, "has it") | dict.fromkeys(certain, "has none")
        records: dict[int, Any] = present | dict.fromkeys(lacking)
        odd = odd_of_classes(said)
        self._found(Kind.MISSING_RANK, records, odd, Mismatch(Kind.MISSING_RANK, said, odd))

    def _leave_out(self, ranks: Collection[int]) -> None:
        """Go on without ranks of which nothing more is known."""
        self.members = tuple(rank for rank in self.members if rank not in ranks)
        for rank in ranks:
            del self._queues[rank]
            self._heads.pop(rank, None)
        self._fit.clear()
        if len(self.members) < 2:
            self._close()

    def _doubt(self, rank: int, present: Mapping[int, Any], *, within: bool) -> str | None:
        """Why `rank` may have taken part although its trace has no such record, or None: it did not."""
        trace = self._traces[rank]
        sequence = min(int(record["key"]) for record in present.values())
        number = sequence if self.group.pair is not None else sequence >> 12
        where = f"#{number} of group {self.group}"
        if within:
            if not trace.gapless and self._others_completed(present):
                return f"{where} is not in the dump, yet others completed it: entries are missing"
            return None
        if trace.end.how is Ended.CUT:
            return f"what came after this is unknown ({trace.end.why}): {where} may have been there"
        if trace.end.how is Ended.DUMP and self._others_completed(present):
            return f"the dump ends before {where}, which others completed: it was made earlier than theirs"
        return None

    def _others_completed(self, present: Mapping[int, Any]) -> bool:
        if self.group.pair is not None:
            return all(int(record["state"]) in {State.COMPLETED, State.RETIRED} for record in present.values())
        call = self._interned.calls[int(next(iter(present.values()))["call"])]
        done = [int(record["state"]) in {State.COMPLETED, State.RETIRED} for record in present.values()]
        return any(done) if needs_everybody(call.op) else all(done)

    def _found(
        self, kind: Kind, records: Mapping[int, Any], odd: tuple[int, ...] | None, mismatch: Mismatch | None,
        words: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        copies = {rank: None if record is None else record.copy() for rank, record in records.items()}
        self.finding = Finding(kind, self.group, self.number, copies, odd, mismatch, words)
        self._close()

    def finish(self) -> None:
        """Nothing more will come: what was kept after the disagreement goes to it."""
        if self.unfinished is not None and any(
            record is not None
            and int(record["state"]) in {State.PENDING, State.WAITING}
            and self._traces[rank].end.how is Ended.CUT
            for rank, record in self.unfinished.records.items()
        ):
            self.unfinished = None  # where the file is damaged, an end may be what was lost
        if self.finding is not None:
            self.finding.tails = dict(self._queues)
            self.finding.heads = dict(self._heads)

    def _drop(self, count: int) -> None:
        self.matched += count
        for rank, queue in self._queues.items():
            if count:
                self._heads[rank] = queue[max(0, count - _HEAD) : count].copy()
            self._queues[rank] = queue[count:]

    def _close(self) -> None:
        self._closed = True
        for rank, queue in self._queues.items():
            self._queues[rank] = queue[: self._lasting].copy()

    def _undecided(self, rank: int, why: str) -> None:
        trace = self._traces[rank]
        self.undecided.append(Undecided(rank, why, trace.path, trace.end.offset))


def _combined(calls: NDArray[np.int32]) -> tuple[NDArray[np.int64], list[tuple[int, ...]]]:
    """(n,) codes for the columns of `calls` (ranks, n), equal where the columns are; and the column of each code."""
    codes = np.zeros(calls.shape[1], np.int64)
    firsts = np.zeros(0, np.int64)
    for row in calls:
        radix = int(row.max(initial=0)) + 1
        _, firsts, codes = np.unique(codes * radix + row, return_index=True, return_inverse=True)
    return codes, [tuple(column) for column in calls[:, firsts].T.tolist()]


def _how_far(state: int) -> str:
    match State(state):
        case State.PENDING | State.WAITING:
            return "never completed"
        case State.RAISED:
            return "raised an error"
        case State.COMPLETED | State.RETIRED | State.UNKNOWN:
            return "completed"
