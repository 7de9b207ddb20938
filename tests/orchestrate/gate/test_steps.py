import json
import shutil

import pytest

from orchestrate.errors import UsageError


def test_a_change_of_a_path_that_needs_gpus_is_tested_as_its_merge(github):
    github.change()
    code, answer = github.step("classify")
    assert code == 0
    assert answer["needed"] is True
    assert answer["change"]["head"] == github.head
    assert answer["checkout"]["commit"] == github.tested
    assert answer["checkout"]["parents"] == [github.base, github.head]
    assert "needed<<" in (github.root / "output").read_text()


def test_a_change_of_other_paths_needs_no_gpu_and_the_check_is_green(github):
    github.change("docs/x.md", "words\n")
    assert github.step("classify")[1]["needed"] is False
    code, answer = github.conclude(needs={"classify": "success", "run": "skipped", "reconcile": "skipped"})
    assert (code, answer["green"], answer["verdict"]) == (0, True, "not-needed")
    assert "no GPU needed" in github.summary


def test_a_change_can_not_loosen_the_policy_that_judges_it(github):
    github.write(".github/gpu-gate.yml", "schema: orchestrate.gate-policy/1\ndevice: cpu\ngpu_paths: [/nothing/]\n")
    github.change()
    assert github.step("classify")[1]["needed"] is True


def test_a_merge_of_another_head_is_not_this_change(github):
    github.change()
    github.git("checkout", "-q", "change")
    github.write("harness/b.py", "b = 1\n")
    github.head = github.commit("pushed meanwhile")
    github.git("checkout", "-q", "main")
    github.announce()
    code, answer = github.step("classify")
    assert code == 4
    assert "neither the head" in answer["problems"][0]
    answer = github.conclude(needs={"classify": "failure", "run": "skipped", "reconcile": "skipped"})[1]
    assert (answer["green"], "neither the head" in answer["reason"]) == (False, True)


def test_a_base_that_is_not_here_is_an_error_and_no_policy_of_the_change(github):
    github.change("docs/x.md", "words\n")
    github.base = "0123456789" * 4
    github.announce()
    with pytest.raises(UsageError, match="the base 012345678901 is not here"):
        github.step("classify")


def test_after_the_deadline_nothing_is_asked_for(github):
    github.change()
    github.step("classify")
    record = github.record("gate.json")
    record["at"] = "2026-01-01T00:00:00Z"
    (github.records / "gate.json").write_text(json.dumps(record))
    code, answer = github.step("admit", "--within", "1h")
    assert (code, answer["admitted"]) == (76, False)
    assert github.step("run", "--runs-dir", str(github.runs), "--", "--cell-set", "smoke")[0] == 76
    assert not github.runs.exists()
    github.reconciled()
    code, answer = github.conclude(needs={"classify": "success", "run": "failure", "reconcile": "success"})
    assert (code, answer["verdict"], answer["green"]) == (76, "not-run", False)
    assert "not run" in answer["title"]


def test_a_change_from_a_fork_gets_no_gpu_and_no_pass(github):
    github.change()
    github.announce(fork=True)
    github.step("classify")
    assert github.step("admit")[1]["admitted"] is False
    github.reconciled()
    code, answer = github.conclude()
    assert (code, answer["green"]) == (76, False)


def test_a_complete_run_of_the_merge_is_green(github, run_of):
    github.change()
    github.step("classify")
    github.step("admit")
    run_of(github)
    github.reconciled()
    code, answer = github.conclude()
    assert (code, answer["green"], answer["problems"]) == (0, True, [])
    for words in ("tested commit", github.tested, "What this does not prove", "a fresh machine looked"):
        assert words in github.summary


def red(github, **needs):
    code, answer = github.conclude(**needs)
    assert answer["green"] is False
    assert code != 0
    assert code == answer["exit_code"]
    return answer


@pytest.fixture
def ready(github, run_of):
    """A workflow run that would be green."""
    github.change()
    github.step("classify")
    github.step("admit")
    made, run = run_of(github)
    github.reconciled()
    github.made, github.run = made, run
    return github


def test_nobody_looked_afterwards(ready):
    (ready.records / "reconcile.json").unlink()
    assert "nobody looked afterwards" in red(ready)["reason"]


@pytest.mark.parametrize("change", [{"confirmed": False}, {"left": ["job a/b"]}, {"unknown": ["the API is away"]}])
def test_something_may_be_left(ready, change):
    ready.reconciled(**change)
    assert red(ready)["verdict"] == "teardown-unconfirmed"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "orchestrate.gate/1", "kind": "reconciled"}'])
def test_a_damaged_reconciliation_is_none(ready, text):
    (ready.records / "reconcile.json").write_text(text)
    red(ready)


