"""What a workflow asks for, where it looks afterwards, and what of both a change could bend."""

import json
import os
import subprocess

import pytest

from orchestrate.commands import gate_run
from orchestrate.errors import UsageError
from orchestrate.gate.asked import Look, Target, targets_of_plan
from orchestrate.markup import escaped

LATER = ("--earlier-expires", "2099-01-01T00:00:00Z")


@pytest.fixture
def ready(github, run_of):
    """A workflow run that would be green."""
    github.change()
    github.step("classify", *github.asked)
    github.step("admit")
    github.made, github.run = run_of(github)
    github.reconciled()
    return github


def why(github, **jobs):
    code, answer = github.conclude(needs=jobs and {"classify": "success", "reconcile": "success", **jobs})
    assert (code, answer["green"]) == (4, False), answer
    return " | ".join([answer["reason"], *answer["problems"]])


def test_the_same_asked_for_and_looked_at_is_green(ready):
    assert ready.conclude()[1]["green"] is True


@pytest.mark.parametrize(
    ("launch", "audit", "said"),
    [
        ("--backend k8s --namespace team --cell-set smoke", "--backend local", "not at k8s team"),
        ("--backend k8s --namespace team", "--backend k8s --namespace default", "not at k8s team"),
        ("--backend k8s --any-of k8s:a/one,k8s:a/two", "--backend k8s --namespace one", "not at k8s two"),
        ("qualify --backend sky --infra slurm/a", "--backend sky --infra slurm/b", "not at sky slurm/a"),
        ("--backend local --bogus", "--backend local", "No such option"),
        ("--backend local", "--bogus", "No such option"),
        ("--backend local", "", "no --backend is named"),
        ("--backend local --owner me", "--backend local", "--owner is the gate's own"),
        ("qualify --help", "--backend local", "only ask for help"),
    ],
)
def test_a_look_that_is_not_where_the_run_goes_is_told_before_anything_runs(github, launch, audit, said):
    github.change()
    code, answer = github.step("classify", "--launch", launch, "--audit", audit)
    assert code == 4
    assert said in " ".join(answer["problems"])
    github.reconciled()
    assert said in why(github, run="skipped")
    assert escaped(said) in github.summary


@pytest.mark.parametrize(
    ("launch", "audit"),
    [
        ("--backend k8s --namespace team\n  --cell-set smoke\n", "--backend k8s\n"),
        ("--backend k8s", "--backend all"),
        ("qualify --backend sky --infra slurm/a", "--backend sky --backend local"),
        ("--backend local", "--backend local --runs-dir x"),
    ],
)
def test_a_look_that_covers_the_run_may_be_wider_and_options_may_stand_on_several_lines(github, launch, audit):
    github.change()
    code, answer = github.step("classify", "--launch", launch, "--audit", audit)
    assert (code, answer["problems"]) == (0, [])
    assert answer["launch"] == launch.split()


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"look": {"backends": ["k8s"], "namespace": None, "infra": None}}, "not at local"),
        ({"look": None}, "nobody says where"),
        ({"owner": "gh:o/r:99.1"}, "nobody looked"),
        ({"owner": "gh:x/y:7.1"}, "nobody looked"),
        ({"owner": None}, "nobody looked"),
        ({"at": "2001-01-01T00:00:00Z"}, "before the run had ended"),
        ({"at": "2099-01-01T00:00:00Z"}, "nobody looked"),
        ({"at": None}, "nobody looked"),
    ],
    ids=str,
)
def test_a_look_elsewhere_of_another_run_or_at_another_time_confirms_nothing(ready, record, said):
    ready.reconciled(**record)
    assert said in why(ready)


def test_where_a_run_may_have_something_is_read_from_its_plan():
    admitted = {"preflight": {"namespace": "told"}}
    assert targets_of_plan({"backend": "k8s"}, admitted) == (Target("k8s", "told"),)
    plan = {"backend": "sky", "settings": {"infra": "a"}, "places": [{"infra": "b"}, {}]}
    assert targets_of_plan(plan, {}) == (Target("sky", None, "b"), Target("sky", None, "a"))
    assert targets_of_plan({"backend": 3, "places": "x", "settings": [1]}, {"preflight": 1}) == (Target("3"),)
    assert not Look(frozenset({"k8s"}), "team").covers(Target("k8s", None))


def test_a_run_gets_no_other_options_than_the_change_was_classified_with(github):
    github.change()
    github.step("classify", *github.asked)
    github.step("admit")
    with pytest.raises(UsageError, match="not the options"):
        github.step("run", "--runs-dir", str(github.runs), "--", "--backend", "local")
    assert github.record("launch.json")["verdict"] == "incomplete"
    github.reconciled()
    assert "not the options" in why(github, run="failure")


