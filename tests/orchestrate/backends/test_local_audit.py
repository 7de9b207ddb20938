"""What runs left on this machine, found by its own marks and taken exactly as found."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from pathlib import Path

import pytest

from orchestrate.backends import local_audit
from orchestrate.backends.leftovers import MARKER, SHARED_MEMORY
from orchestrate.backends.local_audit import LocalSurveyor


@pytest.fixture
def run_id():
    return f"r20260101-000000-{secrets.token_hex(3)}"


@pytest.fixture
def shared(run_id):
    made = []

    def make(name):
        path = SHARED_MEMORY / name
        path.write_text("x")
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def folder(base, run_id):
    path = base / f"orchestrate-{run_id}-0123abcd"
    path.mkdir()
    mark = {"run_id": run_id, "owner": "ada@ws", "expires_at": "2026-01-01T00:00:00Z", "run_dir": "/nowhere"}
    (path / MARKER).write_text(json.dumps(mark))
    return path


def of(survey, run_id):
    return [owned for owned in survey.owned if owned.run_id == run_id]


def test_shared_memory_of_a_run_that_nothing_else_is_left_of_is_found_and_taken(tmp_path, run_id, shared):
    path = shared(f"orchestrate-{run_id}-buffer")
    surveyor = LocalSurveyor(tmp_path)
    (owned,) = of(surveyor.survey(), run_id)
    assert owned.items == (f"shared-memory {path}",)
    assert (owned.owner, owned.expires_at, owned.run_dir) == ("unknown", "", "")
    assert surveyor.reap(owned) == ()
    assert not path.exists()


def test_a_longer_name_is_not_a_run_id(tmp_path, run_id, shared):
    shared(f"{run_id}0-buffer")
    shared(f"x{run_id}")
    assert of(LocalSurveyor(tmp_path).survey(), run_id) == []


def test_folder_and_shared_memory_of_one_run_are_one_finding(tmp_path, run_id, shared):
    path, file = folder(tmp_path, run_id), shared(f"a_{run_id}")
    surveyor = LocalSurveyor(tmp_path)
    (owned,) = of(surveyor.survey(), run_id)
    assert set(owned.items) == {f"temp-folder {path}", f"shared-memory {file}"}
    json.dumps(owned.handle)
    assert surveyor.reap(owned) == ()
    assert not path.exists()
    assert not file.exists()


def test_a_folder_without_the_mark_or_with_anothers_is_not_ours(tmp_path, run_id):
    path = folder(tmp_path, run_id)
    (path / MARKER).unlink()
    assert of(LocalSurveyor(tmp_path).survey(), run_id) == []
    (tmp_path / "x").mkdir()
    other = folder(tmp_path / "x", run_id)
    mark = json.loads((other / MARKER).read_text())
    (other / MARKER).write_text(json.dumps({**mark, "run_id": "r20260101-000000-ffffff"}))
    assert not [owned for owned in LocalSurveyor(tmp_path / "x").survey().owned if str(other) in str(owned.items)]


def test_a_process_is_found_by_its_marks_and_is_as_old_as_it_is(tmp_path, run_id):
    marks = {"ORCHESTRATE_TOKEN": secrets.token_hex(16), "ORCHESTRATE_RUN_ID": run_id, "ORCHESTRATE_OWNER": "ada@ws"}
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}, start_new_session=True) as child:
        try:
            surveyor = LocalSurveyor(tmp_path)
            deadline = time.monotonic() + 20
            while not (found := of(surveyor.survey(), run_id)) or not found[0].age_s:
                assert time.monotonic() < deadline
            (owned,) = found
            assert owned.items[0].startswith(f"process {child.pid}:")
            assert (owned.owner, owned.expires_at, owned.run_dir) == ("ada@ws", "", "")
            assert surveyor.reap(owned) == ()
            assert not Path(f"/proc/{child.pid}").exists()  # this process is its parent, and has read its end
        finally:
            child.kill()


def test_what_took_the_place_of_a_file_or_folder_is_left_alone(tmp_path, run_id, shared):
    path, file = folder(tmp_path, run_id), shared(f"a_{run_id}")
    surveyor = LocalSurveyor(tmp_path)
    (owned,) = of(surveyor.survey(), run_id)
    (path / MARKER).write_text("{}")
    keep = shared(f"keep_{secrets.token_hex(4)}")  # so that the new file can not get the old one's inode
    file.unlink()
    shared(f"other_{secrets.token_hex(4)}")
    file = shared(file.name)
    left = surveyor.reap(owned)
    assert left == (f"temp-folder {path}: it does not carry the run's mark any more",)
    assert path.exists()
    assert file.exists()
    assert keep.exists()


def test_what_can_not_be_looked_at_is_unknown_and_the_rest_is_looked_at(tmp_path, run_id, monkeypatch, shared):
    shared(f"a_{run_id}")

    def broken():
        raise PermissionError("no /proc here")

    monkeypatch.setattr(local_audit, "processes", broken)
    survey = LocalSurveyor(tmp_path).survey()
    assert survey.unknown == ("processes of this machine can not be looked at: no /proc here",)
    assert of(survey, run_id)
    assert len(survey.looked) == 2


def test_a_folder_of_temporary_folders_that_is_not_there_holds_none(tmp_path):
    survey = LocalSurveyor(tmp_path / "none").survey()
    assert not survey.unknown
    assert Path(tmp_path, "none").exists() is False
