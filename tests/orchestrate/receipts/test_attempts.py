"""Where one attempt ends and the next begins, told from receipts; and whose evidence a file is."""

from types import SimpleNamespace

import pytest

from orchestrate.receipts.attempts import attempt_of_evidence, attempts_of, evidence_folder, final_attempt
from orchestrate.receipts.statement import Stage

GIVEN_BACK = ["admit", "acquire", "teardown", "census"]
WHOLE = ["admit", "acquire", "run", "collect", "teardown", "census", "closure"]


def receipts(*attempts):
    """`(number, stages)` of each attempt, after the plan's receipt."""
    made = [SimpleNamespace(stage=Stage.PLAN, attempt=1)]
    return made + [SimpleNamespace(stage=Stage(each), attempt=number) for number, all_ in attempts for each in all_]


def shown(made):
    return [[(receipt.attempt, receipt.stage.value) for receipt in attempt] for attempt in attempts_of(made)]


@pytest.mark.parametrize(
    "attempts",
    [
        [(1, WHOLE)],
        [(1, GIVEN_BACK), (2, WHOLE)],
        [(1, ["admit"]), (2, ["admit"]), (3, WHOLE)],
        [(1, WHOLE), (2, WHOLE)],
        [(1, WHOLE), (2, ["closure"]), (3, WHOLE)],
        [(1, GIVEN_BACK), (2, ["closure"])],
        [(1, WHOLE), (2, [*GIVEN_BACK, "closure"])],
    ],
)
def test_each_attempt_is_told_by_its_admission_or_by_the_number_of_its_closure(attempts):
    assert shown(receipts(*attempts)) == [[(number, stage) for stage in stages] for number, stages in attempts]


def test_a_stage_that_is_done_again_because_its_doer_died_begins_no_attempt():
    made = receipts((1, WHOLE[:5]), (2, ["teardown", "census", "closure"]), (2, ["teardown", "census", "closure"]))
    assert len(attempts_of(made)) == 1


def test_the_final_attempt_has_the_plan_and_none_of_what_went_before():
    made = receipts((1, WHOLE), (2, ["admit", "closure"]))
    assert [receipt.stage.value for receipt in final_attempt(made)] == ["plan", "admit", "closure"]


@pytest.mark.parametrize("attempt", [1, 2, 9, 10, 123456])
def test_a_folder_of_evidence_names_its_attempt_and_no_other_name_does(attempt):
    assert attempt_of_evidence(f"{evidence_folder(attempt)}/node.json") == attempt


@pytest.mark.parametrize(
    "name", ["evidence-1/x", "evidence-02/x", "evidence-/x", "evidence2/x", "evidence", "logs/evidence/x", "evidence-2"]
)
def test_what_is_no_folder_of_evidence_is_of_no_attempt(name):
    assert attempt_of_evidence(name) is None
