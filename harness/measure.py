"""The calibration of one cell, as every rank runs it: warm each layout up, then measure it in rotating rounds.

All ranks run the same sequence of layouts, because every decision is a pure function of results that all ranks have.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from harness.admission.gate import CellGate, Passage
from harness.compile_watch import CompileWatch
from harness.evidence import EvidenceFile
from harness.instruments import Instruments
from harness.model.block import HybridModel, sync_gradients
from harness.packing import pack
from harness.parallel.collectives import all_gather_object
from harness.parallel.plan import compare_digests, make_plan
from harness.parallel.topology import Topology
from harness.prefix_tree import Layout, PrefixTree
from harness.racing import Schedule, decided, leader
from harness.rounds import Verdict, judge, rotation
from harness.trace.recorder import Recorder
from harness.trace.watchdog import Heart, Phase
from harness.warmup import MAXIMUM_WARMUPS, MINIMUM_WARMUPS, CompileStatus, Decision, decide

__all__ = ["Calibration", "CellOutcome", "Item", "Rules", "RunResult"]

_LOSS_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 2e-2}


class CellOutcome(StrEnum):
    """How a calibration ended, as its end row says it."""

    COMPLETE = "complete"
    UNSETTLED = "unsettled"
    LIMIT = "limit"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Item:
    """A layout to measure, as a candidate or as the automatic pick; `sha256` is the digest of its packed group."""

    role: str
    layout: Layout
    sha256: str


@dataclass(frozen=True, slots=True)
class Rules:
    """How decisions are taken.

    The defaults are the only ones that production knows. The others bring the old fault back, for the test that shows
    it: a rank that decides by its own status alone (`world_wide` off) moves on while a peer still warms up, and without
    the comparison of plans nothing stops the two.
    """

    world_wide: bool = True
    compare_plans: bool = True
    minimum_warmups: int = MINIMUM_WARMUPS
    maximum_warmups: int = MAXIMUM_WARMUPS


@dataclass(frozen=True, slots=True)
class RunResult:
    """One forward and backward on one rank. Times in milliseconds; `loss` is this context shard's share.

    `passage` is how memory admission let it through, None where it was not asked.
    """

    status: CompileStatus
    planning_ms: float
    forward_ms: float
    backward_ms: float
    peak_bytes: int
    passage: Passage | None
    subforwards: int
    layout_live: bool
    loss: float

    @property
    def elapsed_ms(self) -> float:
        """Forward plus backward."""
        return self.forward_ms + self.backward_ms


class Calibration:
    """One cell on one rank. `evidence` is None on every rank but the one that writes."""

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        items: Sequence[Item],
        model: HybridModel,
        topology: Topology,
        *,
        watch: CompileWatch,
        instruments: Instruments,
        recorder: Recorder,
        heart: Heart,
        evidence: EvidenceFile | None,
        gate: CellGate | None = None,
        rules: Rules | None = None,
    ) -> None:
        self._rows = rows
        self._tree = PrefixTree.from_rows(rows)
        self._items = tuple(items)
        self._model = model
        self._topology = topology
        self._watch = watch
        self._instruments = instruments
        self._recorder = recorder
        self._heart = heart
        self._evidence = evidence
        self._rules = rules or Rules()
        self._forwards = 0
        self._gate = gate
        self._loss: float | None = None
        self._times_ms: dict[Item, list[float]] = {item: [] for item in self._items}

    def run(self, repeat: int, schedule: Schedule = Schedule.FIXED) -> tuple[CellOutcome, str]:
        """Warm every item up, then measure `repeat` rounds; returns the outcome and the reason for it, in words.

        With the racing schedule a round leaves out the layouts that are decided, and the cell may end early. The
        decision is a pure function of times that all ranks have, so all ranks take it alike.

        Raises:
            ValueError: the loss is not finite, or depends on the layout.
            PlanMismatch: ranks planned different forwards.
            CollectiveMismatch: ranks issued different collectives, in checked mode.
        """
        ended = self._measure_all(repeat, schedule)
        if self._gate is not None:
            self._gate.settle()
        return ended

    def _measure_all(self, repeat: int, schedule: Schedule) -> tuple[CellOutcome, str]:
        for item in self._items:
            decision = self._warm_up(item)
            if decision is not Decision.SETTLED:
                outcome = CellOutcome.LIMIT if decision is Decision.LIMIT else CellOutcome.UNSETTLED
                return outcome, _reason(outcome, item, "in its warm-ups")
        gc.collect()
        gc.freeze()  # compiled code and its guards live for ever: no collection between rounds needs to look at them
        gc.disable()  # a collection in the middle of a forward would be measured as part of it
        try:
            racing = self._items
            for round_index in range(repeat):
                turns = (self._items[index] for index in rotation(len(self._items), round_index))
                for position, item in enumerate(item for item in turns if item in racing):
                    verdict = self._measure(item, round_index, repeat, position)
                    if verdict is not Verdict.USABLE:
                        outcome = CellOutcome.LIMIT if verdict is Verdict.LIMIT else CellOutcome.UNSETTLED
                        return outcome, _reason(outcome, item, f"in round {round_index}")
                if schedule is Schedule.RACING:
                    racing = self._still_racing(racing, round_index, repeat)
        finally:
            gc.enable()
        return CellOutcome.COMPLETE, ""

    def _warm_up(self, item: Item) -> Decision:
        rules, runs = self._rules, list[list[CompileStatus]]()
        while True:
            self._heart.beat(
                Phase.WARMUP, candidate=item.layout.label, round_index=len(runs), rounds=rules.maximum_warmups
            )
            results = self._gather(self._run(item, Phase.WARMUP))
            runs.append([result.status for result in results])
            decision = decide(runs, minimum=rules.minimum_warmups, maximum=rules.maximum_warmups)
            self._write(
                "warmup",
                candidate=item.layout.label,
                role=item.role,
                index=len(runs) - 1,
                statuses=runs[-1],
                settled=decision is Decision.SETTLED,
                **self._admission_facts(results),
            )
            if decision is not Decision.AGAIN:
                return decision

    def _measure(self, item: Item, round_index: int, rounds: int, position: int) -> Verdict:
        """Measure `item` in this round, again while something compiled: such a measurement is one more warm-up."""
        attempt = 0
        while True:
            gc.collect()
            self._heart.beat(Phase.MEASURE, candidate=item.layout.label, round_index=round_index, rounds=rounds)
            results = self._gather(self._run(item, Phase.MEASURE))
            statuses = [result.status for result in results]
            verdict = judge(statuses, attempt)
            if verdict is Verdict.USABLE:
                self._times_ms[item].append(_longest(results, lambda result: result.elapsed_ms))
                self._write("measure", **self._measured(item, results), round=round_index, position=position)
                return verdict
            self._write(
                "warmup",
                candidate=item.layout.label,
                role=item.role,
                index=attempt,
                statuses=statuses,
                settled=False,
                round=round_index,
                elapsed_ms=_longest(results, lambda result: result.elapsed_ms),
                **self._admission_facts(results),
            )
            if verdict is not Verdict.AGAIN:
                return verdict
            attempt += 1

    def _still_racing(self, racing: tuple[Item, ...], round_index: int, repeat: int) -> tuple[Item, ...]:
        """The items that the next round measures; `automatic` stays as long as the candidate that it picked."""
        candidates = [item for item in self._items if item.role == "candidate"]
        alive = [index for index, item in enumerate(candidates) if item in racing]
        if not alive:
            return racing
        times_ms = [self._times_ms[item] for item in candidates]
        first = candidates[leader(times_ms, alive)].layout
        dropped = {candidates[index].layout for index in decided(times_ms, alive, repeat=repeat)}
        if len(dropped) == len(alive) - 1 and len(candidates) > 1:
            dropped = {item.layout for item in racing}  # the leader is alone: nothing is left to decide
        if round_index + 1 < repeat:
            for item in racing:
                if item.layout in dropped:
                    self._write(
                        "decided", candidate=item.layout.label, role=item.role, round=round_index, leader=first.label
                    )
        return tuple(item for item in racing if item.layout not in dropped)

    def _run(self, item: Item, phase: Phase) -> RunResult:
        """One forward and backward of `item` on this rank."""
        instruments, model, topology = self._instruments, self._model, self._topology
        self._recorder.context(layout=item.layout.label, forward=self._forwards, phase=phase)
        started = instruments.now_ms()
        packed = pack(self._rows, self._tree, item.layout)
        plan = make_plan(packed, model.config, topology)
        planning_ms = instruments.now_ms() - started
        if self._rules.compare_plans:
            compare_digests(plan, topology)
        passage = None if self._gate is None else self._gate.admit(plan, measured=phase is Phase.MEASURE)
        for parameter in model.lora_parameters().values():
            parameter.grad = None
        instruments.reset_peak()
        used_bytes = instruments.used_bytes()
        first_forward = self._forwards
        with self._watch.run() as watched:
            begin = instruments.now_ms()
            loss = model(plan)
            self._forwards += 1
            middle = instruments.now_ms()
            torch.autograd.backward(loss)
            end = instruments.now_ms()
        peak_bytes = instruments.peak_bytes()
        sync_gradients(model, topology)
        if self._gate is not None:
            warm = phase is Phase.WARMUP or watched.status is not CompileStatus.NONE
            self._gate.completed(plan, peak_bytes - used_bytes, round((middle - begin) * 1e6), warm=warm)
        return RunResult(
            status=watched.status,
            planning_ms=planning_ms,
            forward_ms=middle - begin,
            backward_ms=end - middle,
            peak_bytes=peak_bytes,
            passage=passage,
            subforwards=self._forwards - first_forward,
            layout_live=packed.digest == item.sha256 and plan.label == item.layout.label,
            loss=float(loss.detach()),
        )

    def _gather(self, result: RunResult) -> list[RunResult]:
        """Every rank's result, in one exchange a run; this rank's own alone where it decides by itself."""
        if not self._rules.world_wide:
            return [result]
        results: list[RunResult] = all_gather_object(
            self._topology, self._topology.world, result, tag="calibrate.result"
        )
        self._check_loss(results)
        return results

    def _check_loss(self, results: Sequence[RunResult]) -> None:
        """The loss is the same for every layout by definition: another one is a wrong layout, whatever its time."""
        loss = _loss(results, self._topology)
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss}")
        first = self._loss = loss if self._loss is None else self._loss
        tolerance = _LOSS_TOLERANCE[self._model.embedding.dtype]
        if abs(loss - first) > tolerance * abs(first):
            raise ValueError(f"the loss depends on the layout: {loss!r} and {first!r} for the same rows")

    def _measured(self, item: Item, results: Sequence[RunResult]) -> Mapping[str, Any]:
        passages = [result.passage for result in results]
        return {
            "candidate": item.layout.label,
            "role": item.role,
            "elapsed_ms": _longest(results, lambda result: result.elapsed_ms),
            "forward_ms": _longest(results, lambda result: result.forward_ms),
            "backward_ms": _longest(results, lambda result: result.backward_ms),
            "per_rank_ms": [result.elapsed_ms for result in results],
            "compile": [result.status for result in results],
            "planning_ms": _longest(results, lambda result: result.planning_ms),
            "peak_bytes": [result.peak_bytes for result in results],
            "subforwards": max(result.subforwards for result in results),
            "admitted": all(passage is not None and not passage.on_word for passage in passages),
            "unsplit": all(result.subforwards == 1 for result in results)
            and all(passage is None or passage.unsplit for passage in passages),
            "layout_live": all(result.layout_live for result in results),
            "loss": _loss(results, self._topology),
            **self._admission_facts(results),
        }

    def _admission_facts(self, results: Sequence[RunResult]) -> Mapping[str, Any]:
        """What memory admission found before a run, by rank, and the releases it needed; nothing where it is off."""
        passages = [result.passage for result in results if result.passage is not None]
        if self._gate is None or len(passages) != len(results):
            return {}
        return {
            "admission": {
                "required_bytes": [passage.required_bytes for passage in passages],
                "available_bytes": [passage.available_bytes for passage in passages],
                "trusted": all(passage.trusted for passage in passages),
                "on_word": any(passage.on_word for passage in passages),
                "releases": self._gate.take_records(),
            }
        }

    def _write(self, row: str, **fields: Any) -> None:
        if self._evidence is not None:
            self._evidence.write(row, **fields)


def _loss(results: Sequence[RunResult], topology: Topology) -> float:
    """The sum over context shards; the tensor parallel ranks of a shard, which are neighbours, hold the same share."""
    return math.fsum(result.loss for result in results[:: topology.tp])


def _longest(results: Sequence[RunResult], time_ms: Callable[[RunResult], float]) -> float:
    return max(time_ms(result) for result in results)


def _reason(outcome: CellOutcome, item: Item, when: str) -> str:
    if outcome is CellOutcome.LIMIT:
        return f"{item.layout.label} ({item.role}) hit dynamo's recompile limit {when}: from there on it runs eagerly"
    return f"{item.layout.label} ({item.role}) was still compiling after all attempts {when}"
