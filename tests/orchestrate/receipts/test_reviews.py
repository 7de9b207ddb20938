import json
import re
import shutil
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.cli import cli
from orchestrate.commands import review as command
from orchestrate.errors import OrchestrateError, ReceiptError, RunIsLiveError, UsageError
from orchestrate.lifecycle.run_directory import RunDirectory, RunLock
from orchestrate.receipts.record import load_record
from orchestrate.receipts.reviews import Review, ReviewKind, own_reason, reviewed
from orchestrate.receipts.signing import public_key
from orchestrate.receipts.statement import Stage
from orchestrate.receipts.verify import verify_record, verify_run
from orchestrate.report.html import render_page
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


def page_of(run):
    record = load_record(run)
    return render_page(record, verify_record(record), made_at=datetime(2026, 1, 3, tzinfo=UTC))


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
    assert passed.say("--kind", "hold", "--by", "carol")[0] == 4
    before = sorted((passed.run / "receipts").iterdir())
    with pytest.raises(UsageError, match=r"bob does not hold .*: ada, carol does"):
        passed.say("--kind", "release", "--by", "bob")
    assert sorted((passed.run / "receipts").iterdir()) == before
    assert passed.say("--kind", "release", "--by", "carol")[0] == 4
    assert passed.say("--kind", "release", "--by", " ada ")[0] == 0
    with pytest.raises(UsageError, match=r"ada does not hold .*: nobody does"):
        passed.say("--kind", "release", "--by", "ada")
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


def test_verify_tells_every_review_and_which_one_the_verdict_stands_by(passed, capsys):
    passed.say("--kind", "review", "--by", "carol", "--fails")
    passed.say("--kind", "hold", "--by", "ada")
    passed.say("--kind", "release", "--by", "ada")
    assert cli.main(["verify", str(passed.run)], standalone_mode=False) == 0
    told = capsys.readouterr().out
    assert "verdict  FAILED  the review by carol fails: because" in told
    assert "review by carol (fails, not signed, counts): because" in told
    assert "hold by ada (not signed, does not count): because" in told
    assert "release by ada (not signed, counts): because" in told
    assert cli.main(["verify", str(passed.run), "--json"], standalone_mode=False) == 0
    tree = json.loads(capsys.readouterr().out)
    said = [(each["by"], each["kind"], each["holds"], each["counts"], each["signed"]) for each in tree["reviews"]]
    assert said == [
        ("carol", "review", False, True, False),
        ("ada", "hold", True, False, False),
        ("ada", "release", True, True, False),
    ]
    assert all(each["at"].endswith("Z") and each["why"] == "because" for each in tree["reviews"])
    assert tree["by_review"] == "the review by carol fails: because"


def test_a_held_run_is_said_to_be_held(passed, capsys):
    passed.say("--kind", "hold", "--by", "ada")
    cli.main(["verify", str(passed.run)], standalone_mode=False)
    assert "verdict  INCOMPLETE  held by ada: because" in capsys.readouterr().out


def test_which_review_is_signed_is_told_where_it_is_known(passed, tmp_path, write_key):
    keys = [write_key(tmp_path / name)[0] for name in ("ada.pem", "bob.pem")]
    passed.say("--kind", "audit", "--by", "ada", "--sign-key", str(keys[0]))
    passed.say("--kind", "audit", "--by", "bob")
    assert [each.signed for each in verify_run(passed.run).reviews] == [None, False]
    required = [[public_key(key)] for key in keys]
    assert [each.signed for each in verify_run(passed.run, require_signatures=required[0]).reviews] == [True, False]
    assert [each.signed for each in verify_run(passed.run, require_signatures=required[1]).reviews] == [None, False]


def test_the_page_lists_every_review_and_keeps_what_the_run_said_of_itself(builder):
    run = builder(failed_cells={"cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4": "failed"}).build()
    before = page_of(run)
    Reviewed(run).say("--kind", "hold", "--by", "ada", "--why", "clocks of node 3")
    Reviewed(run).say("--kind", "release", "--by", "ada", "--why", "clocks are right")
    after = page_of(run)
    for said in ("clocks of node 3", "clocks are right"):
        assert said in after
    reason = re.search("<strong>Reason:</strong> .*</p>", before).group()
    assert reason in after
    took = re.search("took <strong>.*</strong>", before).group()
    assert took in after


def test_the_page_of_a_held_run_tells_its_own_reason_apart_from_the_hold(builder):
    def facts(stage, said):
        return said | {"reason": "all is there"} if stage is Stage.CLOSURE else said

    run = builder(facts_hook=facts).build()
    assert "<strong>Reason:</strong> all is there" in page_of(run)
    Reviewed(run).say("--kind", "hold", "--by", "ada")
    assert "<strong>The reason of the run itself:</strong> all is there" in page_of(run)


def test_the_reason_of_a_run_is_its_own_where_a_review_does_not_decide(passed):
    own = passed.say("--kind", "audit", "--by", "eyes")[1]["reason"]
    passed.say("--kind", "hold", "--by", "ada")
    assert passed.say("--kind", "release", "--by", "ada")[1]["reason"] == own
    record = load_record(passed.run)
    assert own == record.closures[0].facts["reason"] == own_reason(record.receipts)
