"""Scenarios of admission as data: the memory and the inputs of each rank, and what must happen.

`scenarios.json` lists them. Sizes are MiB, times milliseconds, a request is its length or [length, prefix, length of
the prefix]. A scenario runs in a simulated world, and what happened is compared with its `expect`, fact by fact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.admission.admission import Admission, Admitted
from harness.admission.ballot import Ballot
from harness.admission.estimator import Estimator, Measured
from harness.admission.ledger import Budget, Ledger
from harness.admission.record import RecoveryRecord, as_json
from harness.admission.refusal import AdmissionRefused
from harness.admission.search import Goal
from harness.admission.simulated import Latency, SimulatedAllocator
from harness.admission.world import SimulatedPlan, SimulatedPlanner, SimulatedRequest, SimulatedRun, lockstep
from harness.errors import InputError

__all__ = ["SCENARIO_SCHEMA", "Result", "Scenario", "ScenarioRank", "differences", "load_scenarios", "play", "tell"]

SCENARIO_SCHEMA = "harness.admission-scenarios/1"
_MIB = 1 << 20
_SCENARIOS = Path(__file__).with_name("scenarios.json")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario: its name, what it says must happen, and the document."""

    name: str
    says: str
    document: Mapping[str, Any]

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.document["ranks"])


@dataclass(frozen=True, slots=True)
class Result:
    """What was expected and what happened, admission by admission, and where they differ."""

    scenario: Scenario
    happened: tuple[Mapping[str, Any], ...]
    differences: tuple[str, ...]
    records: tuple[RecoveryRecord, ...]
    budget: Budget

    @property
    def holds(self) -> bool:
        """Whether everything happened as it must."""
        return not self.differences

    def as_json(self) -> dict[str, object]:
        """The result as a JSON object."""
        return {
            "scenario": self.scenario.name,
            "says": self.scenario.says,
            "world": self.scenario.world,
            "holds": self.holds,
            "expected": self.scenario.document["expect"],
            "happened": list(self.happened),
            "differences": list(self.differences),
            "releases": [as_json(record) for record in self.records],
            "ledger": self.budget.as_json(),
        }


def load_scenarios(path: Path = _SCENARIOS) -> dict[str, Scenario]:
    """The scenarios by name, in the file's order.

    Raises:
        InputError: the file is of another schema, or has a name twice.
    """
    document = json.loads(path.read_text())
    if document.get("schema") != SCENARIO_SCHEMA:
        raise InputError(f"{path.name} is of schema {document.get('schema')!r}", remedy=f"use {SCENARIO_SCHEMA}")
    scenarios: dict[str, Scenario] = {}
    for each in document["scenarios"]:
        if each["name"] in scenarios:
            raise InputError(f"{path.name} has {each['name']!r} twice", remedy="name each scenario once")
        scenarios[each["name"]] = Scenario(each["name"], each["says"], each)
    return scenarios


def play(scenario: Scenario) -> Result:
    """Run `scenario` in a simulated world and compare what happened with what must."""
    ranks = [ScenarioRank(scenario, rank) for rank in range(scenario.world)]
    happened: list[dict[str, Any]] = []
    for event in scenario.document["admissions"]:
        for rank in ranks:
            rank.prepare(event)
        start: int | None = 0
        while start is not None:
            ended = lockstep([rank.procedure(event, start) for rank in ranks])
            happened.append(tell(ended.admitted, ended.errors, ended.votes, ranks[0].take_record()))
            start = None
            for rank, admitted in zip(ranks, ended.admitted, strict=False):
                rank.run(admitted, event)
                start = rank.next_start(admitted, event)
    found = tuple(differences(scenario.document["expect"], happened))
    return Result(scenario, tuple(happened), found, tuple(ranks[0].records), ranks[0].admission.ledger.budget)


