"""A cell is complete only if its own rows say so, and rows are hostile input."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrate.receipts.completeness import MAX_LINE_BYTES, Expected, judge_cell


@pytest.fixture
def key():
    return "cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4"


@pytest.fixture
def rows(builder, key):
    return builder().cell_rows(key)


@pytest.fixture
def judge(builder, key):
    expected = Expected(key, builder().run_id, 3, builder().labels)

    def judge(rows, **changes):
        fields = {name: getattr(expected, name) for name in ("key", "run_id", "repeat", "candidates")} | changes
        return judge_cell([row if isinstance(row, bytes) else line(row) for row in rows], Expected(**fields))

    return judge


def line(row):
    return json.dumps(row).encode() + b"\n"


def find(rows, kind, **fields):
    return next(row for row in rows if row["row"] == kind and all(row[name] == value for name, value in fields.items()))


def test_rows_with_every_candidate_and_automatic_in_every_round_are_complete(rows, judge):
    found = judge(rows)
    assert (found.complete, found.missing, found.outcome, found.rows) == (True, (), "complete", len(rows))
    assert [(one.label, one.role, len(one.elapsed_ms)) for one in found.measured] == [
        ("no_sharing", "candidate", 3),
        ("depth_one", "candidate", 3),
        ("full_sharing", "candidate", 3),
        ("full_sharing", "automatic", 3),
    ]
    assert found.measured[0].elapsed_ms == {0: 21.5, 1: 22.0, 2: 22.5}


def test_a_private_corpus_takes_the_candidates_from_its_header(rows, judge):
    assert judge(rows, candidates=None).complete


def test_no_row_but_a_warm_up_can_be_left_out(rows, judge):
    for index, row in enumerate(rows):
        left = [dict(other) for other in rows[:index] + rows[index + 1 :]]
        left[-1]["rows"] = len(left) - 1  # whoever left the row out would count again
        found = judge(left)
        assert found.complete is (row["row"] == "warmup")
        assert bool(found.missing) is not found.complete


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"compile": ["none", "none", "none", "recompile"]}, "compile statuses"),
        ({"compile": ["none"] * 3}, "compile statuses"),
        ({"compile": ["none"] * 5}, "compile statuses"),
        ({"compile": "none"}, "compile statuses"),
        ({"compile": ["none", "none", "none", "fine"]}, "compile statuses"),
        ({"admitted": False}, "admitted"),
        ({"unsplit": 1}, "unsplit"),
        ({"layout_live": None}, "layout_live"),
        ({"elapsed_ms": 0}, "elapsed_ms"),
        ({"elapsed_ms": -1.0}, "elapsed_ms"),
        ({"elapsed_ms": "21"}, "elapsed_ms"),
        ({"elapsed_ms": True}, "elapsed_ms"),
        ({"per_rank_ms": [1.0]}, "per_rank_ms"),
        ({"per_rank_ms": [1.0, 2.0, 3.0, 4.0]}, "slowest rank"),
        ({"per_rank_ms": [1.0, 2.0, 3.0, "22.0"]}, "slowest rank"),
        ({"round": 3}, "no round"),
        ({"round": -1}, "no round"),
        ({"round": 1.0}, "no round"),
        ({"round": [1]}, "no round"),
        ({"round": 0}, "again"),
        ({"candidate": "other"}, "not a candidate"),
        ({"candidate": ["no_sharing"]}, "neither"),
        ({"role": "bystander"}, "neither"),
        ({"role": ["candidate"]}, "neither"),
        ({"role": "automatic"}, "as automatic"),
    ],
)
def test_a_measured_row_that_can_not_be_used_is_a_gap(rows, judge, change, why):
    find(rows, "measure", candidate="no_sharing", role="candidate", round=1).update(change)
    found = judge(rows)
    assert not found.complete
    assert re.search(why, " ".join(found.missing))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cell": "cal-text|tiny-hybrid|L4|tp1|cp4|g4"}, "the plan says"),
        ({"run_id": "r20260102-030405-ffffff"}, "the plan says"),
        ({"repeat": 2}, "the plan says"),
        ({"repeat": True}, "the plan says"),
        ({"repeat": 3.0}, "the plan says"),
        ({"shape": {"tp": 1, "cp": 2, "ep": 1, "world": 2}}, "not the shape"),
        ({"shape": {"tp": 1, "cp": 4, "ep": 1, "world": 5}}, "no shape"),
        ({"shape": 4}, "no shape"),
        ({"workload": {"name": "other", "group": None}}, "workload name 'other'"),
        ({"workload": {"name": "cal-grpo-tiny", "group": 4}}, "workload group '4'"),
        ({"workload": None}, "has no workload"),
        ({"model": {"name": "other", "layers": 4}}, "model name 'other'"),
        ({"model": {"name": "tiny-hybrid", "layers": 4.5}}, "model layers"),
        ({"candidates": []}, "does not list"),
        ({"candidates": [{"label": 4}]}, "does not list"),
        ({"automatic": "full_sharing"}, "which layout is automatic"),
        ({"automatic": {"label": "depth_one"}}, "as automatic"),
        ({"schema": "harness.evidence/2"}, "not a row"),
    ],
)
def test_a_header_that_is_not_the_plans_cell_is_a_gap(rows, judge, change, why):
    rows[0].update(change)
    found = judge(rows)
    assert not found.complete
    assert why in " ".join(found.missing)


def test_repeat_one_is_not_satisfied_by_true(rows, judge):
    rows[0]["repeat"] = True
    assert not judge(rows, repeat=1).complete


def test_a_mandatory_candidate_that_the_node_never_listed_is_a_gap(rows, judge, builder):
    found = judge(rows, candidates=(*builder().labels, "uniform_depth_2"))
    assert found.missing == ("the mandatory candidate 'uniform_depth_2' is not among the cell's candidates",)


def test_the_header_can_not_put_one_candidate_in_the_place_of_another(rows, judge, builder):
    rows[0]["equal"] = {"uniform_depth_2": "depth_one"}
    found = judge(rows, candidates=(*builder().labels, "uniform_depth_2"))
    assert found.missing == ("the mandatory candidate 'uniform_depth_2' is not among the cell's candidates",)


def test_a_candidate_that_was_never_warmed_up_is_a_gap(rows, judge):
    left = [row for row in rows if (row["row"], row.get("candidate")) != ("warmup", "depth_one")]
    left[-1]["rows"] = len(left) - 1
    assert judge(left).missing == ("'depth_one' was measured without a warm-up",)


def test_automatic_must_follow_a_candidate_of_the_cell(rows, judge):
    rows[0]["automatic"]["label"] = "imagined"
    for row in rows:
        if row.get("role") == "automatic":
            row["candidate"] = "imagined"
    assert "which is not a candidate of the cell" in judge(rows).missing[0]


@pytest.mark.timeout(20)
def test_a_plan_of_endless_rounds_is_judged_at_once(rows, judge):
    rows[0]["repeat"] = 2**53 - 1
    assert "3 usable rounds of 9007199254740991" in " ".join(judge(rows, repeat=2**53 - 1).missing)


@pytest.mark.parametrize("outcome", ["unsettled", "limit", "error", None, ["complete"]])
def test_only_the_outcome_complete_is_complete(rows, judge, outcome):
    rows[-1].update(outcome=outcome, reason="dynamo's limit")
    found = judge(rows)
    assert not found.complete
    assert "dynamo's limit" in found.missing[0]


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (b"garbage\n", "not strict JSON"),
        (b"\n", "not strict JSON"),
        (b"\xff\xfe\n", "not strict JSON"),
        (b'{"row":"end","row":"end"}\n', "twice"),
        (b"[1]\n", "not a row"),
        (b"[" * 10_000 + b"\n", "too deep"),
        (b'{"schema":"harness.evidence/1","row":"other"}\n', "unknown kind"),
        (b'{"schema":"harness.evidence/1","row":["x"]}\n', "unknown kind"),
        (b"x" * MAX_LINE_BYTES, "longer than"),
    ],
)
@pytest.mark.parametrize("place", [1, -1])
def test_a_line_that_is_not_a_row_is_a_gap(rows, judge, extra, why, place):
    found = judge([*rows[:place], extra, *rows[place:]])
    assert not found.complete
    assert why in " ".join(found.missing)


def test_a_cut_last_line_is_a_gap(rows, judge):
    found = judge([*rows[:-1], line(rows[-1])[:-1]])
    assert not found.complete
    assert "is cut" in found.missing[0]


def test_a_repeated_row_is_a_gap(rows, judge):
    assert "again" in judge([*rows[:-1], rows[-2], rows[-1]]).missing[0]
    assert "second cell row" in judge([rows[0], *rows]).missing[0]
    assert "after the end" in judge([*rows, rows[-1]]).missing[0]


def test_rows_before_the_header_do_not_count(rows, judge):
    assert "before the cell row" in judge(rows[1:] + rows[:1]).missing[0]


def test_an_end_row_that_counts_other_rows_is_a_gap(rows, judge):
    rows[-1]["rows"] = 3
    assert "counts 3 rows" in judge(rows).missing[0]
    rows[-1]["rows"] = [3]
    assert not judge(rows).complete


def test_no_rows_at_all_name_what_is_missing(judge):
    assert judge([]).missing[0] == "there is no cell row"


def test_a_million_gaps_are_counted_not_listed(rows, judge):
    found = judge([*rows[:1], *([b"x\n"] * 5000), *rows[1:]])
    assert len(found.missing) == 21
    assert found.missing[-1] == "and 4980 more gaps"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_in_any_field_raises_or_makes_a_cell_complete_that_lacks_a_round(rows, judge, data):
    rows = [dict(row) for row in rows]
    rows.remove(find(rows, "measure", candidate="depth_one", role="candidate", round=data.draw(st.integers(0, 2))))
    row = data.draw(st.sampled_from(rows))
    row[data.draw(st.sampled_from(sorted(row)))] = data.draw(JUNK)
    assert not judge(rows).complete


@given(st.lists(st.binary(max_size=80), max_size=10))
def test_any_bytes_are_judged_without_an_error(lines):
    found = judge_cell(lines, Expected("cal-x|m|L1|tp1|cp1", "r1", 2, ("a",)))
    assert not found.complete
    assert found.missing
