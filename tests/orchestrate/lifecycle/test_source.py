"""Source pins and the commit: from git, from a wheel's record, or honestly unknown."""

import json
import os
import shutil
import subprocess

import pytest

from orchestrate.lifecycle.source import changed_files, pin_files, read_source

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "top" / "harness"
    (folder / "sets").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "sets" / "smoke.json").write_text("{}")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("")
    return folder


def git(folder, *arguments):
    names = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", "-C", str(folder), *names, *arguments], check=True, capture_output=True)


def test_every_file_but_compiled_ones_is_pinned(package):
    assert list(pin_files(package)) == ["harness/__init__.py", "harness/sets/smoke.json"]


def test_an_edited_a_new_and_a_removed_file_show(package):
    before = pin_files(package)
    (package / "__init__.py").write_text("x = 1")
    (package / "new.py").write_text("")
    (package / "sets" / "smoke.json").unlink()
    after = pin_files(package)
    assert changed_files(before, after) == ("harness/__init__.py", "harness/new.py", "harness/sets/smoke.json")
    assert changed_files(before, before) == ()


@needs_git
def test_commit_tree_and_dirty_come_from_git(package):
    git(package.parent, "init", "-q")
    git(package.parent, "add", "harness/__init__.py", "harness/sets")
    git(package.parent, "commit", "-qm", "x")
    (package.parent / ".gitignore").write_text("__pycache__\n.gitignore\n")
    source = read_source(package, package / "none", {**os.environ, "GIT_DIR": "/nonexistent"})
    assert (len(source.commit), len(source.tree), source.dirty) == (40, 40, False)
    (package / "new.py").write_text("")
    assert read_source(package, package / "none", os.environ).dirty is True


@needs_git
def test_an_installation_inside_somebody_elses_repository_is_not_that_repositorys_source(package):
    git(package.parent, "init", "-q")
    git(package.parent, "commit", "-qm", "x", "--allow-empty")
    source = read_source(package, package / "none", os.environ)
    assert (source.commit, source.dirty, source.tree) == (None, None, None)


def test_without_git_the_wheels_record_tells(package, tmp_path):
    record = tmp_path / "_source.json"
    record.write_text(json.dumps({"commit": "c" * 40, "tree": "t" * 40, "dirty": False}))
    source = read_source(package, record, {"PATH": ""})
    assert (source.commit, source.dirty) == ("c" * 40, False)
    record.write_text("not json")
    assert read_source(package, record, {"PATH": ""}).commit is None
