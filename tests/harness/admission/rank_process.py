"""One rank of a real process group that goes through every combination of peer outcomes, and through the scenarios.

    rank_process.py RANK WORLD DIRECTORY

Writes `rank<r>.json` with how each admission ended, beside the trace of its collectives.
"""

import itertools
import json
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch.distributed as dist

from harness.admission.admission import Admission
from harness.admission.estimator import Estimator, Measured
from harness.admission.ledger import Budget, Ledger
from harness.admission.refusal import AdmissionRefused, PeerFailed
from harness.admission.scenario import ScenarioRank, load_scenarios, tell
from harness.admission.simulated import SimulatedAllocator
from harness.admission.vote import cast
from harness.admission.world import SimulatedPlanner, SimulatedRequest
from harness.parallel.topology import Topology
from harness.trace.recorder import Recorder

MIB = 1 << 20
OUTCOMES = ("healthy", "split", "needs-recovery", "empty", "error")
MEMORY = ("poor", "comes-back", "nothing")
ENTRIES = ("batch", "waves")
ITEM = (SimulatedRequest(20), SimulatedRequest(20))
CACHED = {"split": 70, "needs-recovery": 90}


class Failing(SimulatedPlanner):
    def plan(self, requests, goal, /):
        raise ArithmeticError(goal)


def cases(world):
    """Every combination of outcomes at both entry points, in each state of memory that makes a difference to it."""
    for entry, outcomes in itertools.product(ENTRIES, itertools.product(OUTCOMES, repeat=world)):
        recovers = "error" not in outcomes and set(CACHED) & set(outcomes)
        for memory in MEMORY if recovers else MEMORY[:1]:
            yield entry, memory, outcomes


def admission_for(outcome, memory, vote):
    """An admission on a device in the state that leads to `outcome`."""
    device = SimulatedAllocator(100 * MIB, granularity_bytes=MIB)
    if outcome in CACHED:
        device.preload(CACHED[outcome] * MIB, MIB if memory == "nothing" else 0)
    budget = Budget(1000, 0, 1000, 1, 1000) if memory == "poor" else Budget(0, 0, 0, 0, 0)
    estimator = Estimator([Measured(32, 32 * MIB, 16 * MIB)], growth=8, margin_percent=0)
    planner = Failing() if outcome == "error" else SimulatedPlanner()
    return Admission(planner, estimator, device, vote=vote, ledger=Ledger(budget))


def admit(entry, outcomes, memory, rank, vote):
    """How one admission ended on this rank."""
    admission = admission_for(outcomes[rank], memory, vote)
    items = [() if outcome == "empty" else ITEM for outcome in outcomes]
    try:
        if entry == "batch":
            wave = admission.admit_batch([items[rank]] if items[rank] else [])
        else:
            wave = next(admission.admit_waves(items, shard=rank, shards=len(items)))
        ending = ["admitted", len(wave.parts)]
    except (AdmissionRefused, PeerFailed, ArithmeticError) as error:
        ending = ["raised", type(error).__name__, list(getattr(error, "ranks", ()))]
    budget = admission.ledger.budget
    return {"ending": ending, "releases": budget.releases, "release_ns": budget.release_ns}


def play_scenario(scenario, rank, topology):
    """What happened in a scenario, told from this rank's side."""
    votes = []

    def vote(ballot):
        votes.append(cast(topology, ballot))
        return votes[-1]

    side = ScenarioRank(scenario, rank, vote)
    happened = []
    for event in scenario.document["admissions"]:
        side.prepare(event)
        start = 0
        while start is not None:
            votes.clear()
            admitted, errors = [], []
            try:
                admitted = [side.admission._drive(side.procedure(event, start))]
            except (AdmissionRefused, PeerFailed, ArithmeticError, RuntimeError) as error:
                errors = [error]
            happened.append(tell(admitted, errors, votes, side.take_record()))
            start = None
            for wave in admitted:
                side.run(wave, event)
                start = side.next_start(wave, event)
    return happened


def main(rank, world, directory):
    store = dist.FileStore(str(directory / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=120))
    recorder = Recorder(directory / "trace", rank, world)
    topology = Topology.create(1, world, "cpu", recorder=recorder, checked=False)
    vote = partial(cast, topology)
    admissions = []
    for number, (entry, memory, outcomes) in enumerate(cases(world)):
        recorder.context(layout=None, forward=number, phase="combinations")
        admissions.append({
            "entry": entry, "memory": memory, "outcomes": outcomes, **admit(entry, outcomes, memory, rank, vote)
        })  # fmt: skip
    recorder.context(layout=None, forward=None, phase="scenarios")
    scenarios = {
        name: play_scenario(scenario, rank, topology)
        for name, scenario in load_scenarios().items()
        if scenario.world == world
    }
    (directory / f"rank{rank}.json").write_text(json.dumps({"admissions": admissions, "scenarios": scenarios}))
    recorder.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
