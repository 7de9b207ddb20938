"""Run directories: whole or not there, locked by the kernel, found by name."""

import re
import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from orchestrate.errors import RunIsLiveError, RunNotFoundError, RunsDirError
from orchestrate.lifecycle.run_directory import (
    RESERVE_BYTES,
    RunDirectory,
    RunLock,
    find_run,
    new_run_id,
    new_token,
    prepare_run,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def make(runs_dir, run_id="r20260102-030405-0a1b2c"):
    return prepare_run(runs_dir, run_id, "t" * 32, b"{}", lambda path: path.write_text(""))


def test_a_run_id_says_when_and_no_two_are_alike():
    names = {new_run_id(NOW) for _ in range(50)}
    assert len(names) > 45
    assert all(re.fullmatch(r"r20260102-030405-[0-9a-f]{6}", name) for name in names)
    assert re.fullmatch(r"[0-9a-f]{32}", new_token())


def test_a_new_run_is_private_and_has_room_for_its_last_records(tmp_path):
    run, lock = make(tmp_path / "runs")
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(run.token.stat().st_mode) == 0o600
    assert run.reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    run.free_reserve()
    run.free_reserve()
    assert not run.reserve.exists()
    lock.release()


def test_a_refused_directory_leaves_nothing_behind(tmp_path):
    def broken(path):
        raise OSError(5, "Input/output error")

    with pytest.raises(RunsDirError, match="Input/output error"):
        prepare_run(tmp_path, "r1", "t", b"{}", broken)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_in_place_of_the_directory_is_refused(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunsDirError):
        make(tmp_path / "file" / below)


def test_the_lock_says_whether_a_run_has_a_living_owner(tmp_path):
    run, lock = make(tmp_path)
    assert run.has_owner()
    with pytest.raises(RunIsLiveError):
        RunLock.take(run, wait_s=0.1)
    lock.release()
    assert not run.has_owner()
    RunLock.take(run, wait_s=0.1).release()


def test_a_child_process_does_not_inherit_the_lock(tmp_path):
    run, lock = make(tmp_path)
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], close_fds=False)
    try:
        lock.release()
        # The kernel lets the parent go on a moment before it closes the descriptors of the exec.
        RunLock.take(run, wait_s=5.0).release()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_asking_for_the_owner_makes_nothing(tmp_path):
    run = RunDirectory(tmp_path)
    assert not run.has_owner()
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_found_by_name_beginning_latest_and_path(tmp_path):
    for run_id in ("r20260101-000000-aaaaaa", "r20260102-000000-bbbbbb"):
        make(tmp_path, run_id)[1].release()
    (tmp_path / ".making-r20990101-000000-cccccc").mkdir()
    assert find_run(tmp_path, "r20260101-000000-aaaaaa").run_id.endswith("aaaaaa")
    assert find_run(tmp_path, "r20260102").run_id.endswith("bbbbbb")
    assert find_run(tmp_path, "latest").run_id.endswith("bbbbbb")
    assert find_run(tmp_path / "none", str(tmp_path / "r20260101-000000-aaaaaa")).run_id.endswith("aaaaaa")
    for name in ("r2026", "", "nothing", ".making-r20990101-000000-cccccc"):
        with pytest.raises(RunNotFoundError):
            find_run(tmp_path, name)


def test_a_copy_under_another_name_is_found_by_its_path_alone(tmp_path):
    run, lock = make(tmp_path)
    lock.release()
    run.plan.write_text(f'{{"run_id": "{run.run_id}"}}')
    shutil.copytree(run.path, tmp_path / "rcopy")
    assert find_run(tmp_path, "latest").path == run.path
    assert find_run(tmp_path, str(tmp_path / "rcopy")).path == tmp_path / "rcopy"
    for name in ("rcopy", "rc"):
        with pytest.raises(RunNotFoundError, match=f"is the run {run.run_id} under another name"):
            find_run(tmp_path, name)
