"""The verdict table by who died."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.lifecycle.outcome import Cause, Ended, Ending, Known, decide
from orchestrate.verdict import Verdict

GOOD = Ending(Ended.BY_ITSELF, exit_code=0)


def known(ending=GOOD, **changes):
    facts = {
        "cancelled": None, "ran": True, "statuses": ["complete"], "gaps": [], "changed": [], "missing": [],
        "unconfirmed": [], "problems": [],
    }  # fmt: skip
    return Known(ending=ending, **{**facts, **changes})


def test_a_complete_run_with_its_teardown_proven_passes():
    assert decide(known()).verdict is Verdict.PASSED


@pytest.mark.parametrize(
    ("ending", "changes", "of_cells", "of_groups"),
    [
        (GOOD, {}, "every expected cell is complete", "every expected group passed"),
        (GOOD, {"gaps": [""]}, "a cell did not end as complete", "a group did not end as complete"),
    ],
)
def test_the_reason_speaks_of_groups_where_groups_ran(ending, changes, of_cells, of_groups):
    assert of_cells in decide(known(ending, **changes)).reason
    assert of_groups in decide(known(ending, **changes, judged=Verdict.PASSED)).reason


@pytest.mark.parametrize(
    ("ending", "changes", "verdict", "tests"),
    [
        (Ending(Ended.LAUNCHER_LOST), {"cancelled": "launcher-lost", "gaps": ["x"]}, "cancelled", "incomplete"),
        (GOOD, {"cancelled": "launcher-lost"}, "cancelled", "passed"),
        (GOOD, {"cancelled": "stopped by SIGINT"}, "cancelled", "passed"),
        (Ending(Ended.BY_ITSELF, exit_code=1), {"statuses": ["failed"], "gaps": ["x"]}, "failed", "failed"),
        (Ending(Ended.BY_ITSELF, exit_code=3), {"statuses": ["hung"], "gaps": ["x"]}, "hung", "hung"),
        (Ending(Ended.BY_ITSELF, exit_code=4), {"statuses": ["unsettled"], "gaps": ["x"]}, "incomplete", "incomplete"),
        (Ending(Ended.BY_ITSELF, exit_code=5), {"statuses": ["infrastructure"]}, "infrastructure", "infrastructure"),
        (Ending(Ended.BY_ITSELF, exit_code=2), {"gaps": ["x"]}, "infrastructure", "infrastructure"),
        (Ending(Ended.BY_ITSELF, signal="SIGKILL", fault="killed"), {}, "infrastructure", "infrastructure"),
        (Ending(Ended.DEADLINE), {"statuses": ["interrupted"], "gaps": ["x"]}, "incomplete", "incomplete"),
        (Ending(Ended.DEADLINE), {"statuses": ["hung"], "gaps": ["x"]}, "hung", "hung"),
        (GOOD, {"gaps": ["x"]}, "incomplete", "incomplete"),
        (GOOD, {"statuses": ["complete", "not-run"]}, "incomplete", "incomplete"),
        (GOOD, {"changed": ["harness/x.py"]}, "failed", "failed"),
        (Ending(Ended.BY_ITSELF, exit_code=5), {"changed": ["x"], "gaps": ["x"]}, "infrastructure", "infrastructure"),
        (GOOD, {"missing": ["census"]}, "incomplete", "passed"),
        (GOOD, {"problems": ["collect failed"]}, "incomplete", "passed"),
        (Ending(Ended.REFUSED, verdict=Verdict.CAPACITY), {"ran": False}, "capacity", "capacity"),
        (Ending(Ended.REFUSED, verdict=Verdict.UNSATISFIABLE), {"ran": False}, "unsatisfiable", "unsatisfiable"),
        (Ending(Ended.FAULT, verdict=Verdict.INFRASTRUCTURE), {"ran": False}, "infrastructure", "infrastructure"),
    ],
)  # fmt: skip
def test_who_died_decides_the_verdict(ending, changes, verdict, tests):
    decision = decide(known(ending, **changes))
    assert (decision.verdict.label, decision.test_verdict.label) == (verdict, tests)


def exited(code):
    return Ending(Ended.BY_ITSELF, exit_code=code)


@pytest.mark.parametrize(
    ("code", "judged", "verdict"),
    [
        (0, "passed", "passed"), (0, "failed", "failed"), (0, "incomplete", "incomplete"), (0, "hung", "hung"),
        (1, "incomplete", "incomplete"), (1, "passed", "failed"), (1, "infrastructure", "infrastructure"),
        (3, "incomplete", "incomplete"), (4, "failed", "failed"), (4, "passed", "incomplete"),
        (5, "incomplete", "infrastructure"), (137, "failed", "infrastructure"),
    ],
)  # fmt: skip
def test_the_reports_of_groups_decide_where_the_node_ended_well_enough_to_have_them(code, judged, verdict):
    gaps = [] if judged == "passed" else ["unit: x"]
    decision = decide(known(exited(code), judged=Verdict.from_label(judged), gaps=gaps))
    assert (decision.verdict.label, decision.test_verdict.label) == (verdict, verdict)


CAUSES = (
    Cause(Verdict.FAILED, "a: it exited with 1"),
    Cause(Verdict.INFRASTRUCTURE, "b: it was killed"),
    Cause(Verdict.INFRASTRUCTURE, "c: so was it"),
    Cause(Verdict.INCOMPLETE, "d: no test was collected"),
)


@pytest.mark.parametrize(
    ("code", "changes", "reason"),
    [
        (5, {"told": CAUSES}, "the node's exit code is 5: b: it was killed"),
        (4, {"told": CAUSES}, "the node's exit code is 4: d: no test was collected"),
        (3, {"told": CAUSES}, "the node's exit code is 3: a: it exited with 1"),
        (5, {"gaps": ["a: no rows"]}, "the node's exit code is 5: a: no rows"),
        (5, {}, "the node's exit code is 5"),
        (0, {"judged": Verdict.FAILED, "told": CAUSES, "gaps": ["d: x"]}, "a: it exited with 1"),
        (0, {"judged": Verdict.INCOMPLETE, "told": CAUSES, "gaps": ["a: x"]}, "d: no test was collected"),
    ],
)
def test_the_reason_is_that_of_the_first_whose_verdict_is_the_runs(code, changes, reason):
    assert decide(known(exited(code), **changes)).reason == reason


endings = st.builds(
    Ending,
    st.sampled_from(Ended),
    verdict=st.none() | st.sampled_from([Verdict.CAPACITY, Verdict.UNSATISFIABLE, Verdict.INFRASTRUCTURE]),
    exit_code=st.none() | st.sampled_from([0, 1, 2, 3, 4, 5, 124]),
    fault=st.none() | st.just("killed"),
)
things = st.builds(
    Known,
    ending=endings,
    cancelled=st.none() | st.just("stopped by SIGINT"),
    ran=st.booleans(),
    statuses=st.lists(st.sampled_from(["complete", "failed", "hung", "infrastructure", "unsettled", "not-run"])),
    gaps=st.lists(st.just("gap"), max_size=1),
    changed=st.lists(st.just("a file"), max_size=1),
    missing=st.lists(st.just("census"), max_size=1),
    unconfirmed=st.lists(st.just("process 7"), max_size=1),
    problems=st.lists(st.just("trouble"), max_size=1),
    judged=st.none() | st.sampled_from([Verdict.PASSED, Verdict.FAILED, Verdict.INCOMPLETE]),
)


@given(things)
def test_only_a_run_without_any_blemish_passes(facts):
    blemish = (
        facts.ending.ended is not Ended.BY_ITSELF or facts.ending.exit_code != 0 or facts.ending.fault
        or facts.cancelled or not facts.ran or set(facts.statuses) - {"complete"} or facts.gaps or facts.changed
        or facts.missing or facts.unconfirmed or facts.problems or facts.judged not in {None, Verdict.PASSED}
    )  # fmt: skip
    assert (decide(facts).verdict is Verdict.PASSED) == (not blemish)


@given(things)
def test_what_may_still_exist_overrides_everything_and_keeps_the_rest_beside(facts):
    decision = decide(facts)
    assert (decision.verdict is Verdict.TEARDOWN_UNCONFIRMED) == bool(facts.unconfirmed)
    assert decision.result is not Verdict.TEARDOWN_UNCONFIRMED