def test_a_pass_of_another_request_does_not_stand(ready):
    (ready.root / "gate").rename(ready.root / "earlier")
    ready.attempt = 2
    ready.announce()
    larger = ("--launch", "--backend local --cell-set smoke --repeat 4", "--audit", "--backend local")
    earlier = ("--earlier", str(ready.root / "earlier"), *LATER)
    for asked, stands in ((ready.asked, True), (larger, False), ((), False)):
        ready.step("classify", *asked)
        answer = ready.step("admit", *earlier)[1]
        assert answer["reuse"] is stands
    assert "was not asked for the same" in answer["reason"]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"confirmed": False, "left": ["pod/x"]}, "nobody confirmed"),
        ({"owner": "gh:o/r:8.1"}, "nobody confirmed"),
        ({"at": "2001-01-01T00:00:00Z"}, "before the run had ended"),
        ({"look": None}, "nobody says where"),
        ({"look": {"backends": ["k8s"], "namespace": "zz", "infra": None}}, "not at local"),
    ],
    ids=str,
)
def test_an_earlier_pass_after_which_nobody_confirmed_that_nothing_is_left_does_not_stand(ready, broken, said):
    ready.reconciled(**broken)
    (ready.root / "gate").rename(ready.root / "earlier")
    ready.step("classify", *ready.asked)
    answer = ready.step("admit", "--earlier", str(ready.root / "earlier"), *LATER)[1]
    assert answer["reuse"] is False
    assert said in answer["reason"]


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("repository", "x/y", "another repository"),
        ("run", 8, "another run"),
        ("attempt", 2, "a later attempt"),
        ("branch", "other", "another branch"),
        ("event", "push", "another event"),
        ("from_fork", True, "another from_fork"),
        ("head", "ab" * 20, "another head"),
        ("tested", "ab" * 20, "another tested"),
    ],
)
def test_a_record_of_classify_that_is_not_so_now_makes_the_check_red(ready, where, value, said):
    record = ready.record("gate.json")
    record["change"][where] = value
    (ready.records / "gate.json").write_text(json.dumps(record))
    assert said in why(ready)


def test_nor_is_a_change_green_that_the_record_calls_harmless(ready):
    record = ready.record("gate.json")
    (ready.records / "gate.json").write_text(json.dumps({**record, "needed": False}))
    assert "says needed: False" in why(ready)
    record["checkout"]["tree"] = "cd" * 20
    (ready.records / "gate.json").write_text(json.dumps(record))
    assert "another tree" in why(ready)


def test_jobs_that_are_none_of_the_workflow_speak_of_nothing(ready):
    code, answer = ready.conclude(needs={"foo": "success"})
    assert (code, answer["green"]) == (4, False)
    assert "the job classify ended" in answer["reason"]


def test_failed_jobs_that_ran_again_are_an_attempt_beside_the_one_that_ran(ready):
    ready.attempt = 2
    ready.announce()
    assert "an earlier attempt" not in json.dumps(ready.conclude()[1])
    assert ready.conclude()[1]["green"] is True, "run and look are of attempt 1, and it is this change"
    ready.attempt = 1
    ready.announce()
    ready.reconciled(owner="gh:o/r:7.2")
    assert ready.conclude()[1]["green"] is True


def test_a_look_before_the_attempt_that_ran_says_nothing_of_it(github, run_of):
    github.attempt = 2
    github.change()
    github.step("classify", *github.asked)
    github.step("admit")
    run_of(github)
    github.reconciled(owner="gh:o/r:7.1")
    assert "an earlier attempt" in why(github)


def test_a_fresh_machine_looks_at_every_attempt_so_far(github, monkeypatch):
    asked = []

    def called(_command, arguments):
        asked.append(arguments[arguments.index("--owner") + 1])
        return {"exit_code": 0, "findings": [], "unknown": []}

    monkeypatch.setattr(gate_run, "_called", called)
    monkeypatch.setattr(gate_run, "GAP_S", 0.0)
    github.attempt = 3
    github.change()
    code, answer = github.step("reconcile", "--", "--backend", "local")
    assert (code, answer["confirmed"], answer["owner"]) == (0, True, "gh:o/r:7.3")
    assert asked == ["gh:o/r:7.1", "gh:o/r:7.2", "gh:o/r:7.3"] * 2


# What a change does to the files that judge it.

