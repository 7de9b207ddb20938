"""`orchestrate qualify` as its user runs it: real repositories, real groups, evidence that is tampered with."""

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import pytest

from orchestrate.commands import qualify as qualifying
from orchestrate.errors import UsageError
from orchestrate.receipts.record import load_record
from orchestrate.receipts.signing import public_key
from orchestrate.receipts.verify import verify_record, verify_run
from orchestrate.render import qualification
from orchestrate.report.environment import environment
from orchestrate.report.html import render_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the node's preflight asks for PyTorch"),
]

HEAD = "schema: orchestrate.qualification/1\nname: demo\ndevice: cpu\ngroups:\n"
UNIT = "  - {name: unit, command: python -m pytest -q -p no:cacheprovider t, timeout: 2m}\n"
SHELL = "  - {name: shell, command: [bash, -c, 'echo $ORCHESTRATE_RUN_ID'], report: exit-code, needs: [unit]}\n"
GOOD = "import pytest\ndef test_a(): pass\n@pytest.mark.skip(reason='no GPU here')\ndef test_b(): pass\n"


def git(repository, *arguments):
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *arguments], cwd=repository, env=env, capture_output=True, check=True)


def new_repository(folder, groups, tests):
    repository = folder / "repository"
    (repository / "t").mkdir(parents=True)
    git(repository, "init", "-q", "-b", "main")
    git(repository, "config", "user.email", "a@example.org")
    git(repository, "config", "user.name", "a")
    (repository / "qualification.yaml").write_text(HEAD + groups)
    (repository / "t/test_x.py").write_text(tests)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "x")
    return repository


