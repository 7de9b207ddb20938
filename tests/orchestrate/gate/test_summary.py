"""What a red check says is so: why it is red, what ran (nothing), what is proven and what is not."""

import json

import pytest

from orchestrate.commands.gate_asked import look_of
from orchestrate.gate.conclusion import Evidence, Reconciled, conclude
from orchestrate.gate.policy import parse_policy
from orchestrate.gate.records import as_classified
from orchestrate.gate.summary import summarise, told
from orchestrate.qualify.overview import GroupRow
from orchestrate.qualify.test_counts import TestCounts
from orchestrate.receipts.verify import Verification
from orchestrate.verdict import Verdict

JOBS = {"classify": "success", "run": "success", "reconcile": "success"}


def red(github, **jobs):
    code, answer = github.conclude(needs={**JOBS, **jobs})
    assert answer["green"] is False
    assert code != 0
    return answer


def test_a_fork_is_not_run_and_no_deadline_is_blamed(github):
    github.change()
    github.announce(fork=True)
    github.step("classify")
    answer = red(github, run="skipped", reconcile="skipped")
    assert answer["title"] == "GPU gate: not run; nothing was asked for"
    assert "nothing of it was measured" in github.summary


def test_options_that_the_launch_refuses_are_told_where_the_check_is(github):
    github.change()
    github.step("classify")
    github.step("admit")
    with pytest.raises(Exception, match="No such option"):
        github.step("run", "--runs-dir", str(github.runs), "--", "--bogus")
    github.reconciled()
    answer = red(github, run="failure")
    assert (answer["verdict"], "--bogus" in answer["reason"]) == ("incomplete", True)


def test_an_admission_that_never_was_is_the_reason(github):
    github.change()
    github.step("classify")
    github.reconciled()
    assert "never admitted" in red(github, run="failure")["reason"]


def test_a_change_without_gpu_paths_is_not_green_where_another_head_is_checked_out(github):
    github.change("docs/x.md", "words\n")
    github.head = github.base
    github.announce()
    github.step("classify")
    red(github, run="skipped", reconcile="skipped")


@pytest.mark.parametrize("needs", ["{", '{"classify": {"result": "odd"}}'])
def test_words_that_are_none_are_a_red_check_with_a_summary(github, needs):
    github.change()
    github.step("classify")
    code, answer = github.step("conclude", "--runs-dir", str(github.runs), "--needs", needs)
    assert (code, answer["green"], answer["verdict"]) == (4, False, "incomplete")
    assert "--needs" in answer["reason"]
    assert "GPU gate: incomplete" in github.summary.replace("&#58;", ":")


def test_so_is_a_policy_that_is_not_there_and_what_may_be_left_stays_worse(github):
    github.change()
    github.step("classify")
    github.reconciled()
    wanted = ("--policy", "no-such.yml")
    code, answer = github.conclude(*wanted)
    assert (code, answer["verdict"]) == (4, "incomplete")
    assert "no-such.yml can not be read" in answer["reason"]
    github.reconciled(confirmed=False, left=["pod/x"])
    assert github.conclude(*wanted)[1]["verdict"] == "teardown-unconfirmed"


def test_a_cancelled_run_that_was_never_closed_is_cancelled(github, run_of):
    github.change()
    github.step("classify")
    github.step("admit")
    _, run = run_of(github)
    for path in (run / "receipts").iterdir():
        if json.loads(path.read_bytes())["predicate"]["stage"] == "closure":
            path.unlink()
    github.reconciled()
    assert red(github, run="cancelled")["verdict"] == "cancelled"
    assert red(github, run="failure")["verdict"] == "incomplete"


REFUSED = {
    "offers": [{"where": "team", "reason": "no-gpu-free", "basis": "events", "detail": "0/3", "at": "x"}],
    "availability": [],
    "asked": {"gpus": 4},
    "nothing_ran": True,
    "retry_after_s": 600,
}


def with_facts(**facts):
    return {**REFUSED, **facts}


@pytest.mark.parametrize(
    ("withdrawal", "said"),
    [
        ({"withdrawn": True, "confirmed": True, "how": "deleted"}, "was withdrawn, and that was confirmed: deleted"),
        ({"withdrawn": True, "confirmed": False, "how": "deleted"}, "that was NOT confirmed"),
        (
            {"withdrawn": False, "confirmed": True, "how": "nothing had been asked for"},
            "Nothing was withdrawn: nothing had",
        ),
        (None, "Whether the request was withdrawn is not known"),
    ],
)
def test_a_refusal_says_what_was_asked_for_what_became_of_it_and_when_to_try_again(refusal, withdrawal, said):
    text = refusal(capacity=with_facts(withdrawal=withdrawal)).replace("&#46;", ".")
    assert said in text
    assert "Nothing ran." in text
    assert "gpus 4" in text
    assert "Try again in 600 s." in text


def test_where_nothing_ran_no_commit_ran_and_no_group_is_blamed(refusal):
    row = GroupRow("unit", Verdict.INCOMPLETE, "the node says nothing of it", True, TestCounts(), None, None, None, (),
                   None, ())  # fmt: skip
    assert "commit that ran | <code>none" in refusal(capacity=with_facts(withdrawal=None), groups=[row])
    assert "made no census of its own" in refusal(capacity=with_facts(withdrawal=None))
    assert [title for _, title, _ in told(refusal.conclusion, [row])] == ["GPU gate: no GPU was free; nothing ran"]


def verification(verdict):
    return Verification(True, "r1", verdict, Verdict.INCOMPLETE, "0" * 64, "unknown", "a" * 40, (), (), (), ())


class Told:
    """The conclusion of a run that was refused for want of GPUs; called, its summary."""

    def __init__(self, conclusion, *facts):
        self.conclusion, self.facts = conclusion, facts

    def __call__(self, **more):
        return summarise(self.conclusion, *self.facts, **more)


@pytest.fixture
def refusal(github):
    github.change()
    github.step("classify")
    classified = as_classified(github.record("gate.json"))
    closure = {"reason": "no GPU was free", "teardown": {"confirmed": True}}
    evidence = Evidence(verification(Verdict.CAPACITY), closure, {}, {}, None, ran=False)
    looked = Reconciled(True, (), (), (), look=look_of(("--backend", "local")))
    policy = parse_policy(b"schema: orchestrate.gate-policy/1\ngpu_paths: [x]\n", "p")
    conclusion = conclude(classified, JOBS, True, evidence, looked, policy)
    assert conclusion.verdict is Verdict.CAPACITY
    return Told(conclusion, classified, evidence, looked)


def test_a_long_table_ends_before_it_says_how_much_more_there_is(refusal):
    cells = [{"key": f"c{number}", "status": "complete", "complete": True, "rows": 1} for number in range(203)]
    lines = refusal(cells=cells).splitlines()
    at = lines.index("*and 3 more*")
    assert lines[at - 1] == ""