def test_an_edited_receipt(ready):
    rows = next((ready.run / "evidence").rglob("rows.jsonl"))
    rows.write_bytes(rows.read_bytes().replace(b"1", b"2", 1))
    assert red(ready)["verdict"] == "incomplete"


def test_a_missing_cell(github, run_of):
    github.change()
    github.step("classify")
    github.step("admit")
    _, run = run_of(github)
    shutil.rmtree(next((run / "evidence/cells").iterdir()))
    github.reconciled()
    assert red(github)["verdict"] == "incomplete"


def test_a_pass_of_another_commit(github, run_of):
    github.change()
    github.step("classify")
    github.step("admit")
    run_of(github, source={"commit": "ab" * 20})
    github.reconciled()
    assert "not of the tested" in red(github)["reason"]


def test_a_pass_of_the_head_where_the_merge_is_tested(github, run_of):
    github.change()
    github.step("classify")
    github.step("admit")
    run_of(github, source={"commit": github.head})
    github.reconciled()
    assert "not of the tested" in red(github)["reason"]


def test_a_dirty_pass(github, run_of):
    github.change()
    github.step("classify")
    github.step("admit")
    run_of(github, source={"dirty": True})
    github.reconciled()
    red(github)


def test_a_run_of_another_workflow_run_is_not_ours(ready):
    ready.number = 8
    ready.announce()
    assert "no run directory came" in red(ready)["reason"]


def test_a_pass_on_another_device_than_the_policy_asks_for(ready):
    policy = ready.root / "h200.yml"
    policy.write_text("schema: orchestrate.gate-policy/1\ndevice: h200\ngpu_paths: [/harness/]\n")
    code, answer = ready.conclude("--policy", str(policy))
    assert (code, answer["green"]) == (4, False)
    assert "the policy asks for 'h200'" in answer["reason"]


@pytest.mark.parametrize("job", ["classify", "run", "reconcile"])
@pytest.mark.parametrize("result", ["failure", "cancelled", "skipped"])
def test_a_job_that_did_not_succeed_keeps_a_pass_from_being_green(ready, job, result):
    jobs = {"classify": "success", "run": "success", "reconcile": "success", job: result}
    red(ready, needs=jobs)


def test_nothing_at_all_is_not_a_pass(github):
    github.change()
    assert red(github, needs={"classify": "cancelled", "run": "skipped"})["verdict"] == "cancelled"
    assert red(github, needs={"classify": "failure"})["verdict"] == "incomplete"


def test_a_cancelled_run_that_a_fresh_machine_cleaned_up_is_cancelled(github):
    github.change()
    github.step("classify")
    github.step("admit")
    github.reconciled(found=["job ns/orchestrate-x"])
    answer = red(github, needs={"classify": "success", "run": "cancelled", "reconcile": "success"})
    assert answer["verdict"] == "cancelled"
    assert "it found and removed" in github.summary


def test_no_run_and_nobody_looked_is_a_teardown_that_nobody_confirmed(github):
    github.change()
    github.step("classify")
    assert red(github)["verdict"] == "teardown-unconfirmed"


def earlier_artifact(github, run_of):
    """What an earlier, passed attempt left behind, moved away as a download would lie."""
    github.change()
    github.step("classify", *github.asked)
    github.step("admit")
    run_of(github)
    github.reconciled()
    github.conclude()
    earlier = github.root / "earlier"
    shutil.move(github.root / "gate", earlier)
    (github.root / "summary.md").unlink()
    github.attempt = 2
    github.announce()
    github.step("classify", *github.asked)
    return earlier


FUTURE = ("--earlier-expires", "2099-01-01T00:00:00Z")


def test_an_earlier_pass_of_the_same_change_stands_and_is_cited(github, run_of):
    earlier = earlier_artifact(github, run_of)
    code, answer = github.step("admit", "--earlier", str(earlier), *FUTURE)
    assert (code, answer["reuse"], answer["admitted"]) == (0, True, False)
    github.reconciled()
    code, answer = github.conclude("--earlier", str(earlier))
    assert (code, answer["green"]) == (0, True)
    assert "workflow run 7, attempt 1" in answer["title"]


@pytest.mark.parametrize("expires", [(), ("--earlier-expires", "2026-01-01T00:00:00Z"), ("--earlier-expires", "soon")])
def test_an_expired_pass_does_not_stand(github, run_of, expires):
    earlier = earlier_artifact(github, run_of)
    answer = github.step("admit", "--earlier", str(earlier), *expires)[1]
    assert (answer["reuse"], answer["admitted"]) == (False, True)


