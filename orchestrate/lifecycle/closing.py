"""From wherever a run stopped to its closure: stop, collect, give back, look twice, decide, state.

The launcher, the warden and the recovery all end a run through `Closing`. It is decided by "something of ours may
exist", never by the result of the tests; it can be entered at any stage and entered again after it was interrupted;
and a failing step never keeps the next one from being tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from orchestrate.backends.catalogue import provider_of
from orchestrate.backends.protocol import Backend, Look, Request, Step
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import OrchestrateError
from orchestrate.lifecycle.capacity_report import capacity_report, refused_case
from orchestrate.lifecycle.census import Census, take_census
from orchestrate.lifecycle.closure import Closed, missing_stages, write_closure
from orchestrate.lifecycle.collecting import Collected, collect_evidence, node_words
from orchestrate.lifecycle.journal import Journal
from orchestrate.lifecycle.outcome import Decision, Ended, Ending, Known, decide
from orchestrate.lifecycle.plan import Plan
from orchestrate.lifecycle.recording import ReceiptWriter
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.receipts.canonical import canonical_bytes
from orchestrate.receipts.statement import Stage
from orchestrate.receipts.verify import verify_run
from orchestrate.verdict import Verdict

__all__ = ["Closing", "Narrator"]


class Narrator(Protocol):
    """Who tells a person what is going on. `orchestrate.report.console` has the ones that print."""

    def stage(self, name: str) -> None:
        """The run entered the stage `name`."""

    def deadline(self, at: datetime) -> None:
        """The run ends by itself at `at`."""

    def event(self, event: Mapping[str, Any]) -> None:
        """The node told of its progress."""

    def note(self, text: str) -> None:
        """Something a person should read now."""

    def tick(self) -> None:
        """Time passed."""


@dataclass(slots=True)
class Closing:
    """Ends one run. The caller holds its lock and gives up everything else to this object.

    Args:
        backend: told what earlier processes observed.
        pins: computes the digests of the source files as they are now; None where these can not be known.
        pause: waits for at least that many seconds.
        why: what the closure says about its reason for being.
    """

    run: RunDirectory
    plan: Plan
    journal: Journal
    receipts: ReceiptWriter
    backend: Backend
    request: Request
    pins: Callable[[], Mapping[str, str] | None]
    pause: Callable[[float], None]
    narrator: Narrator
    why: str = "the run ended"
    now: Callable[[], datetime] = utc_now
    doing: str = "ending the run"
    _problems: list[str] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)
    _given_back: Census | None = None

    def close(self, ending: Ending, cancelled: Callable[[], str | None] = lambda: None) -> Closed:
        """Run every remaining stage and write the closure.

        `ending` is how the payload ended. `cancelled` says who stopped the run, or that its launcher was lost; it is
        asked last thing before the verdict: a signal that comes during the teardown counts as well.
        """
        with self._going_on("the plan receipt"):
            self.state_plan()
        may_exist = self.journal.view.current.last("acquiring") is not None
        census = self._given_back
        collected: Collected | None = None
        if may_exist and census is None:
            self._note("tearing-down", because=_because(ending))
            self._stop()
            self._state_run(ending)
            collected = self._collect()
            self._release(ending)
            census = self._look_twice()
        collected = collected or self._collected()
        return self._close(ending, cancelled, collected, census, may_exist=may_exist)

    def give_back(self, ending: Ending) -> bool:
        """Release what a refused attempt may have left, and prove it gone; True where another attempt may follow."""
        if self.journal.view.current.last("acquiring") is None:
            return True
        self._note("tearing-down", because=_because(ending))
        self._stop()
        self._release(ending)
        self._given_back = self._look_twice()
        self.tell_capacity()
        return self._given_back is not None and self._given_back.confirmed

    def begin(self, backend: Backend, request: Request) -> None:
        """Another attempt begins, with a backend and a request of its own."""
        self.backend, self.request = backend, request
        self._steps, self._given_back = [], None

    def tell_capacity(self) -> None:
        """Write down what was refused, for whoever wants to read only that. It is in the closure as well."""
        report = capacity_report(self.journal.view)
        with self._going_on("capacity.json"):
            if report is not None:
                self.run.capacity.write_bytes(canonical_bytes(report))
            else:  # what an earlier attempt was refused is in the closure of that time
                self.run.capacity.unlink(missing_ok=True)

    def state_plan(self) -> None:
        """Write the plan receipt, with which every chain begins, unless it is there."""
        if not self.receipts.has(Stage.PLAN):
            facts = {"plan_sha256": self.plan.sha256, "plan": self.plan.tree}
            created_at = str(self.plan.tree["created_at"])
            self.receipts.write(Stage.PLAN, started_at=created_at, ended_at=self._time(), facts=facts)

    def _stop(self) -> None:
        self.doing = "ending the processes of the run"
        with self._going_on("stop"):
            steps = self.backend.stop()
            self._steps.extend(steps)
            self._note("stopped", steps=[asdict(step) for step in steps])
        self.observe()

    def observe(self) -> None:
        """Write what the backend observed to the journal, for whoever must go on without this process."""
        facts = self.backend.observed()
        if facts:
            self._note("observed", facts=[dict(fact) for fact in facts])

    def _state_run(self, ending: Ending) -> None:
        started = self.journal.view.current.last("submitting")
        if started is None or self.receipts.has(Stage.RUN):
            return
        with self._going_on("the run receipt"):
            usage = self.backend.usage()
            words = node_words(self.run, self.plan, self.journal.view)
            self.receipts.write(
                Stage.RUN,
                started_at=started.at,
                ended_at=self._time(),
                facts={
                    "payload": "cells",
                    "exit_code": ending.exit_code,
                    "signal": ending.signal,
                    "fault": ending.fault,
                    "ended": ending.ended.value,
                    "detail": ending.detail,
                    "processes": dict(usage.processes),
                    "wall_s": round(ending.wall_s, 3),
                    "peak_rss_bytes": usage.peak_rss_bytes,
                    "accelerators": self.plan.accelerators,
                    "image": dict(usage.image),
                    "notes": dict(usage.notes),
                    "cells": [asdict(word) for word in words],
                },
            )

    def _collect(self) -> Collected | None:
        if self.journal.view.current.last("submitting") is None or self.receipts.has(Stage.COLLECT):
            return None
        self._stage(Stage.COLLECT)
        self.doing = "bringing the evidence home"
        started = self._time()
        collected = None
        with self._going_on("collect"):
            problem = self._brought_home()
            if problem is not None:
                self._problems.append(problem)
            collected = self._collected()
            self.receipts.write(
                Stage.COLLECT,
                started_at=started,
                ended_at=self._time(),
                facts=collected.as_facts(problem),
                subjects=collected.subjects,
            )
        return collected

    def _brought_home(self) -> str | None:
        """What could not be fetched; None for nothing. After a call that fails, what is here is judged as it is."""
        try:
            return self.backend.collect(self.request).problem
        except (OSError, OrchestrateError, ValueError) as error:
            return f"collect failed: {error}"

    def _collected(self) -> Collected:
        return collect_evidence(self.run, self.plan, self.journal.view, self.pins())

    def _release(self, ending: Ending) -> None:
        self._stage(Stage.TEARDOWN)
        self.doing = "giving back what the run may own"
        started = self._time()
        with self._going_on("release"):
            steps = self.backend.release()
            self._steps.extend(steps)
            self._note("released", steps=[asdict(step) for step in steps])
        with self._going_on("the teardown receipt"):
            self.receipts.write(
                Stage.TEARDOWN,
                started_at=started,
                ended_at=self._time(),
                facts={
                    "decided_because": _because(ending),
                    "steps": [asdict(step) for step in self._steps],
                    "usage": self._usage(),
                },
            )

    def _usage(self) -> dict[str, float | None]:
        """What was held until now. Only with the release it ends."""
        usage = self.backend.usage()
        return {"gpu_s": usage.gpu_s, "cost_usd": usage.cost_usd}

    def _look_twice(self) -> Census | None:
        self._stage(Stage.CENSUS)
        self.doing = "looking whether anything of the run is left"
        started = self._time()
        with self._going_on("census"):
            provider = provider_of(self.plan.backend)
            census = take_census(
                self.backend,
                pause=self.pause,
                on_look=self._on_look,
                patience_s=provider.census_patience_s,
                gap_s=provider.census_gap_s,
            )
            with self._going_on("the census receipt"):
                self.receipts.write(Stage.CENSUS, started_at=started, ended_at=self._time(), facts=census.as_facts())
            return census
        return None

    def _on_look(self, look: Look) -> None:
        self._note("look", remaining=[asdict(item) for item in look.remaining], unknown=list(look.unknown))

    def _close(
        self,
        ending: Ending,
        cancelled: Callable[[], str | None],
        collected: Collected,
        census: Census | None,
        *,
        may_exist: bool,
    ) -> Closed:
        self._stage(Stage.CLOSURE)
        self.doing = "writing the closure"
        self.tell_capacity()
        remaining, unknown = _left(census, may_exist=may_exist)
        decision = decide(
            Known(
                ending=ending,
                cancelled=cancelled(),
                ran=self.journal.view.current.last("submitting") is not None,
                statuses=[word.status for word in collected.words],
                gaps=collected.gaps,
                changed=collected.changed,
                missing=missing_stages(self.receipts),
                unconfirmed=(*remaining, *unknown),
                problems=self._problems,
                told=collected.told,
                judged=None if collected.groups is None else collected.groups.verdict,
            )
        )
        refused = refused_case(self.journal.view)
        return self._write(Closed(decision, None, collected, census, remaining, unknown, ending.remedy, refused))

    def close_again(self, before: Mapping[str, Any]) -> Closed:
        """Remove what is left of a closed run, look twice, and write a further closure that supersedes `before`.

        The cells' result stands as it was; only what is known about the teardown is new.
        """
        self._note("tearing-down", because=self.why)
        self._stop()
        self._release(Ending(Ended.BY_ITSELF, detail=self.why))
        census = self._look_twice()
        self._stage(Stage.CLOSURE)
        remaining, unknown = _left(census, may_exist=True)
        result = Verdict.from_label(str(before.get("result", before["verdict"])))
        decision = Decision(
            verdict=Verdict.TEARDOWN_UNCONFIRMED if remaining or unknown else result,
            result=result,
            test_verdict=Verdict.from_label(str(before["test_verdict"])),
            reason=f"{self.why}; before: {before.get('reason')}",
        )
        return self._write(Closed(decision, None, self._collected(), census, remaining, unknown))

    def _write(self, closed: Closed) -> Closed:
        try:
            closed = write_closure(
                closed, plan=self.plan, journal=self.journal, receipts=self.receipts, why=self.why, now=self.now()
            )
        except (OSError, OrchestrateError) as error:
            self.narrator.note(f"the closure could not be written: {error}")
        else:
            self.run.free_reserve()
            closed = self._verified(closed)
        return closed

    def _verified(self, closed: Closed) -> Closed:
        """A pass whose receipts do not hold is none: a further closure says so, and what is wrong with them."""
        if closed.decision.verdict is not Verdict.PASSED or (found := verify_run(self.run.path)).holds:
            return closed
        said = f"its receipts do not hold: {found.problems[0]}"
        decision = replace(closed.decision, verdict=Verdict.INCOMPLETE, result=Verdict.INCOMPLETE, reason=said)
        remedy = f"`orchestrate verify {self.run.run_id}` lists what is wrong; whoever ran meanwhile could write there"
        closed = replace(closed, decision=decision, remedy=remedy)
        try:
            return write_closure(
                closed, plan=self.plan, journal=self.journal, receipts=self.receipts, why=said, now=self.now()
            )
        except (OSError, OrchestrateError) as error:
            self.narrator.note(f"the closure that says so could not be written: {error}")
            return closed

    def _stage(self, stage: Stage) -> None:
        self._note("stage", stage=stage.value)
        self.narrator.stage(stage.value)

    def _note(self, kind: str, **facts: Any) -> None:
        """A record that must not keep the teardown from going on when the disk refuses it."""
        try:
            self.journal.append(kind, **facts)
        except OSError as error:
            self._problems.append(f"the journal refused a record of kind {kind}: {error.strerror}")
            self.narrator.note(self._problems[-1])

    @contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, OrchestrateError, ValueError) as error:
            self._problems.append(f"{what} failed: {error}")
            self.narrator.note(self._problems[-1])
            self._note("note", text=self._problems[-1])

    def _time(self) -> str:
        return to_wire(self.now())


def _because(ending: Ending) -> str:
    how = f"{ending.ended}: {ending.detail}" if ending.detail else ending.ended.value
    return f"something of this run may exist; it stopped going forward ({how})"


def _left(census: Census | None, *, may_exist: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if census is None:
        return (), ("no census could be taken",) if may_exist else ()
    if census.confirmed or census.remaining or census.unknown:
        return census.remaining, census.unknown
    return (), ("two looks in a row did not find nothing",)