def qualify(folder, groups, tests, *options):
    """Exit code, answer and run directory of a qualification of a new repository."""
    repository = new_repository(folder, groups, tests)
    (repository / "t/test_x.py").write_text("def test_of_the_working_tree(): assert False\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ORCHESTRATE_"))}
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/no_such_module_here.py").touch()
    path = os.pathsep.join(filter(None, [str(folder / "elsewhere"), env.get("PYTHONPATH")]))
    env |= {"PYTHONPATH": path, "PYTEST_ADDOPTS": "-k nothing"}  # of the shell: what is tested does not depend on them
    done = subprocess.run(
        [sys.executable, "-m", "orchestrate", "qualify", "--repo", repository, "--runs-dir", folder / "runs", "--json",
         *options],
        env=env, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    return done.returncode, answer, folder / "runs" / str(answer.get("run_id"))


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    return qualify(tmp_path_factory.mktemp("passed"), UNIT + SHELL, GOOD)


def test_a_commit_whose_groups_pass_is_qualified_and_verify_agrees(passed):
    code, answer, run = passed
    assert (code, answer["verdict"], answer["cells"]) == (0, "passed", {"expected": 2, "complete": 2})
    unit, shell = answer["groups"]
    assert (unit["name"], unit["verdict"], unit["passed"], unit["has_tests"]) == ("unit", "passed", 1, True)
    assert [(each["reason"], each["count"]) for each in unit["skipped"]] == [("no GPU here", 1)]
    assert (shell["verdict"], shell["has_tests"], shell["skipped"]) == ("passed", False, [])
    found = verify_run(run, require_passed=True)
    assert found.holds, found.problems
    assert "2 of 2 expected groups passed by their own reports, 1 tests in all" in " ".join(found.proves)
    plan = json.loads((run / "plan.json").read_text())
    assert plan["source"]["commit"] == plan["qualified"]["commit"] == found.commit
    assert plan["qualified"]["working_tree_differs"] is True


@pytest.mark.parametrize(
    ("attack", "problem"),
    [
        ("rm receipts/*.json", "there is no|chain has a gap"),
        ("mv receipts elsewhere", "chain has a gap"),
        ("echo {} > receipts/false.json", "false.json does not have the content"),
        ("ln -s ../plan.json receipts/link.json", "a symbolic link"),
        ("echo x >> payload/groups.json", "groups.json is not the file that the plan names"),
    ],
)
def test_a_pass_whose_receipts_do_not_hold_is_none(tmp_path, attack, problem):
    group = f"  - {{name: a, command: [bash, -c, 'cd $ORCHESTRATE_RUN_DIR && {attack}'], report: exit-code}}\n"
    code, answer, run = qualify(tmp_path, group, GOOD)
    assert (code, answer["exit_code"], answer["verdict"]) == (4, 4, "incomplete")
    assert re.search(f"its receipts do not hold: .*({problem})", answer["reason"])
    found = verify_run(run)
    assert (found.holds, found.verdict.label) == (False, "incomplete")


def test_a_link_in_the_place_of_the_progress_fails_the_group_and_its_receipts_hold(tmp_path):
    attack = "cd $ORCHESTRATE_RUN_DIR && mv evidence/node.jsonl ../n && ln -s ../../n evidence/node.jsonl"
    group = f"  - {{name: a, command: [bash, -c, '{attack}'], report: exit-code}}\n"
    code, answer, run = qualify(tmp_path, group, GOOD)
    assert (code, answer["verdict"]) == (1, "failed")
    assert verify_run(run).holds


def tampered(run, folder, name, change):
    """What `verify` says of a copy in which one file was changed."""
    copy = folder / run.name
    shutil.copytree(run, copy)
    path = copy / name
    path.write_bytes(change(path.read_bytes()))
    return verify_run(copy)


@pytest.mark.parametrize(
    "name",
    ["evidence/groups/unit/tests.jsonl", "evidence/sources.json", "evidence/node.json", "payload/source.tar",
     "payload/groups.json", "evidence/packages.json"],
)  # fmt: skip
def test_whatever_is_edited_shows(passed, tmp_path, name):
    _, _, run = passed
    assert not tampered(run, tmp_path, name, lambda data: data[:-2] + b" \n").holds


def test_a_failed_test_that_is_edited_away_is_counted_again(tmp_path):
    code, answer, run = qualify(tmp_path, UNIT, GOOD + "def test_c(): assert 1 == 2\n")
    assert (code, answer["verdict"]) == (1, "failed")
    assert "test_c" in answer["reason"]
    found = verify_run(run)
    assert found.holds, found.problems


def test_a_failed_test_decides_though_the_command_and_so_the_node_exits_with_0(tmp_path):
    command = "[bash, -c, 'python -m pytest -q -p no:cacheprovider t; exit 0']"
    groups = f"  - {{name: early, command: 'true', report: exit-code}}\n  - {{name: unit, command: {command}}}\n"
    code, answer, run = qualify(tmp_path, groups, "def test_c(): assert 1 == 2\n")
    assert (code, answer["verdict"]) == (1, "failed")
    assert answer["reason"].startswith("unit: failed: its report has 1 failures, though it exited with 0")
    found = verify_run(run)
    assert found.holds, found.problems


def test_a_missing_import_is_incomplete_and_named_and_what_needs_it_does_not_run(tmp_path):
    code, answer, run = qualify(tmp_path, UNIT + SHELL, "import no_such_module_here\n")
    assert (code, answer["verdict"]) == (4, "incomplete")
    assert "no_such_module_here" in answer["reason"]
    assert verify_run(run).holds


def test_skipped_tests_alone_are_not_a_pass(tmp_path):
    tests = "import pytest\n@pytest.mark.skip(reason='no GPU here')\ndef test_b(): pass\n"
    code, answer, _ = qualify(tmp_path, UNIT, tests)
    assert (code, answer["verdict"]) == (4, "incomplete")
    assert "skipped" in answer["reason"]


def test_no_test_at_all_is_no_failure_and_says_so(tmp_path):
    code, answer, run = qualify(tmp_path, UNIT.replace("-q", "-q -k nothing"), GOOD)
    assert (code, answer["verdict"]) == (4, "incomplete")
    assert "it exited with 5: all 2 tests were deselected" in answer["reason"]
    assert verify_run(run).holds


def test_a_run_is_signed_as_it_is_closed_and_the_key_is_in_none_of_its_files(tmp_path, write_key):
    private, public = write_key(tmp_path / "key.pem")
    code, answer, run = qualify(tmp_path, SHELL.replace(", needs: [unit]", ""), GOOD, "--sign-key", str(private))
    assert code == 0
    assert Path(answer["signature"]).parent == run / "signatures"
    assert verify_run(run, require_signatures=[public_key(public)]).holds
    secret = b"".join(private.read_bytes().splitlines()[1:-1])
    assert not [path for path in run.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_a_key_that_can_not_sign_stops_a_run_before_it_begins(tmp_path, write_key):
    _, public = write_key(tmp_path / "key.pem")
    code, answer, _ = qualify(tmp_path, SHELL.replace(", needs: [unit]", ""), GOOD, "--sign-key", str(public))
    assert (code, answer["error"]["code"]) == (2, "usage")
    assert not (tmp_path / "runs").exists()


def test_the_page_has_the_groups_with_counts_and_every_skip_with_its_reason(passed):
    _, _, run = passed
    record = load_record(run)
    page = render_page(record, verify_record(record, require_passed=False), made_at=datetime.now(UTC))
    for words in ('id="groups"', "1 passed, 1 skipped", "no GPU here", "no tests, its exit code decides", "none left"):
        assert words in page
    assert 'id="cells"' not in page


def test_the_page_tells_the_tested_source_from_the_tool_and_where_the_packages_are(passed):
    _, _, run = passed
    record = load_record(run)
    cards = {title: dict(facts) for title, facts in environment(record)}
    assert cards["Planned"]["qualification"] == "demo"
    assert cards["Planned"]["groups"] == "2"
    assert not {"cell set", "rounds a candidate"} & cards["Planned"].keys()
    plan = json.loads((run / "plan.json").read_text())
    tested, tool = cards["Tested source"], cards["orchestrate, which tested it"]
    assert (tested["head"], tested["base"], tested["parents"]) == ("not named", "not named", "none")
    assert (tested["tested commit"], tested["tree"]) == (plan["source"]["commit"], plan["source"]["tree"])
    assert tested["files of the commit"] == str(len(plan["qualified"]["files"]))
    assert "did not travel" in tested["working tree"]
    assert tool["commit"] == (plan["tool"]["commit"] or "not known")
    assert tool["its own files pinned"] == str(len(plan["source"]["pins"]))
    assert cards["Software"]["Python"] == platform.python_version()
    assert cards["Software"]["packages"].endswith("in evidence/packages.json")
    assert "process groups" in cards["Used"]
    assert "groups" not in cards["Used"]


def test_a_qualification_speaks_of_groups_and_its_commands_keep_their_quotes(passed):
    _, answer, run = passed
    assert answer["reason"] == "every expected group passed"
    record = load_record(run)
    page = unescape(render_page(record, verify_record(record, require_passed=False), made_at=datetime.now(UTC)))
    assert "Every expected group complete" in page
    assert '<th scope="col">groups said</th>' in page
    assert "bash -c 'echo $ORCHESTRATE_RUN_ID'" in page
    assert "every expected cell" not in page.lower()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--backend", "k8s"], "more than 100 gzipped"),
        (["--backend", "k8s", "--source-claim", "sources"], "names no volume claim"),
        (["--backend", "sky", "--source-claim", "pvc:sources"], "means nothing to the backend sky"),
        (["--backend", "local", "--image", "a"], "means nothing to the backend local"),
    ],
)
def test_what_can_not_travel_is_refused_before_anything_is_made(tmp_path, monkeypatch, options, why):
    monkeypatch.setattr(qualification, "MAX_SOURCE_BYTES", 100)
    repository = new_repository(tmp_path, UNIT, GOOD)
    arguments = ["--repo", str(repository), "--runs-dir", str(tmp_path / "runs"), *options]
    with pytest.raises(UsageError, match=why):
        qualifying.command.main(args=arguments, standalone_mode=False)
    assert not (tmp_path / "runs").exists()


def test_what_the_archive_leaves_out_is_named_before_anything_runs(tmp_path, capsys):
    repository = new_repository(tmp_path, UNIT, GOOD)
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{'a' * 40},sub")
    git(repository, "commit", "-q", "-m", "a submodule")
    with pytest.raises(UsageError):
        qualifying.command.main(args=["--repo", str(repository), "--image", "a"], standalone_mode=False)
    assert "the archive of the commit leaves out what no group will see: 1 file: sub" in capsys.readouterr().err
