"""The secret of a job: a kubeconfig, or files and variables for another provider's client."""

import json
import os
import stat

import pytest

from orchestrate.errors import UsageError
from orchestrate.gate.credentials import CREDENTIALS_SCHEMA, placed

WHOLE = {
    "schema": CREDENTIALS_SCHEMA,
    "env": {"SKYPILOT_API_SERVER_ENDPOINT": "https://example.org"},
    "files": {"~/.slurm/config": "Host c\n", "~/.ssh/id": "secret"},
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def write(tmp_path, text):
    path = tmp_path / "credentials"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_a_kubeconfig_is_named_where_it_is(tmp_path, home):
    path = write(tmp_path, "apiVersion: v1\nkind: Config\n")
    environ = {"KUBECONFIG": "another"}
    with placed(path, environ, remote=True):
        assert environ == {"KUBECONFIG": str(path)}
    assert environ == {"KUBECONFIG": "another"}
    assert list(home.iterdir()) == []


def test_files_and_variables_are_there_for_their_owner_alone_and_then_gone(tmp_path, home):
    environ = {}
    with placed(write(tmp_path, WHOLE), environ, remote=True):
        assert environ == WHOLE["env"]
        assert (home / ".slurm/config").read_text() == "Host c\n"
        assert stat.S_IMODE((home / ".ssh/id").stat().st_mode) == 0o600
        assert stat.S_IMODE((home / ".ssh").stat().st_mode) == 0o700
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_nothing_is_nothing_to_do_nor_is_an_empty_secret_for_this_machine(tmp_path):
    environ = {}
    with placed(write(tmp_path, ""), environ, remote=False):
        assert environ == {}
    with placed(None, environ, remote=True):
        assert environ == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "{",
        {**WHOLE, "schema": "x"},
        {**WHOLE, "more": 1},
        {**WHOLE, "files": {"/etc/passwd": "x"}},
        {**WHOLE, "files": {"~/../x": "x"}},
        {**WHOLE, "files": {"~/": "x"}},
        {**WHOLE, "files": {"~/x\0y": "x"}},
        {**WHOLE, "files": {"~/x": 1}},
        {**WHOLE, "files": ["~/x"]},
        {**WHOLE, "env": {"A=B": "x"}},
        {**WHOLE, "env": {"A": 1}},
    ],
    ids=str,
)
def test_anything_else_is_an_error_that_quotes_no_word_of_it(tmp_path, home, text):
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught, placed(path, {}, remote=True):
        pass
    assert str(path) in caught.value.cause
    assert "secret" not in caught.value.cause.replace("no secret", "")
    assert list(home.iterdir()) == []


def test_a_file_that_is_there_is_not_replaced_and_nothing_of_the_rest_stays(tmp_path, home):
    (home / ".ssh").mkdir()
    (home / ".ssh/id").write_text("mine")
    with pytest.raises(UsageError, match="can not be written"), placed(write(tmp_path, WHOLE), {}, remote=True):
        pass
    assert (home / ".ssh/id").read_text() == "mine"
    assert not (home / ".slurm/config").exists()


def test_steps_read_the_secret_from_its_file_and_say_when_there_is_none(github, home):
    github.change()
    github.step("classify")
    github.step("admit")
    (github.root / "empty").write_text("")
    given = ("--credentials", str(github.root / "empty"))
    with pytest.raises(UsageError, match="was given no secret"):
        github.step("run", "--runs-dir", str(github.runs), *given, "--", "--backend", "k8s")
    assert "was given no secret" in github.record("launch.json")["reason"]
    with pytest.raises(UsageError, match="was given no secret"):
        github.step("reconcile", *given, "--", "--backend", "all")
    path = write(github.root, WHOLE)
    given = ("--credentials", str(path))
    code, _ = github.step("reconcile", *given, "--", "--backend", "local", "--runs-dir", str(github.root / "none"))
    assert code == 0
    assert "SKYPILOT_API_SERVER_ENDPOINT" not in os.environ
