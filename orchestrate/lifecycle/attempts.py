"""One attempt of a run: where it asks, for which cells, until when; and which attempt follows one that was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from orchestrate.backends.catalogue import provider_of
from orchestrate.backends.protocol import Ownership, Request
from orchestrate.clock import from_wire, to_wire
from orchestrate.lifecycle.journal import JournalView
from orchestrate.lifecycle.payload import ARCHIVE, GROUPS
from orchestrate.lifecycle.plan import Corpus, Plan
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.receipts.journal_chain import ATTEMPT_KIND
from orchestrate.verdict import Verdict

__all__ = ["Attempt", "NextTry", "Tried", "attempt_of", "next_try"]

LEAST_TRY_S = 5.0
"""A try that has less time than this to be granted is not begun."""

LONGEST_PAUSE_S = 300.0
"""The longest pause between two rounds, unless the provider advised a longer one."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at acquiring and running.

    Attributes:
        number: as its receipts have it; the first is 1.
        why: `first`, `again` (the same place was full), `elsewhere` (another place was refused), `resume`.
        place: which of the plan's places is asked.
        cells: the keys of the cells to run.
        deadline_s: how long it may take, teardown included; `deadline_at` is when that is over.
        expires_at: when anybody may reap what is left of it, RFC 3339.
    """

    number: int
    why: str
    place: int
    cells: tuple[str, ...]
    deadline_s: float
    deadline_at: datetime
    expires_at: str

    @classmethod
    def first(cls, plan: Plan) -> Attempt:
        """The attempt that every plan begins with."""
        return cls(1, "first", 0, plan.cells, float(plan.tree["deadline_s"]), plan.deadline_at,
                   str(plan.tree["expires_at"]))  # fmt: skip

    @classmethod
    def later(cls, plan: Plan, number: int, why: str, place: int, cells: tuple[str, ...], deadline_s: float,
              now: datetime) -> Attempt:  # fmt: skip
        """One that begins now."""
        deadline_at = now + timedelta(seconds=deadline_s)
        expires_at = deadline_at + timedelta(seconds=provider_of(plan.backend).expiry_slack_s)
        return cls(number, why, place, cells, deadline_s, deadline_at, to_wire(expires_at))

    def as_facts(self) -> dict[str, Any]:
        """The facts of the journal record with which it begins."""
        return {
            "attempt": self.number,
            "why": self.why,
            "place": self.place,
            "cells": list(self.cells),
            "deadline_s": self.deadline_s,
            "deadline_at": to_wire(self.deadline_at),
            "expires_at": self.expires_at,
        }

    def settings(self, plan: Plan) -> Mapping[str, Any]:
        """What the backend is opened with: the plan's settings, with what makes this place."""
        return {**plan.settings, **plan.places[self.place]}

    def ownership(self, plan: Plan, run: RunDirectory, token: str) -> Ownership:
        """The marks that everything of this attempt carries."""
        return Ownership(plan.run_id, token, str(plan.tree["owner"]), self.expires_at, run.path)

    def request(self, plan: Plan, run: RunDirectory, corpus: Corpus | None = None) -> Request:
        """What to ask the backend for."""
        environment = dict(plan.tree["environment"])
        if corpus is not None and corpus.path is not None:
            environment.update(CORPUS=str(corpus.path), CORPUS_SHA256=corpus.sha256)
        if self.cells != plan.cells:
            environment["CELL_KEYS"] = " ".join(self.cells)
        return Request(
            cell_set=str(plan.tree["cell_set"]),
            cells=self.cells,
            device=plan.device,
            ranks=int(plan.tree["ranks"]),
            environment=environment,
            evidence=run.evidence_of(self.number),
            logs=run.logs,
            corpora_not_given=tuple(each["name"] for each in plan.tree["corpora"] if each["sha256"] is None),
            deadline_s=self.deadline_s,
            reserve_s=float(plan.tree["teardown_reserve_s"]),
            groups=run.path / GROUPS if plan.payload_files else None,
            archive=run.path / ARCHIVE if plan.payload_files else None,
        )


def attempt_of(plan: Plan, view: JournalView) -> Attempt:
    """The newest attempt of a run."""
    record = view.last(ATTEMPT_KIND)
    if record is None:
        return Attempt.first(plan)
    facts = record.facts
    return Attempt(
        number=facts["attempt"],
        why=facts["why"],
        place=facts["place"],
        cells=tuple(facts["cells"]),
        deadline_s=facts["deadline_s"],
        deadline_at=from_wire(facts["deadline_at"]),
        expires_at=facts["expires_at"],
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """A place that was asked, and what its refusal means."""

    place: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class NextTry:
    """Which place to ask next, why, and how many seconds from now."""

    place: int
    why: str
    after_s: float


def next_try(
    tried: Sequence[Tried], places: int, *, left_s: float, retry_after_s: float | None, first_pause_s: float
) -> NextTry | None:
    """What to try after the refusals `tried`; None when there is nothing more to try.

    First every place once, in order. Then, as long as the admission deadline is `left_s` away, those whose last answer
    was `capacity`, round after round, with a pause before each round that doubles from `first_pause_s` to
    `LONGEST_PAUSE_S`, and is no shorter than what the provider advised (`retry_after_s`) where that still fits.
    """
    if len(tried) < places:
        return NextTry(tried[-1].place + 1, "elsewhere", 0.0)
    newest = {each.place: each.verdict for each in tried}
    full = sorted(place for place, verdict in newest.items() if verdict is Verdict.CAPACITY)
    if not full:
        return None
    place = next((place for place in full if place > tried[-1].place), None)
    if place is not None:
        return NextTry(place, "again", 0.0) if left_s >= LEAST_TRY_S else None
    rounds = max(sum(each.place == place for each in tried) for place in full)
    pause_s = min(first_pause_s * 2 ** (rounds - 1), LONGEST_PAUSE_S)
    if retry_after_s is not None:
        pause_s = max(pause_s, retry_after_s)
    after_s = min(pause_s, left_s - LEAST_TRY_S)
    return NextTry(full[0], "again", after_s) if after_s >= 0 else None
