"""Evidence of a race: fewer rounds are enough where the rule gives fewer, and only there."""

import json

import pytest

from orchestrate.analysis.evidence_rows import read_evidence

KEY = "cal-text|tiny-hybrid|L4|tp1|cp4|g4"
FEATURES = {"packed_tokens": 9, "segment_count": 1, "max_depth": 1, "segments_below": [0] * 8}
TIMES = {"slow": [20.0, 20.1, 20.0], "fast": [10.0, 10.1, 10.0]}


def rows(times=TIMES, decided=(("slow", 2), ("fast", 2)), repeat=8, schedule="racing"):
    header = {
        "row": "cell", "run_id": "r1", "cell": KEY, "repeat": repeat, "schedule": schedule, "equal": {},
        "candidates": [
            {"label": label, "features": FEATURES} for label in times
        ],
        "automatic": {"label": "fast", "rule": "fewest-tokens"}, "dtype": "torch.float32", "torch": "2.13",
        "workload": {"name": "cal-text", "group": 4},
        "model": {"name": "tiny-hybrid", "layers": 4, "gdn_layers": 3, "hidden": 64}, "fingerprint": "f",
        "shape": {"tp": 1, "cp": 4, "ep": 1, "world": 4}, "device": {"kind": "cpu", "name": "cpu"},
    }  # fmt: skip
    found = [header, *({"row": "warmup", "candidate": label, "role": "candidate"} for label in times)]
    for role, label in [*(("candidate", label) for label in times), ("automatic", "fast")]:
        found += [
            {
                "row": "measure", "candidate": label, "role": role, "round": turn, "elapsed_ms": time,
                "per_rank_ms": [time] * 4, "compile": ["none"] * 4, "admitted": True, "unsplit": True,
                "layout_live": True,
            }
            for turn, time in enumerate(times[label])
        ]  # fmt: skip
        found += [
            {"row": "decided", "candidate": name, "role": role, "round": turn, "leader": "fast"}
            for name, turn in decided
            if name == label
        ]
    found.append({"row": "end", "outcome": "complete", "rows": len(found), "reason": ""})
    return b"".join(json.dumps({"schema": "harness.evidence/1", **row}).encode() + b"\n" for row in found)


def read(data, *, racing=True):
    cells, gaps = read_evidence(data, "rows.jsonl", lambda _key: None, racing=racing)
    return [item.cell for item in cells], " ".join(str(gap) for gap in gaps)


def test_a_decided_candidate_needs_no_more_rounds():
    (cell,), gaps = read(rows())
    assert not gaps
    assert cell.schedule == "racing"
    assert [candidate.rounds for candidate in cell.candidates] == [3, 3]


def test_racing_evidence_is_refused_where_the_fixed_schedule_is_expected_and_the_other_way_round():
    assert "schedule 'racing', not 'fixed'" in read(rows(), racing=False)[1]
    assert "schedule 'fixed', not 'racing'" in read(rows(schedule="fixed"))[1]


def test_a_candidate_that_was_stopped_without_a_decision_is_a_gap():
    assert "'slow' stopped after round 2 without a decision" in read(rows(decided=(("fast", 2),)))[1]


def test_a_decision_that_the_rule_does_not_take_is_a_gap():
    close = {"slow": [10.2, 10.0, 10.1], "fast": [10.0, 10.1, 10.0]}
    gaps = read(rows(close))[1]
    assert "'slow' has 3 usable rounds of 4, which the rule of the race gives it" in gaps


def test_a_candidate_that_ran_on_after_its_decision_is_a_gap():
    longer = {"slow": [20.0, 20.1, 20.0, 20.0], "fast": [10.0, 10.1, 10.0]}
    gaps = read(rows(longer, (("slow", 3), ("fast", 2))))[1]
    assert "'slow' has 4 usable rounds of 3, which the rule of the race gives it" in gaps


def test_automatic_races_with_the_candidate_that_it_picked():
    found = rows().splitlines(keepends=True)
    cut = [line for line in found if not (b'"automatic", "round": 2' in line and b'"measure"' in line)]
    cut[-1] = cut[-1].replace(str(len(found) - 1).encode(), str(len(cut) - 1).encode())
    assert len(cut) == len(found) - 1
    assert "automatic has 2 usable rounds of 3" in read(b"".join(cut))[1]


@pytest.mark.parametrize("turn", ["2", None, True, -1, 1, 99])
def test_a_decision_in_another_round_than_the_last_one_decides_nothing(turn):
    assert "without a decision" in read(rows(decided=(("slow", turn), ("fast", 2))))[1]


@pytest.mark.parametrize("label", ["slow", "fast"])
def test_times_that_no_clock_can_give_are_a_gap_and_no_error(label):
    for times in ([1e-200] * 3, [1e-320] * 3, [9e8] * 3):
        cells, gaps = read(rows(TIMES | {label: times}))
        assert cells or gaps


def test_a_layout_that_is_alone_is_measured_to_the_end():
    alone = {"fast": [10.0, 10.1, 10.0]}
    assert "'fast' has 3 usable rounds of 4" in read(rows(alone, (("fast", 2),)))[1]