GROUPS = """schema: orchestrate.qualification/1
name: self
device: cpu
groups: [{name: unit, command: python -m pytest t}]
"""
QUALIFY = ("--launch", "qualify --backend local", "--audit", "--backend local")
DEMANDING = "schema: orchestrate.gate-policy/1\ndevice: cpu\ngpu_paths: [/harness/]\ngroups: [unit]\n"


def demanding(github, groups):
    """A base whose policy demands a group, and a change that writes the file of groups."""
    github.git("checkout", "-q", "main")
    github.write(".github/gpu-gate.yml", DEMANDING)
    github.write("qualification.yaml", GROUPS)
    github.base = github.commit("demanding")
    github.git("checkout", "-q", "-B", "change")
    github.change("qualification.yaml", groups)


def test_a_change_of_the_file_of_groups_needs_gpus_and_a_reviewer(github):
    demanding(github, GROUPS.replace("pytest t", "pytest t/one.py"))
    answer = github.step("classify", *QUALIFY)[1]
    assert (answer["needed"], answer["own_files"]) == (True, ["qualification.yaml"])
    github.reconciled()
    github.conclude()
    assert "the change touches qualification" in github.summary
    assert "the group unit is not as in the base&#58; another command" in github.summary


def test_a_demanded_group_that_no_longer_counts_tests_is_red(github):
    demanding(github, GROUPS.replace("command: python -m pytest t", 'command: "true", report: exit-code'))
    github.step("classify", *QUALIFY)
    github.reconciled()
    assert "no longer counts tests" in why(github)


def test_the_policy_of_a_push_is_that_of_the_default_branch(github):
    """Two commits on a branch: the first loosens the policy, the second changes what needs GPUs."""
    github.git("checkout", "-q", "change")
    github.write(".github/gpu-gate.yml", "schema: orchestrate.gate-policy/1\ngpu_paths: [/nothing/]\n")
    before = github.commit("loosen")
    github.write("harness/a.py", "a = 3\n")
    github.head = github.tested = github.commit("change")
    for name in ("push", "workflow_dispatch"):
        github.announce()
        event = {"before": before, "repository": {"default_branch": "main"}}
        (github.root / "event.json").write_text(json.dumps(event))
        github.monkeypatch.setenv("GITHUB_EVENT_NAME", name)
        github.monkeypatch.setenv("GITHUB_REF_NAME", "change")
        answer = github.step("classify")[1]
        assert (answer["needed"], answer["change"]["base"]) == (True, github.base)
        assert answer["own_files"] == [".github/gpu-gate.yml"]


LOOSE = "schema: orchestrate.gate-policy/1\ndevice: cpu\ngpu_paths: [/nothing/]\n"


def pushed(github, ref, **event):
    """A push of what is checked out to `ref`."""
    github.head = github.tested = github.git("rev-parse", "HEAD")
    github.announce()
    event = {"repository": {"default_branch": "main"}, **event}
    (github.root / "event.json").write_text(json.dumps(event))
    github.monkeypatch.setenv("GITHUB_EVENT_NAME", "push")
    github.monkeypatch.setenv("GITHUB_REF", ref)
    github.monkeypatch.setenv("GITHUB_REF_NAME", ref.split("/", 2)[2])


@pytest.mark.parametrize("ref", ["refs/tags/main", "refs/tags/v1", "refs/heads/other"])
def test_the_policy_of_a_tag_is_that_of_the_default_branch_also_where_it_has_its_name(github, ref):
    github.git("checkout", "-q", "change")
    github.write(".github/gpu-gate.yml", LOOSE)
    github.write("harness/a.py", "a = 3\n")
    github.commit("both")
    pushed(github, ref)
    assert github.step("classify")[1]["needed"] is True


def test_the_policy_of_a_branch_that_left_before_there_was_one_is_that_of_the_default_branch_now(github):
    github.git("checkout", "-q", "--orphan", "fresh")
    github.git("rm", "-q", "-r", "--cached", ".")
    (github.work / ".github/gpu-gate.yml").unlink()
    github.write("harness/a.py", "a = 0\n")
    github.commit("before the policy")
    github.git("branch", "-q", "-f", "old")
    github.write(".github/gpu-gate.yml", LOOSE.replace("/nothing/", "/harness/"))
    github.commit("with one")
    github.git("branch", "-q", "-f", "main")
    github.git("checkout", "-q", "old")
    github.write(".github/gpu-gate.yml", LOOSE)
    github.write("harness/a.py", "a = 3\n")
    github.commit("mine")
    pushed(github, "refs/heads/old")
    assert github.step("classify")[1]["needed"] is True


