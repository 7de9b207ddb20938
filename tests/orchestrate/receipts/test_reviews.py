import json
import shutil

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.commands import review as command
from orchestrate.errors import OrchestrateError, ReceiptError, RunIsLiveError, UsageError
from orchestrate.lifecycle.run_directory import RunDirectory, RunLock
from orchestrate.receipts.reviews import Review, ReviewKind, reviewed
from orchestrate.receipts.verify import verify_run
from orchestrate.verdict import Verdict

KINDS = st.builds(
    Review, st.sampled_from(ReviewKind), st.sampled_from(["ada", "bob"]), st.booleans(), st.just("because")
)


@given(st.sampled_from(Verdict), st.lists(KINDS))
def test_a_review_can_take_a_pass_away_and_never_give_one(measured, reviews):
    verdict, why = reviewed(measured, reviews)
    assert verdict in {measured, Verdict.FAILED, Verdict.INCOMPLETE}
    assert (verdict is measured) == (not why)
    if verdict is Verdict.PASSED:
        assert measured is Verdict.PASSED


def say(kind, by="ada", holds=True):
    return Review(ReviewKind(kind), by, holds, "because")


@pytest.mark.parametrize(
    ("reviews", "verdict"),
    [
        ([], Verdict.PASSED),
        ([say("audit")], Verdict.PASSED),
        ([say("audit", holds=False)], Verdict.FAILED),
        ([say("review", holds=False), say("review", "bob")], Verdict.FAILED),
        ([say("review", holds=False), say("review")], Verdict.PASSED),
        ([say("hold")], Verdict.INCOMPLETE),
        ([say("hold"), say("release")], Verdict.PASSED),
        ([say("hold"), say("release", "bob")], Verdict.INCOMPLETE),
        ([say("hold"), say("review")], Verdict.INCOMPLETE),
        ([say("hold"), say("review", holds=False)], Verdict.FAILED),
    ],
)
def test_the_newest_word_of_each_counts(reviews, verdict):
    assert reviewed(Verdict.PASSED, reviews)[0] is verdict


class Reviewed:
    def __init__(self, run):
        self.run = run

    def say(self, *arguments):
        runner = CliRunner(mix_stderr=False)
        done = runner.invoke(
            command.command,
            [self.run.name, "--runs-dir", str(self.run.parent), "--why", "because", "--json", *arguments],
            standalone_mode=False,
        )
        if isinstance(done.exception, OrchestrateError):
            raise done.exception
        assert done.exception is None, done.exc_info
        return done.return_value, json.loads(done.stdout)


@pytest.fixture
def passed(builder):
    return Reviewed(builder().build())


def test_a_hold_is_a_further_closure_and_the_first_one_stays(passed):
    first = verify_run(passed.run)
    assert first.verdict is Verdict.PASSED
    code, answer = passed.say("--kind", "hold", "--by", "ada")
    assert (code, answer["verdict"], answer["test_verdict"]) == (4, "incomplete", "passed")
    assert answer["supersedes"] == first.closure_sha256
    found = verify_run(passed.run)
    assert found.holds, found.problems
    assert found.verdict is Verdict.INCOMPLETE
    assert (passed.run / f"receipts/{first.closure_sha256}.json").exists()
    assert not verify_run(passed.run, require_passed=True).holds


def test_who_held_it_lets_it_go(passed):
    passed.say("--kind", "hold", "--by", "ada")
    assert passed.say("--kind", "release", "--by", "bob")[0] == 4
    assert passed.say("--kind", "release", "--by", "ada")[0] == 0
    assert verify_run(passed.run, require_passed=True).holds


def test_a_failing_review_is_kept_whatever_comes_later(passed):
    assert passed.say("--kind", "review", "--by", "ada", "--fails")[0] == 1
    assert passed.say("--kind", "review", "--by", "bob")[0] == 1
    assert passed.say("--kind", "audit", "--by", "eyes")[0] == 1
    found = verify_run(passed.run)
    assert found.holds, found.problems
    assert found.verdict is Verdict.FAILED


def test_an_audit_says_what_it_found(passed):
    assert passed.say("--kind", "audit", "--by", "eyes")[0] == 0
    rows = next((passed.run / "evidence").rglob("rows.jsonl"))
    rows.write_bytes(rows.read_bytes() + b"{}\n")
    code, answer = passed.say("--kind", "audit", "--by", "eyes")
    assert (code, answer["verdict"]) == (1, "failed")
    assert "do not hold" in answer["reason"]


def test_only_an_audit_speaks_of_what_does_not_hold(passed):
    shutil.rmtree(passed.run / "evidence")
    with pytest.raises(ReceiptError, match="do not hold"):
        passed.say("--kind", "review", "--by", "ada")


def test_a_run_that_failed_is_not_made_to_pass(builder):
    run = builder(failed_cells={"cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4": "failed"}).build()
    before = verify_run(run).verdict
    if before is Verdict.PASSED:
        pytest.fail("the run was to fail")
    code, answer = Reviewed(run).say("--kind", "audit", "--by", "eyes")
    assert code != 0
    assert answer["verdict"] != "passed"


def test_a_forged_verdict_over_a_hold_does_not_hold(builder):
    made = builder()
    run = made.build()
    Reviewed(run).say("--kind", "hold", "--by", "ada")
    made.journal = [line for line in (run / "journal.jsonl").read_bytes().split(b"\n") if line]
    made.close("somebody forgot the hold", verdict="passed", exit_code=0)
    found = verify_run(run)
    assert not found.holds
    assert any("with its 1 reviews the verdict is incomplete" in problem for problem in found.problems), found.problems


def test_a_run_with_a_living_owner_is_not_reviewed(passed):
    (passed.run / "lock").touch()
    lock = RunLock.try_take(RunDirectory(passed.run))
    try:
        with pytest.raises(RunIsLiveError):
            passed.say("--kind", "hold", "--by", "ada")
    finally:
        lock.release()


@pytest.mark.parametrize(
    "arguments",
    [("--kind", "hold", "--by", " "), ("--kind", "hold", "--by", "a\nb"), ("--kind", "hold", "--by", "x", "--fails")],
)
def test_what_can_not_be_said_is_refused_before_anything_is_written(passed, arguments):
    before = sorted((passed.run / "receipts").iterdir())
    with pytest.raises(UsageError):
        passed.say(*arguments)
    assert sorted((passed.run / "receipts").iterdir()) == before
