"""Ranks that wait in two groups for each other: opposite order, or one of them left a collective out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrate.analysis.trace.findings import Finding
from orchestrate.analysis.trace.folder import Job
from orchestrate.analysis.trace.model import Frame
from orchestrate.analysis.trace.odd import names_of
from orchestrate.analysis.trace.reconcile import Kind, Mismatch, odd_of_classes

__all__ = ["Crossing", "explained"]

_BLOCK = 16_384
_MOST_STACKS = 50_000


@dataclass(frozen=True, slots=True)
class Crossing:
    """Two ranks, the record of each where their orders part, and whether each is at the other's record later.

    The records' groups are numbers of channels.
    """

    ranks: tuple[int, int]
    at: tuple[np.void, np.void]
    went_on: tuple[bool, bool]


@dataclass(slots=True)
class _Camp:
    """The ranks that are at one place, and whether they are at the other place later."""

    place: tuple[int, int]
    records: dict[int, np.void]
    went_on: bool


def explained(job: Job, crossings: Sequence[Crossing]) -> list[Finding]:
    """One finding for all crossings of the same two places, with the smaller camp as the odd one."""
    places: dict[frozenset[tuple[int, int]], list[Crossing]] = {}
    for crossing in crossings:
        places.setdefault(frozenset(map(_place, crossing.at)), []).append(crossing)
    return [_explained(job, *_camps(same)) for same in places.values()]


def _place(record: np.void) -> tuple[int, int]:
    return int(record["group"]), int(record["key"])


def _camps(crossings: Iterable[Crossing]) -> tuple[_Camp, _Camp]:
    """The larger camp and the smaller; of two alike, the one that began first comes first."""
    camps: dict[tuple[int, int], _Camp] = {}
    for crossing in crossings:
        for rank, record, went_on in zip(crossing.ranks, crossing.at, crossing.went_on, strict=True):
            camp = camps.setdefault(_place(record), _Camp(_place(record), {}, went_on))
            camp.records[rank] = record
            camp.went_on |= went_on
    first, second = sorted(camps.values(), key=lambda camp: (-len(camp.records), _begin(camp)))
    return first, second


def _begin(camp: _Camp) -> int:
    return min(int(record["start"]) for record in camp.records.values())


def _explained(job: Job, many: _Camp, few: _Camp) -> Finding:
    records: dict[int, np.void | None] = {**many.records, **few.records}
    said = dict.fromkeys(many.records, _name(job, many)) | dict.fromkeys(few.records, _name(job, few))
    odd = odd_of_classes(said)
    group = job.interned.groups[many.place[0]]
    skipped = odd is not None and not few.went_on and _left_out(job, many, few)
    words: tuple[str, ...]
    if skipped:
        kind = Kind.MISSING_RANK
        words = (f"{names_of(list(few.records))} never issued it, and went on to {_name(job, few)}",)
        said = dict.fromkeys(many.records, "has it") | dict.fromkeys(few.records, "has none")
    else:
        kind, words = Kind.ORDER, (_told(job, many, few), _told(job, few, many))
    return Finding(
        kind, group, many.place[0], records, odd, Mismatch(kind, said, odd), words, place=many.place[1],
        tails={rank: record.reshape(1) for rank, record in (many.records | few.records).items()},
    )  # fmt: skip


def _told(job: Job, camp: _Camp, other: _Camp) -> str:
    ranks = list(camp.records)
    verb, waits = ("are", "wait") if len(ranks) > 1 else ("is", "waits")
    then = f"then in {_name(job, other)}" if camp.went_on else f"and {waits} there, before {_name(job, other)}"
    return f"{names_of(ranks)} {verb} in {_name(job, camp)} first{',' if camp.went_on else ''} {then}"


def _name(job: Job, camp: _Camp) -> str:
    record = next(iter(camp.records.values()))
    op, group = job.interned.calls[int(record["call"])].op, job.interned.groups[camp.place[0]]
    return f"{op} #{camp.place[1] >> 12} of group {group}"


def _left_out(job: Job, many: _Camp, few: _Camp) -> bool:
    """Whether the few left out what the many wait in, rather than take the two in the opposite order.

    Up to where all wait the two look alike. It is taken for left out when the few came by the way that leads there
    every time: the call of theirs was made from the same code before, and from other code than that of the many.
    """
    rank, record = next(iter(few.records.items()))
    other, theirs = next(iter(many.records.items()))
    here, there = _site(job, rank, record), _site(job, other, theirs)
    if not here or here == there:
        return False
    return _seen_before(job, rank, record, here)


def _site(job: Job, rank: int, record: np.void) -> tuple[Frame, ...]:
    return job.traces[rank].frames(record)


def _seen_before(job: Job, rank: int, record: np.void, site: tuple[Frame, ...]) -> bool:
    trace = job.traces[rank]
    looked: set[int] = set()  # the stacks, by what a trace finds them by
    for block in trace.blocks(_BLOCK):
        for one in block[(block["ref"] < record["ref"]) & (block["p2p"] == 0)]:
            local = int(one["local"])
            if local in looked:
                continue
            if len(looked) > _MOST_STACKS:
                return False
            looked.add(local)
            if _site(job, rank, one) == site:
                return True
    return False
