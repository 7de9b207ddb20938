"""A user id without a passwd entry and without HOME, as containers run with, is a user like any other."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from orchestrate.commands.recovering import recovery_for
from orchestrate.commands.status import command as status
from orchestrate.errors import UsageError
from orchestrate.user import default_owner, home_folder, user_name


@pytest.fixture
def stranger(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME", "XDG_STATE_HOME", "ORCHESTRATE_RUNS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)


@pytest.mark.usefixtures("stranger")
def test_a_user_without_a_name_owns_by_number():
    assert user_name() == f"uid-{os.getuid()}"
    assert default_owner().startswith(f"uid-{os.getuid()}@")


@pytest.mark.usefixtures("stranger")
def test_a_user_without_a_home_can_recover_runs():
    assert home_folder() is None
    assert recovery_for("audit").home is None


@pytest.mark.usefixtures("stranger")
def test_a_user_without_a_home_is_asked_for_the_runs_folder(tmp_path):
    with pytest.raises(UsageError, match="no home folder") as caught:
        status.main([], standalone_mode=False)
    assert "--runs-dir" in caught.value.remedy
    assert status.main(["--runs-dir", str(tmp_path)], standalone_mode=False) == 0


def test_a_user_with_a_name_and_a_home_has_them(monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("HOME", "/home/ada")
    assert (user_name(), home_folder()) == ("ada", Path("/home/ada"))