class ScenarioRank:
    """One rank of a scenario: its simulated device and its admission. `vote` is needed in a world of processes only."""

    def __init__(
        self, scenario: Scenario, rank: int, vote: Callable[[Ballot], tuple[Ballot, ...]] | None = None
    ) -> None:
        document, facts = scenario.document, scenario.document["ranks"][rank]
        self.rank = rank
        self.shards = scenario.world if document.get("sharded", True) else 1
        self.device = SimulatedAllocator(
            facts["total"] * _MIB,
            others_bytes=facts.get("others", 0) * _MIB,
            granularity_bytes=_MIB,
            latency=Latency(token_ns=round(document.get("token_ms", 10) * 1e6)),
            device=facts.get("device", "cuda"),
        )
        for segment, live in facts.get("cache", []):
            self.device.preload(segment * _MIB, live * _MIB)
        self.device.others_at_read = {int(read): mib * _MIB for read, mib in facts.get("others_at_read", {}).items()}
        profile = document.get("profile", {"tokens": 32, "peak": 32, "retained": 16})
        measured = Measured(profile["tokens"], profile["peak"] * _MIB, profile["retained"] * _MIB)
        self.records: list[RecoveryRecord] = []
        self._taken = 0
        self.admission: Admission[SimulatedRequest, SimulatedPlan] = Admission(
            _FailingPlanner() if facts.get("fails") == "plan" else SimulatedPlanner(),
            Estimator([measured], growth=8, margin_percent=0),
            _FailingRelease(self.device) if facts.get("fails") == "release" else self.device,
            vote=vote,
            ledger=Ledger(_budget(document.get("ledger", {}))),
            allow_oversized=facts.get("allow_oversized", False),
            records=self.records.append,
        )
        self._run = SimulatedRun(self.device, peak_bytes=_MIB, retained_bytes=_MIB // 2)

    def prepare(self, event: Mapping[str, Any]) -> None:
        """What happens on this rank before the admission of `event`."""
        if "others" in event:
            self.device.others_bytes = event["others"][self.rank] * _MIB

    def inputs(self, event: Mapping[str, Any]) -> list[list[SimulatedRequest]]:
        """The inputs of `event`: this rank's own in a batch, everyone's in waves."""
        listed = event["inputs"][self.rank] if event["entry"] == "batch" else event["inputs"]
        return [[_request(each) for each in requests] for requests in listed]

    def procedure(self, event: Mapping[str, Any], start: int) -> Any:
        """The procedure that admits `event`, from the input `start` on."""
        inputs = self.inputs(event)
        if event["entry"] == "batch":
            return self.admission.batch(inputs)
        return self.admission.wave(inputs, start, shard=self.rank % self.shards, shards=self.shards)

    def run(self, admitted: Admitted[SimulatedPlan], event: Mapping[str, Any]) -> None:
        """Run the wave and its backward, then idle, as `event` says."""
        self.admission.run(admitted, self._run.forward, warm=lambda: bool(event.get("warm", False)))
        self._run.backward(round(event.get("backward_ms", 0) * 1e6))

    def next_start(self, admitted: Admitted[SimulatedPlan], event: Mapping[str, Any]) -> int | None:
        """Where the next wave starts; None after the last."""
        done = event["entry"] == "batch" or admitted.stop >= len(event["inputs"])
        return None if done else admitted.stop

    def take_record(self) -> RecoveryRecord | None:
        """The record that the last admission made, if it made one."""
        new = self.records[self._taken :]
        self._taken = len(self.records)
        return new[-1] if new else None


def tell(
    admitted: Sequence[Admitted[SimulatedPlan]],
    errors: Sequence[Exception],
    votes: Sequence[Sequence[Ballot]],
    record: RecoveryRecord | None,
) -> dict[str, Any]:
    """What happened in one admission, in the words of a scenario's `expect`."""
    happened: dict[str, Any] = {
        "steps": [step[0].step.name.lower() for step in votes],
        "outcomes": [vote.outcome.name.lower().replace("_", "-") for vote in votes[0]],
        "ending": "admitted",
        "came_back": None
        if record is None or record.denied
        else [each.came_back_bytes // _MIB for each in record.votes],
        "denied": None if record is None else record.denied,
    }
    if errors:
        refused = errors[0] if isinstance(errors[0], AdmissionRefused) else None
        happened["ending"] = "refused" if refused else "error"
        happened["errors"] = [type(error).__name__ for error in errors]
        if refused:
            happened["required"] = [need.required_bytes // _MIB for need in refused.needs]
            happened["available"] = [need.available_bytes // _MIB for need in refused.needs]
            happened["largest"] = [need.largest_tokens for need in refused.needs]
        return happened
    first = admitted[0]
    happened |= {
        "ending": "oversized" if first.oversized else "unsplit" if first.unsplit else "split",
        "width": first.stop - first.start,
        "parts": len(first.parts),
        "layouts": [_layout(each) for each in admitted],
    }
    return happened


def differences(expected: Sequence[Mapping[str, Any]], happened: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Where what happened is not what was expected; an expectation may leave facts out, but no admission."""
    if len(expected) != len(happened):
        yield f"{len(expected)} admissions expected, {len(happened)} happened"
    for number, (wanted, got) in enumerate(zip(expected, happened, strict=False), start=1):
        for name, value in wanted.items():
            if got.get(name) != value:
                yield f"admission {number}: {name} is {got.get(name)}, must be {value}"


class _FailingPlanner(SimulatedPlanner):
    """A planner with a fault."""

    def plan(self, requests: Sequence[SimulatedRequest], goal: Goal, /) -> SimulatedPlan:
        raise ArithmeticError(f"no {goal} plan for {len(requests)} requests")


class _FailingRelease(SimulatedAllocator):
    """A device whose release fails; shares the memory of another."""

    def __init__(self, device: SimulatedAllocator) -> None:
        super().__init__(device.total_bytes, others_bytes=device.others_bytes)
        self.read = device.read  # type: ignore[method-assign]
        self.clock_ns = device.clock_ns  # type: ignore[method-assign]

    def release(self) -> Any:
        raise RuntimeError("the driver does not answer")


def _budget(facts: Mapping[str, float]) -> Budget:
    return Budget(
        forward_ns=round(facts.get("forward", 0) * 1e6),
        warm_ns=round(facts.get("warm", 0) * 1e6),
        release_ns=round(facts.get("release", 0) * 1e6),
        releases=int(facts.get("releases", 0)),
        reserve_ns=round(facts.get("reserve", 0) * 1e6),
    )


def _request(each: Any) -> SimulatedRequest:
    return SimulatedRequest(each) if isinstance(each, int) else SimulatedRequest(*each)


def _layout(admitted: Admitted[SimulatedPlan]) -> str:
    goals = {str(part.plan.goal) for part in admitted.parts if part.plan is not None}
    return "+".join(sorted(goals)) or "none"
