"""A journal that was recomputed to tell of other receipts than there are does not verify."""

import pytest

from orchestrate.receipts.verify import verify_run


@pytest.fixture
def told(builder):
    """`told(change)`: the problems of a run in whose journal `change(kind, facts)` wrote each record, None for none."""

    def build(change):
        made = builder()
        write = made.note

        def note(kind, **facts):
            changed = change(kind, dict(facts))
            if changed is not None:
                write(kind, **changed)

        made.note = note
        return verify_run(made.build()).problems

    return build


def test_a_journal_that_tells_of_each_receipt_holds(told):
    assert told(lambda kind, facts: facts) == ()


@pytest.mark.parametrize("stage", ["plan", "admit", "teardown", "census"])
def test_a_receipt_that_the_journal_never_announced_is_told(told, stage):
    problems = told(lambda kind, facts: None if (kind, facts.get("stage")) == ("receipt", stage) else facts)
    assert any(f"the journal does not announce the {stage} receipt" in problem for problem in problems), problems


def test_a_record_of_a_receipt_that_is_not_there_is_told(told):
    def change(kind, facts):
        return {**facts, "sha256": "0" * 64} if (kind, facts.get("stage")) == ("receipt", "admit") else facts

    assert any("a receipt of admit that is not the next one there" in problem for problem in told(change))


@pytest.mark.parametrize("other", [{"stage": "acquire"}, {"attempt": 2}])
def test_a_receipt_under_the_name_of_another_stage_or_attempt_is_told(told, other):
    def change(kind, facts):
        return {**facts, **other} if (kind, facts.get("stage")) == ("receipt", "admit") else facts

    assert any("calls the admit receipt" in problem for problem in told(change))


def test_a_record_may_be_missing_where_somebody_took_over(builder):
    made = builder()
    write = made.note

    def note(kind, **facts):
        if (kind, facts.get("stage")) == ("receipt", "collect"):
            kind, facts = "takeover", {"by": "warden", "because": "the launcher was lost"}
        write(kind, **facts)

    made.note = note
    assert verify_run(made.build()).problems == ()