@pytest.mark.parametrize(
    ("place", "name"), [("repository", "o/other"), ("branch", "other"), ("head", "ab" * 20), ("base", "cd" * 20)]
)
def test_a_pass_of_another_change_does_not_stand(github, run_of, place, name):
    earlier = earlier_artifact(github, run_of)
    record = json.loads((earlier / "records/gate.json").read_text())
    record["change"][place] = name
    (earlier / "records/gate.json").write_text(json.dumps(record))
    assert github.step("admit", "--earlier", str(earlier), *FUTURE)[1]["reuse"] is False


def test_an_edited_pass_does_not_stand_at_the_end_either(github, run_of):
    earlier = earlier_artifact(github, run_of)
    github.step("admit", "--earlier", str(earlier), *FUTURE)
    rows = next((earlier / "runs").rglob("rows.jsonl"))
    rows.write_bytes(rows.read_bytes() + b"{}\n")
    github.reconciled()
    code, answer = github.conclude("--earlier", str(earlier))
    assert answer["green"] is False
    assert code == 4


def test_the_gate_signs_what_it_makes_green_and_an_earlier_pass_stands_only_signed(github, run_of, write_key):
    private, public = write_key(github.root / "key.pem")
    earlier = earlier_artifact(github, run_of)
    wanted = ("--earlier", str(earlier), *FUTURE, "--require-signature", str(public))
    assert github.step("admit", *wanted)[1]["reuse"] is False
    github.attempt = 1
    github.announce()
    moved = github.root / "gate"
    shutil.rmtree(moved)
    shutil.move(earlier, moved)
    code, answer = github.conclude("--sign-key", str(private))
    assert (code, answer["green"]) == (0, True)
    shutil.move(moved, earlier)
    github.attempt = 2
    github.announce()
    github.step("classify", *github.asked)
    assert github.step("admit", *wanted)[1]["reuse"] is True


def test_a_pass_that_can_not_be_signed_is_red(ready, write_key):
    private, _ = write_key(ready.root / "key.pem")
    (ready.run / "signatures").write_text("in the way")
    code, answer = ready.conclude("--sign-key", str(private))
    assert (code, answer["green"]) == (4, False)
    assert "could not be signed" in answer["reason"]


def test_a_signature_of_another_key_is_not_the_one_that_is_required(ready, write_key):
    private, _ = write_key(ready.root / "key.pem")
    _, other = write_key(ready.root / "other.pem")
    ready.conclude("--sign-key", str(private))
    assert red_because(ready, "--require-signature", str(other)) == "incomplete"


def red_because(github, *arguments):
    answer = github.conclude(*arguments)[1]
    assert answer["green"] is False
    return answer["verdict"]


def test_the_gates_own_options_can_not_be_given_to_launch(github):
    github.change()
    github.step("classify")
    github.step("admit")
    with pytest.raises(UsageError, match="the gate's own"):
        github.step("run", "--runs-dir", "x", "--", "--owner", "me")
    with pytest.raises(UsageError, match="the gate's own"):
        github.step("reconcile", "--", "--run=x")


def test_a_fresh_machine_that_finds_nothing_confirms_with_two_looks(github):
    github.change()
    code, answer = github.step("reconcile", "--", "--backend", "local", "--runs-dir", str(github.root / "none"))
    assert (code, answer["confirmed"], answer["unknown"]) == (0, True, [])


def test_a_fresh_machine_must_be_told_where_to_look(github):
    github.change()
    with pytest.raises(UsageError, match="no --backend"):
        github.step("reconcile", "--", "--runs-dir", str(github.root / "none"))


def test_a_provider_that_can_not_be_asked_is_not_confirmed_absence(github, monkeypatch):
    github.change()
    monkeypatch.setenv("KUBECONFIG", str(github.root / "no-such-file"))
    code, answer = github.step("reconcile", "--", "--backend", "k8s", "--runs-dir", str(github.root / "none"))
    assert (code, answer["confirmed"]) == (70, False)
    assert answer["unknown"]


QUALIFICATION = """schema: orchestrate.qualification/1
name: self
device: cpu
groups:
  - {name: unit, command: python -m pytest -q -p no:cacheprovider t, timeout: 2m}
"""


@pytest.mark.slow
def test_a_qualification_of_the_merge_makes_the_check_green_and_lists_skips(github):
    pytest.importorskip("torch", reason="the node's preflight asks for PyTorch")
    github.write("qualification.yaml", QUALIFICATION)
    github.write(
        "t/test_x.py", "import pytest\ndef test_a(): pass\n@pytest.mark.skip(reason='no GPU')\ndef test_b(): pass"
    )
    github.change()
    github.step("classify")
    github.step("admit")
    code, answer = github.step("run", "--runs-dir", str(github.runs), "--", "qualify")
    assert (code, answer["verdict"]) == (0, "passed"), answer
    github.reconciled()
    code, answer = github.conclude()
    assert (code, answer["green"], answer["problems"]) == (0, True, [])
    assert "Skipped tests" in github.summary
    assert "no GPU" in github.summary