def test_a_pull_request_into_a_branch_of_its_author_is_held_to_the_default_branch_too(github):
    github.git("checkout", "-q", "-b", "mine", "main")
    github.write(".github/gpu-gate.yml", LOOSE)
    github.base = github.commit("loosened")
    github.git("checkout", "-q", "-B", "change")
    github.write("harness/a.py", "a = 2\n")
    github.head = github.tested = github.commit("change")
    github.announce()
    event = json.loads((github.root / "event.json").read_text())
    event["repository"] = {"default_branch": "main"}
    for ref, needed in (("mine", True), ("main", False)):
        event["pull_request"]["base"]["ref"] = ref
        (github.root / "event.json").write_text(json.dumps(event))
        assert github.step("classify")[1]["needed"] is needed


@pytest.mark.parametrize("allowed", [True, False])
def test_a_merge_into_a_newer_base_is_the_changes_only_where_the_policy_says_so(github, allowed):
    github.git("checkout", "-q", "main")
    if allowed:
        github.write(".github/gpu-gate.yml", LOOSE.replace("/nothing/", "/harness/") + "newer_base: true\n")
        github.base = github.commit("allow")
    github.git("checkout", "-q", "-B", "change")
    github.write("harness/a.py", "a = 2\n")
    github.head = github.commit("change")
    github.git("checkout", "-q", "main")
    github.write("docs/x.md", "moved on\n")
    newer = github.commit("moved on")
    github.git("merge", "-q", "--no-ff", "-m", "merge", "change")
    github.tested = github.git("rev-parse", "HEAD")
    github.announce()
    code, answer = github.step("classify")
    assert (code, answer["change"]["base"]) == ((0, newer) if allowed else (4, github.base))
    assert allowed or "GitHub names this base" in answer["problems"][0]


def test_no_name_of_a_folder_takes_a_path_out_of_the_policys_reach(github):
    github.change("docs\nx/a.md", "x")
    answer = github.step("classify")[1]
    assert answer["needed"] is True


def test_a_run_started_on_the_default_branch_is_tested_whole(github):
    github.git("checkout", "-q", "main")
    github.head = github.tested = github.base
    github.announce()
    (github.root / "event.json").write_text(json.dumps({"repository": {"default_branch": "main"}}))
    github.monkeypatch.setenv("GITHUB_EVENT_NAME", "workflow_dispatch")
    github.monkeypatch.setenv("GITHUB_REF_NAME", "main")
    answer = github.step("classify")[1]
    assert (answer["needed"], answer["change"]["base"]) == (True, None)


@pytest.mark.parametrize("pattern", ["/harness/sub", "/harness/sub/", "/harness/"])
def test_a_submodule_that_moves_needs_gpus_whatever_gitmodules_says(github, pattern):
    github.git("checkout", "-q", "main")
    github.write(".github/gpu-gate.yml", f"schema: orchestrate.gate-policy/1\ndevice: cpu\ngpu_paths: [{pattern}]\n")
    github.write(".gitmodules", '[submodule "sub"]\n\tpath = harness/sub\n\turl = ./x\n\tignore = all\n')
    github.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},harness/sub")
    github.git("add", ".github", ".gitmodules")
    github.git("commit", "-q", "-m", "with a submodule")
    github.base = github.git("rev-parse", "HEAD")
    github.git("checkout", "-q", "-B", "change")
    github.git("update-index", "--cacheinfo", f"160000,{'2' * 40},harness/sub")
    github.git("commit", "-q", "-m", "another")
    github.head = github.tested = github.git("rev-parse", "HEAD")
    github.announce()
    answer = github.step("classify")[1]
    assert (answer["needed"], answer["reason"]) == (True, "harness/sub need GPUs")


@pytest.mark.parametrize("name", [b"harness/caf\xe9.py", b"harness/a\n::add-mask::true\n::error title=x::pwned"])
def test_a_file_name_is_no_command_and_loses_no_record(github, name):
    path = os.path.join(os.fsencode(github.work), name)  # noqa: PTH118  # not UTF-8
    with open(path, "w") as file:  # noqa: PTH123
        file.write("x")
    github.change()
    code, answer = github.step("classify", *github.asked)
    assert (code, answer["needed"]) == (0, True)
    assert github.step("admit")[1]["admitted"] is True
    env = {**os.environ, "GITHUB_OUTPUT": str(github.root / "output")}
    said = subprocess.run(
        ["python", "-m", "orchestrate", "gate", "classify", "--records", str(github.records)],
        cwd=github.work, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not [line for line in (said.stdout + said.stderr).splitlines() if line.startswith("::")]
