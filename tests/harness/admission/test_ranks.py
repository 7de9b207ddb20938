"""Real gloo ranks: every combination of what peers can find, every budget, both entry points."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.admission.scenario import load_scenarios
from harness.admission.vote import VOTE_TAG
from harness.trace.reading import read_trace

REPOSITORY = Path(__file__).parents[3]
PROCESS = Path(__file__).with_name("rank_process.py")
OUTCOMES = ("healthy", "split", "needs-recovery", "empty", "error")
MEMORY = ("poor", "comes-back", "nothing")


@pytest.fixture(scope="module", params=[2, 4])
def world(request, tmp_path_factory):
    """What each rank of a world of 2 and of 4 says, and its trace."""
    size = request.param
    directory = tmp_path_factory.mktemp(f"world{size}")
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(PROCESS)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(size), str(directory)], env=env, stderr=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    try:
        said = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(said)
    answers = [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(size)]
    traces = [read_trace(directory / "trace", rank).records for rank in range(size)]
    return size, answers, traces


def recovers(outcomes):
    """Whether a release is needed."""
    return "error" not in outcomes and bool({"split", "needs-recovery"} & set(outcomes))


def expected(outcomes, memory, rank):
    """How an admission must end on `rank`, and with how many votes, by the words of the design."""
    if "error" in outcomes:
        failed = [index for index, outcome in enumerate(outcomes) if outcome == "error"]
        own = outcomes[rank] == "error"
        return (["raised", "ArithmeticError", []] if own else ["raised", "PeerFailed", failed]), 1
    if not recovers(outcomes):
        return ["admitted", 1], 1
    if memory == "comes-back":
        return ["admitted", 1], 3
    votes = 1 if memory == "poor" else 2
    if "needs-recovery" in outcomes:
        return ["raised", "AdmissionRefused", []], votes
    return ["admitted", 2], votes + 1


def test_every_combination_ends_as_designed_on_every_rank(world):
    size, answers, _ = world
    combinations = set(itertools.product(("batch", "waves"), itertools.product(OUTCOMES, repeat=size)))
    recovering = {combination for combination in combinations if recovers(combination[1])}
    for rank, answer in enumerate(answers):
        told = [(each["entry"], tuple(each["outcomes"]), each["memory"]) for each in answer["admissions"]]
        assert {case[:2] for case in told} == combinations
        for memory in MEMORY:
            assert {case[:2] for case in told if case[2] == memory} >= recovering
        for each in answer["admissions"]:
            ending, _ = expected(each["outcomes"], each["memory"], rank)
            assert each["ending"] == ending, each


def test_all_ranks_hold_the_same_account_after_every_admission(world):
    _, answers, _ = world
    accounts = [[(each["releases"], each["release_ns"]) for each in answer["admissions"]] for answer in answers]
    assert all(account == accounts[0] for account in accounts)
    assert len(set(accounts[0])) > 2


def test_releases_are_made_exactly_where_they_are_needed_and_allowed(world):
    _, answers, _ = world
    for each in answers[0]["admissions"]:
        allowed = each["memory"] != "poor"  # a poor one has had its first release before
        assert each["releases"] == (1 if not allowed or recovers(each["outcomes"]) else 0), each


def test_every_rank_issues_the_same_collectives_in_the_same_order(world):
    """From the recorder: one all-reduce of one size for each planning step and nothing else, on every rank."""
    _, answers, traces = world
    calls = ("input_sizes", "input_dtypes", "reduce_op", "tag")
    sequences = [
        [
            (
                each.sequence,
                each.op,
                each.group,
                each.flags,
                each.forward,
                each.phase,
                *(each.call[fact] for fact in calls),
            )
            for each in trace
        ]
        for trace in traces
    ]
    assert all(sequence == sequences[0] for sequence in sequences)
    assert all(each.is_done for trace in traces for each in trace)
    kinds = {(record.op, record.call["tag"], *record.call["input_sizes"][0]) for record in traces[0]}
    assert len(kinds) == 1
    assert next(iter(kinds))[:2] == ("all_reduce", VOTE_TAG)
    votes = [0] * len(answers[0]["admissions"])
    for record in traces[0]:
        if record.phase == "combinations":
            votes[record.forward] += 1
    wanted = [expected(each["outcomes"], each["memory"], 0)[1] for each in answers[0]["admissions"]]
    assert votes == wanted


def test_the_scenarios_happen_on_real_ranks_as_in_the_simulated_world(world):
    size, answers, _ = world
    mine = {name: scenario for name, scenario in load_scenarios().items() if scenario.world == size}
    assert set(answers[0]["scenarios"]) == set(mine)
    shared = (
        "steps",
        "outcomes",
        "ending",
        "came_back",
        "denied",
        "width",
        "parts",
        "required",
        "available",
        "largest",
    )
    for name, scenario in mine.items():
        for rank, answer in enumerate(answers):
            happened = answer["scenarios"][name]
            for wanted, got in zip(scenario.document["expect"], happened, strict=True):
                facts = {fact: value for fact, value in wanted.items() if fact in shared}
                if not (rank and scenario.document["admissions"][0]["entry"] == "batch"):
                    assert {fact: got.get(fact) for fact in facts} == facts, (name, rank)
                if "layouts" in wanted:
                    assert got["layouts"] == [wanted["layouts"][rank]]
                if "errors" in wanted:
                    assert got["errors"] == [wanted["errors"][rank]]
