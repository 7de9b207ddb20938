"""A gate that is lied to: records of another job, jobs that nobody speaks of, groups that a change left out."""

import json
import os

import pytest

from orchestrate.errors import UsageError
from orchestrate.gate.change import Change
from orchestrate.gate.records import as_classified, as_reconciled, as_refused, read_record


@pytest.fixture
def ready(github, run_of):
    """A workflow run that would be green."""
    github.change()
    github.step("classify")
    github.step("admit")
    github.made, github.run = run_of(github)
    github.reconciled()
    return github


def test_where_nobody_says_how_the_jobs_before_ended_there_is_no_pass(ready):
    code, answer = ready.step("conclude", "--runs-dir", str(ready.runs))
    assert (code, answer["green"]) == (4, False)
    assert "nobody says how the job classify ended" in answer["reason"]


def test_nor_is_a_change_without_gpu_paths_green_then(github):
    github.change("docs/x.md", "words\n")
    github.step("classify")
    code, answer = github.step("conclude", "--runs-dir", str(github.runs))
    assert (code, answer["green"]) == (4, False)


WHOLE = {
    "schema": "orchestrate.gate/1", "kind": "classified", "needed": True, "reason": "", "at": "2026-01-02T03:04:05Z",
    "change": {"repository": "o/r", "event": "push", "branch": "main", "head": "a" * 40, "base": None,
               "tested": "a" * 40, "from_fork": False, "run": 1, "attempt": 1},
    "checkout": {"commit": "a" * 40, "parents": [], "tree": "b" * 40, "dirty": False},
}  # fmt: skip


def hostile():
    text = json.dumps(WHOLE)
    yield text.replace('"run": 1', '"run": 1e999')
    yield text.replace('"run": 1', '"run": NaN')
    yield text.replace('"run": 1', f'"run": {"9" * 4000}')
    yield text.replace('"run": 1', '"run": "' + "9" * 5000 + '"')
    yield text.replace('"run": 1', '"run": true')
    yield text.replace('"run": 1', '"run": -1')
    yield text.replace('"parents": []', '"parents": "' + "a" * 40 + '"')
    yield text.replace('"needed": true', '"needed": true, "needed": false')
    yield text.replace('"reason": ""', '"reason": ' + "[" * 5000 + "]" * 5000)
    yield text.replace('"repository": "o/r"', '"repository": "o/r\\ud800"')
    yield text.replace('"repository": "o/r"', '"repository": null')
    yield text.encode().replace(b"o/r", b"o/\xff")


def test_a_record_that_is_whole_is_read(tmp_path):
    (tmp_path / "gate.json").write_text(json.dumps(WHOLE))
    assert as_classified(read_record(tmp_path / "gate.json", "classified")) is not None


def read_change_of(record):
    return Change(**record["change"])


@pytest.mark.parametrize("text", list(hostile()))
def test_a_hostile_record_is_none_and_breaks_nothing(tmp_path, text):
    path = tmp_path / "gate.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    tree = read_record(path, "classified")
    assert as_classified(tree) is None
    assert as_reconciled(tree, read_change_of(WHOLE)) is None
    as_refused(tree)


@pytest.mark.parametrize("make", ["fifo", "link", "folder", "device", "large"])
def test_what_is_no_plain_file_is_no_record(tmp_path, make):
    path = tmp_path / "gate.json"
    match make:
        case "fifo":
            os.mkfifo(path)
        case "link":
            (tmp_path / "other").write_text(json.dumps(WHOLE))
            path.symlink_to(tmp_path / "other")
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "large":
            path.write_text(json.dumps(WHOLE | {"more": "x" * (1 << 20)}))
    assert read_record(path, "classified") is None


def test_an_admission_of_a_record_without_a_time_is_refused_by_name(github):
    github.change()
    github.step("classify")
    for at in ("soon", 5, None):
        record = github.record("gate.json")
        record["at"] = at
        (github.records / "gate.json").write_text(json.dumps(record))
        with pytest.raises(UsageError, match="does not say when"):
            github.step("admit")


def test_a_classification_that_claims_the_future_is_not_in_time_for_ever(github):
    github.change()
    github.step("classify")
    record = github.record("gate.json")
    record["at"] = "2099-01-01T00:00:00Z"
    (github.records / "gate.json").write_text(json.dumps(record))
    code, answer = github.step("admit")
    assert (code, answer["admitted"]) == (76, False)


POLICY = "schema: orchestrate.gate-policy/1\ndevice: cpu\ngpu_paths: [/harness/]\ngroups: [unit, kernels]\n"


def test_a_group_that_the_policy_names_and_the_change_left_out_is_missing(ready):
    policy = ready.root / "policy.yml"
    policy.write_text(POLICY)
    code, answer = ready.conclude("--policy", str(policy))
    assert (code, answer["green"]) == (4, False)
    assert "the group unit, which the policy asks for" in answer["reason"]


@pytest.mark.parametrize("jobs", [{"run": "cancelled"}, {"reconcile": "failure"}, {"classify": "skipped"}])
def test_an_earlier_pass_makes_no_attempt_green_that_was_stopped(github, run_of, jobs):
    github.change()
    github.step("classify", *github.asked)
    github.step("admit")
    run_of(github)
    github.reconciled()
    (github.root / "gate").rename(github.root / "earlier")
    github.attempt = 2
    github.announce()
    github.step("classify", *github.asked)
    earlier = ("--earlier", str(github.root / "earlier"))
    assert github.step("admit", *earlier, "--earlier-expires", "2099-01-01T00:00:00Z")[1]["reuse"] is True
    github.reconciled()
    needs = {"classify": "success", "run": "success", "reconcile": "success", **jobs}
    assert github.conclude(*earlier, needs=needs)[1]["green"] is False


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        ({"confirmed": False, "unknown": ["the kubeconfig is empty"]}, "not-run"),
        ({"confirmed": False, "left": ["job a/b"]}, "teardown-unconfirmed"),
        ({"confirmed": False, "found": ["job a/b"]}, "teardown-unconfirmed"),
    ],
)
def test_a_fork_that_got_no_credentials_is_red_as_what_it_is(github, record, verdict):
    github.change()
    github.announce(fork=True)
    github.step("classify")
    assert github.step("admit")[1]["admitted"] is False
    github.reconciled(**record)
    code, answer = github.conclude(needs={"classify": "success", "run": "success", "reconcile": "failure"})
    assert (answer["verdict"], answer["green"]) == (verdict, False)
    assert code != 0
