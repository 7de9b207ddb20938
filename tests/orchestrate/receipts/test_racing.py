"""A run of the racing schedule: fewer rounds are complete where the rule gives fewer, and the plan said so before."""

import pytest

from orchestrate.cli import cli
from orchestrate.errors import UsageError
from orchestrate.receipts.racing import rounds_of_race
from orchestrate.receipts.verify import verify_run

ROUNDS = {"no_sharing": 3, "depth_one": 4, "full_sharing": 4}


def raced(_key, rows, rounds=ROUNDS, decided=(("no_sharing", 2),)):
    """The rows of the builder as a race leaves them: `no_sharing` was decided after its third round."""
    header, *others, end = rows
    kept = [row for row in others if row["row"] != "measure" or row["round"] < rounds[row["candidate"]]]
    kept.insert(0, header | {"schedule": "racing"})
    base = {name: header[name] for name in ("schema", "at")}
    for label, turn in decided:
        kept.append({**base, "row": "decided", "candidate": label, "role": "candidate", "round": turn, "leader": "x"})
    return [*kept, end | {"rows": len(kept)}]


@pytest.fixture
def run(builder):
    """A function: a run of four rounds, with these rows and this schedule in its plan."""

    def build(rows=raced, schedule="racing", **plan):
        changed = ({} if schedule is None else {"schedule": schedule}) | plan
        return builder(repeat=4, rows_hook=rows, plan_hook=lambda plan: plan | changed).build()

    return build


def test_the_rule_gives_the_slowest_layout_of_these_rounds_three_of_four():
    times_ms = [[21.5 - 2.25 * index + 0.5 * turn for turn in range(4)] for index in range(3)]
    assert rounds_of_race(times_ms, 4) == list(ROUNDS.values())


def test_a_race_that_was_planned_and_went_by_its_rule_passes(run):
    found = verify_run(run())
    assert found.problems == ()
    assert found.verdict.label == "passed"
    assert any("until the rule of the race had decided" in claim for claim in found.proves)


@pytest.mark.parametrize("schedule", ["fixed", None])
def test_a_race_that_was_not_planned_is_incomplete(run, schedule):
    assert "schedule 'racing', not 'fixed'" in " ".join(verify_run(run(schedule=schedule)).problems)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decided": ()}, "'no_sharing' stopped after round 2 without a decision"),
        ({"decided": (("no_sharing", 0),)}, "'no_sharing' stopped after round 2 without a decision"),
        ({"rounds": ROUNDS | {"no_sharing": 1}, "decided": (("no_sharing", 0),)}, "'no_sharing' has 1 usable rounds"),
        ({"rounds": ROUNDS | {"depth_one": 3}, "decided": (("depth_one", 2),)}, "'depth_one' has 3 usable rounds of 4"),
        ({"rounds": ROUNDS | {"no_sharing": 4}}, "'no_sharing' has 4 usable rounds of 3"),
    ],
)
def test_a_layout_that_stopped_by_no_decision_of_the_rule_is_a_gap(run, changes, said):
    problems = " ".join(verify_run(run(lambda key, rows: raced(key, rows, **changes))).problems)
    assert said in problems


def test_a_plan_that_gives_the_node_another_schedule_than_it_says_is_found(run):
    problems = " ".join(verify_run(run(environment={"SCHEDULE": "fixed"})).problems)
    assert "SCHEDULE='fixed'" in problems


@pytest.mark.parametrize("schedule", ["quick", 3, None, True, []])
def test_a_plan_of_no_known_schedule_is_found(builder, schedule):
    run_dir = builder(repeat=4, plan_hook=lambda plan: plan | {"schedule": schedule}).build()
    assert "no schedule that there is" in " ".join(verify_run(run_dir).problems)


def test_a_race_too_long_to_be_judged_is_a_gap_and_takes_no_time(builder):
    plan = {"schedule": "racing", "repeat": 100_000}

    def long(key, rows):
        first, *others = raced(key, rows)
        return [first | {"repeat": 100_000}, *others]

    run_dir = builder(rows_hook=long, plan_hook=lambda made: made | plan).build()
    assert "a race of 100000 rounds: at most 200 are judged" in " ".join(verify_run(run_dir).problems)


@pytest.mark.parametrize("command", [["launch"], ["render", "--backend", "sky"]])
def test_a_race_that_nobody_would_judge_is_refused_before_anything_is_made(command):
    with pytest.raises(UsageError, match="a race of 201 rounds"):
        cli.main([*command, "--cell-set", "smoke", "--schedule", "racing", "--repeat", "201"], standalone_mode=False)
