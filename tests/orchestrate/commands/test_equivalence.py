"""`orchestrate equivalence` on real revisions and folders."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def repository(tmp_path):
    """A repository of four commits, tagged: a program, other blanks in it, another program, other tests."""
    home = tmp_path / "repo"
    (home / "pkg").mkdir(parents=True)
    (home / "tests").mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run([*git, "init", "-q"], cwd=home, check=True, env=env)
    files = [("one", "pkg/a.py", "x = 1\n"), ("blanks", "pkg/a.py", "x  =  1\n"), ("changed", "pkg/a.py", "x = 2\n"),
             ("later", "tests/test_a.py", "def test(): ...\n")]  # fmt: skip
    for tag, path, text in files:
        (home / path).write_text(text)
        for arguments in (["add", "-A"], ["commit", "-qm", tag], ["tag", tag]):
            subprocess.run([*git, *arguments], cwd=home, check=True, env=env)
    return home


def equivalence(home, *arguments):
    answer = subprocess.run(
        [sys.executable, "-m", "orchestrate", "equivalence", *arguments, "--json"],
        cwd=home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in answer.stderr, answer.stderr
    return answer.returncode, json.loads(answer.stdout)


def test_evidence_of_a_program_supports_the_same_with_other_blanks_and_keeps_its_commit(repository):
    code, answer = equivalence(repository, "one", "blanks")
    assert (code, answer["answer"], answer["relation"]) == (0, "supports", "formatting-only")
    old, new = answer["old"]["commit"], answer["new"]["commit"]
    assert answer["cited_as"].startswith(f"a receipt of {old} keeps that commit, and is cited for {new} by")
    assert answer["differences"] == [{"path": "pkg/a.py", "relation": "formatting-only", "why": "the same tokens"}]


def test_another_program_is_not_supported_and_nothing_is_cited(repository):
    code, answer = equivalence(repository, "blanks", "changed")
    assert (code, answer["answer"], answer["cited_as"]) == (1, "does-not-support", None)
    assert answer["reasons"] == ["pkg/a.py: the program differs"]


def test_other_tests_support_measured_cells_alone(repository):
    assert equivalence(repository, "changed", "later")[0] == 1
    assert equivalence(repository, "changed", "later", "--evidence", "cells")[0] == 0


def test_a_folder_is_compared_as_it_lies_there(repository):
    assert equivalence(repository, "later", "./")[0] == 0
    (repository / "pkg" / "a.py").write_text("eval('2')\n")
    assert equivalence(repository, "later", "./")[0] == 1
    (repository / "pkg" / "b.json").write_text("{}")
    (repository / "pkg" / "a.py").write_text("x = 2  # eval\n")
    (repository / "pkg" / "__init__.py").write_text("")
    code, answer = equivalence(repository, "later", "./")
    assert code == 1, "a package that is new is a change"
    assert [each["path"] for each in answer["differences"]] == ["pkg/__init__.py", "pkg/a.py", "pkg/b.json"]


def test_a_folder_is_not_called_a_commit(repository):
    _, answer = equivalence(repository, "./", "later")
    assert answer["cited_as"].startswith("evidence of the folder . stays evidence of it, and supports")
    _, answer = equivalence(repository, "later", "./")
    assert "is cited for the folder . by" in answer["cited_as"]


@pytest.fixture
def run_of_one(repository, tmp_path, run_builder):
    """A passed run of the commit `one`."""
    ask = ["git", "rev-parse", "one", "one^{tree}"]
    commit, tree = subprocess.run(ask, cwd=repository, capture_output=True, text=True, check=True).stdout.split()

    def plan(whole):
        return {**whole, "source": {**whole["source"], "commit": commit, "tree": tree, "dirty": False}}

    return run_builder(tmp_path / "r20260102-030405-0a1b2c", plan_hook=plan).build()


def test_a_carried_receipt_keeps_the_commit_that_ran_and_says_by_what_it_is_cited(repository, run_of_one, tmp_path):
    written = tmp_path / "carried.json"
    code, answer = equivalence(repository, "one", "blanks", "--run", str(run_of_one), "-o", str(written))
    assert (code, answer["evidence"]) == (0, "cells")
    carried = json.loads(written.read_text())
    assert carried == answer["carried"]
    said = carried["predicate"]
    assert said["ran"] == {name: answer["old"][name] for name in ("commit", "tree")}
    assert said["cited_for"] == {name: answer["new"][name] for name in ("commit", "tree")}
    assert (said["relation"], said["verdict"]) == ("formatting-only", "passed")
    (closure,) = carried["subject"]
    assert (run_of_one / closure["name"]).is_file()


@pytest.mark.parametrize(
    ("old", "new", "options", "said"),
    [
        ("blanks", "one", (), "nothing is carried from"),
        ("one", "blanks", ("--evidence", "tests"), "the run is of cells"),
        ("one", "./", (), "a folder is named"),
    ],
)
def test_nothing_is_carried_from_another_commit_as_another_kind_or_to_a_folder(
    repository, run_of_one, tmp_path, old, new, options, said
):
    written = tmp_path / "carried.json"
    code, answer = equivalence(repository, old, new, "--run", str(run_of_one), "-o", str(written), *options)
    assert code in {1, 2}
    assert said in answer["error"]["cause"]
    assert not written.exists()


def test_nothing_is_carried_to_another_program_or_from_receipts_that_do_not_hold(repository, run_of_one, tmp_path):
    written = tmp_path / "carried.json"
    code, answer = equivalence(repository, "one", "changed", "--run", str(run_of_one), "-o", str(written))
    assert (code, answer["carried"]) == (1, None)
    rows = next(run_of_one.rglob("rows.jsonl"))
    rows.write_bytes(rows.read_bytes() + b"{}")
    code, answer = equivalence(repository, "one", "blanks", "--run", str(run_of_one), "-o", str(written))
    assert code == 1
    assert "nothing is carried from" in answer["error"]["cause"]
    assert not written.exists()


def test_dynamic_code_is_exit_code_4(repository):
    (repository / "pkg" / "dynamic.py").write_text("exec(input())\n")
    subprocess.run(["git", "add", "-A"], cwd=repository, check=True)
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "more"], cwd=repository, check=True
    )
    (repository / "pkg" / "a.py").write_text("x = 2  # a remark\n")
    code, answer = equivalence(repository, "HEAD", "./")
    assert (code, answer["answer"]) == (4, "can-not-tell")
    assert answer["reasons"] == ["dynamic code: pkg/dynamic.py line 1: exec"]


def test_a_name_that_is_nothing_or_two_things_is_a_usage_error(repository):
    code, answer = equivalence(repository, "unheard", "one")
    assert code == 2
    assert "neither a folder nor a commit" in answer["error"]["cause"]
    (repository / "one").mkdir()
    code, answer = equivalence(repository, "one", "blanks")
    assert code == 2
    assert answer["error"]["remedy"].startswith("write ./one for the folder")
