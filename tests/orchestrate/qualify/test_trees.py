"""Files of revisions and folders, from a real repository."""

import os
import subprocess

import pytest

from orchestrate.errors import UsageError
from orchestrate.qualify.trees import read_folder, read_revision


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit; `commit(path=text, ...)` makes another and returns its hash."""
    home = tmp_path / "repo"
    home.mkdir()

    def git(*arguments):
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        env |= {"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        answer = subprocess.run(
            ["git", *who, *arguments], cwd=home, env=env, capture_output=True, text=True, check=True
        )
        return answer.stdout.strip()

    def commit(**files):
        for path, data in files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_bytes(data if isinstance(data, bytes) else data.encode())
        git("add", "-A")
        git("commit", "-qm", "more", "--allow-empty")
        return git("rev-parse", "HEAD")

    git("init", "-q", "-b", "main")
    return home, commit, git


def test_a_revision_is_its_blobs_whatever_attributes_say(repository):
    home, commit, git = repository
    sha = commit(**{".gitattributes": "a.txt export-ignore\n*.py text eol=crlf\n", "a.txt": "a", "b.py": "x = 1\n"})
    commit(**{"b.py": "x = 2\n"})
    found = read_revision(home, sha, os.environ)
    assert (found.commit, found.tree) == (sha, git("rev-parse", f"{sha}^{{tree}}"))
    assert {path: file.data for path, file in found.files.items()} == {
        ".gitattributes": b"a.txt export-ignore\n*.py text eol=crlf\n", "a.txt": b"a", "b.py": b"x = 1\n",
    }  # fmt: skip


def test_kinds_and_odd_names_and_empty_files_are_told_apart(repository):
    home, commit, git = repository
    (home / "run").write_text("#!/bin/sh\n")
    (home / "run").chmod(0o755)
    (home / "link").symlink_to("run")
    commit(**{"a\tb\nc": b"\0\n\0", "empty": ""})
    git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    git("commit", "-qm", "submodule")
    files = read_revision(home, "main", os.environ).files
    kinds = {path: file.kind for path, file in files.items()}
    assert kinds == {"run": "executable", "link": "link", "a\tb\nc": "file", "empty": "file", "sub": "submodule"}
    assert files["link"].data == b"run"
    assert files["a\tb\nc"].data == b"\0\n\0"
    on_disk = read_folder(home).files
    assert on_disk == {path: file for path, file in files.items() if path != "sub"}


@pytest.mark.parametrize("name", ["unheard", "--all", "-h", "main:b.py", "main..main", "", "HEAD^{tree}"])
def test_what_is_no_commit_is_refused(repository, name):
    home, commit, _ = repository
    commit(**{"b.py": ""})
    with pytest.raises(UsageError, match="neither a folder nor a commit"):
        read_revision(home, name, os.environ)


def test_a_variable_of_git_does_not_lead_elsewhere(repository, tmp_path):
    home, commit, _ = repository
    sha = commit(**{"b.py": "x = 1\n"})
    found = read_revision(home, "main", os.environ | {"GIT_DIR": str(tmp_path / "other")})
    assert found.commit == sha


def test_a_folder_that_is_no_repository_is_said(tmp_path):
    with pytest.raises(UsageError):
        read_revision(tmp_path, "main", os.environ)


def test_caches_are_left_out_and_links_to_folders_are_not_followed(tmp_path):
    (tmp_path / "a" / "__pycache__").mkdir(parents=True)
    (tmp_path / "a" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (tmp_path / "a" / "b.py").write_text("x = 1\n")
    (tmp_path / "round").symlink_to(tmp_path)
    found = read_folder(tmp_path).files
    assert sorted(found) == ["a/b.py", "round"]
    assert found["round"].kind == "link"


def test_what_is_neither_a_file_nor_a_link_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a link"):
        read_folder(tmp_path)
