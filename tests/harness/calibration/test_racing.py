"""The racing rule on the node, and that it is the rule that the workstation judges by."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import racing
from harness.calibrate import _parser
from harness.racing import Schedule, decided, leader
from orchestrate.analysis import racing as simulated
from orchestrate.receipts import racing as judged

TIMES = st.floats(0.5, 500.0)


def race(times_ms, repeat):
    """Rounds of each layout under the node's rule."""
    alive, rounds = list(range(len(times_ms))), [0] * len(times_ms)
    for done in range(1, repeat + 1):
        if len(times_ms) > 1 and len(alive) < 2:
            break
        for index in alive:
            rounds[index] += 1
        dropped = decided([times[:done] for times in times_ms], alive, repeat=repeat)
        alive = [index for index in alive if index not in dropped]
    return rounds, alive


def test_the_constants_are_the_same_on_both_sides():
    assert racing.ERROR_PROBABILITY == judged.ERROR_PROBABILITY
    assert racing.LEAST_ROUNDS == judged.LEAST_ROUNDS
    assert racing.MOST_ROUNDS == judged.MOST_ROUNDS


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 9), st.sampled_from([0.001, 0.01, 0.1, 1.0]), st.integers(3, 8))
def test_both_sides_decide_alike_to_the_last_bit(seed, layouts, noise, repeat):
    draw = np.random.default_rng(seed)
    means = draw.choice([100.0, 101.0, 103.0, 110.0, 150.0], layouts)
    times_ms = np.abs(means[:, None] * (1 + noise * draw.standard_normal((layouts, repeat)))) + 0.1
    rounds, alive = race(times_ms.tolist(), repeat)
    whole = simulated.race(times_ms[None])
    assert whole.rounds[0].tolist() == rounds
    assert int(whole.selected[0]) in alive
    given_ms = [row[:count] for row, count in zip(times_ms.tolist(), rounds, strict=True)]
    assert judged.rounds_of_race(given_ms, repeat) == rounds


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(TIMES, min_size=5, max_size=5), min_size=1, max_size=6))
def test_the_leader_is_never_dropped(times_ms):
    alive = list(range(len(times_ms)))
    dropped = decided(times_ms, alive, repeat=8)
    assert leader(times_ms, alive) not in dropped
    assert dropped <= set(alive)


def test_nothing_is_decided_before_the_third_round():
    assert not decided([[1.0, 1.0], [9.0, 9.0]], [0, 1], repeat=8)
    assert decided([[1.0, 1.0, 1.0], [9.0, 9.0, 9.1]], [0, 1], repeat=8) == {1}


def test_one_that_was_dropped_is_not_looked_at_again():
    times_ms = [[1.0, 1.0, 1.0, 1.1], [9.0, 9.0, 9.1], [1.0, 1.1, 1.0, 1.0]]
    assert decided(times_ms, [0, 2], repeat=8) == frozenset()


def test_a_race_that_was_cut_short_by_hand_is_seen():
    times_ms = [[1.0, 1.01, 1.0, 1.02, 1.0], [1.0, 1.0, 1.01, 1.0, 1.0]]
    assert judged.rounds_of_race([times_ms[0], times_ms[1][:4]], 8)[1] == 5


def test_the_fixed_schedule_is_the_default():
    arguments = ["--cell", "k", "--evidence", "f"]
    assert _parser().parse_args(arguments).schedule == Schedule.FIXED
    assert _parser().parse_args([*arguments, "--schedule", "racing"]).schedule == Schedule.RACING
    with pytest.raises(SystemExit):
        _parser().parse_args([*arguments, "--schedule", "quick"])


class Rows:
    """Evidence that is kept in memory."""

    def __init__(self):
        self.written = []

    def write(self, row, **fields):
        self.written.append({"row": row, **fields})


@pytest.fixture
def calibration(monkeypatch):
    """A function: a calibration whose layouts take given times, each `times[label](round)`, and what it wrote."""
    from harness.measure import Calibration, Item
    from harness.prefix_tree import PrefixTree, candidate_family
    from harness.rounds import Verdict
    from harness.warmup import Decision

    rows = [(1, 2, 3, 10, 11), (1, 2, 3, 20, 21), (1, 5, 6, 30, 31), (1, 5, 6, 40)]
    layouts = candidate_family(PrefixTree.from_rows(rows))

    def make(times, automatic):
        by_label = {layout.label: layout for layout in layouts}
        items = [Item("candidate", layout, "") for layout in layouts]
        items.append(Item("automatic", by_label[automatic], ""))
        evidence = Rows()
        parts = dict.fromkeys(("watch", "instruments", "recorder", "heart"))
        made = Calibration(rows, items, None, None, evidence=evidence, **parts)

        def measure(item, round_index, _rounds, position):
            time_ms = times[item.layout.label](round_index)
            made._times_ms[item].append(time_ms)
            evidence.write(
                "measure", candidate=item.layout.label, role=item.role, round=round_index, position=position,
                elapsed_ms=time_ms,
            )  # fmt: skip
            return Verdict.USABLE

        monkeypatch.setattr(made, "_measure", measure)
        monkeypatch.setattr(made, "_warm_up", lambda _item: Decision.SETTLED)
        return made, evidence.written

    make.labels = [layout.label for layout in layouts]
    return make


def counted(written):
    found = {}
    for row in written:
        if row["row"] == "measure":
            found[row["role"], row["candidate"]] = found.get((row["role"], row["candidate"]), 0) + 1
    return found


def test_the_fixed_schedule_measures_everything_in_every_round(calibration):
    times = {label: lambda turn, n=n: 10.0 * (n + 1) + turn / 10 for n, label in enumerate(calibration.labels)}
    made, written = calibration(times, calibration.labels[0])
    made.run(8)
    assert set(counted(written).values()) == {8}
    assert not [row for row in written if row["row"] == "decided"]


def test_a_race_drops_what_is_decided_and_automatic_with_its_candidate(calibration):
    fast, slow, *others = calibration.labels
    times = {fast: lambda turn: 10 + turn / 100, slow: lambda turn: 40 + turn / 100}
    times |= dict.fromkeys(others, lambda turn: 10.001 + turn / 100 + (turn % 2) / 100)
    made, written = calibration(times, slow)
    made.run(8, Schedule.RACING)
    rounds = counted(written)
    assert rounds["candidate", slow] == rounds["automatic", slow] == 3
    assert rounds["candidate", fast] == 8
    assert {
        (row["candidate"], row["role"], row["round"], row["leader"]) for row in written if row["row"] == "decided"
    } == {
        (slow, "candidate", 2, fast),
        (slow, "automatic", 2, fast),
    }
    last = [row["position"] for row in written if row["row"] == "measure" and row["round"] == 7]
    assert last == list(range(len(last)))


def test_a_race_ends_when_one_layout_is_left_and_its_evidence_is_judged_complete(calibration):
    times = {label: lambda turn, n=n: 10.0 * (n + 1) + turn / 100 for n, label in enumerate(calibration.labels)}
    made, written = calibration(times, calibration.labels[0])
    made.run(8, Schedule.RACING)
    assert set(counted(written).values()) == {3}
    assert len([row for row in written if row["row"] == "decided"]) == len(calibration.labels) + 1
    samples = [[times[label](turn) for turn in range(3)] for label in calibration.labels]
    assert judged.rounds_of_race(samples, 8) == [3] * len(calibration.labels)
