"""What a command puts aside for a while has no name: a SIGKILL leaves nothing that nobody would ever remove."""

import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from orchestrate.commands import qualify as qualifying
from orchestrate.errors import UsageError

FILE = "schema: orchestrate.qualification/1\nname: a\ndevice: cpu\ngroups:\n  - {name: a, command: 'true'}\n"
HELD_GIT = """#!/bin/sh
case " $* " in
*" archive "*) {git} "$@" && echo $$ > {pid}.new && mv {pid}.new {pid} && exec sleep 60 ;;
*) exec {git} "$@" ;;
esac
"""


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "qualification.yaml").write_text(FILE)
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
        subprocess.run(git, cwd=folder, env=env, check=True)
    return folder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_a_qualify_that_is_killed_while_it_archives_leaves_nothing(repository, temporary, tmp_path, monkeypatch):
    real, folder, pid = subprocess.check_output(["which", "git"], text=True).strip(), tmp_path / "bin", tmp_path / "pid"
    folder.mkdir()
    (folder / "git").write_text(HELD_GIT.format(git=real, pid=pid))
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    command = [sys.executable, "-m", "orchestrate", "qualify", "--repo", repository, "--runs-dir", tmp_path / "runs"]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 60
        while not pid.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        held = list(temporary.iterdir())
    finally:
        process.kill()
        process.wait()
        if pid.exists():
            os.kill(int(pid.read_text()), signal.SIGKILL)
    assert (held, list(temporary.iterdir())) == ([], [])


def test_the_source_of_a_qualification_has_no_name_while_it_runs(repository, temporary, tmp_path, monkeypatch):
    seen = []

    def look(launch, *_given, **_options):
        payload = launch().runs
        (tmp_path / "run").mkdir()
        payload.write_files(tmp_path / "run", "r1")
        seen.append((list(temporary.iterdir()), (tmp_path / "run/payload/source.tar").stat().st_size))
        return 0

    monkeypatch.setattr(qualifying, "run_and_tell", look)
    arguments = ["--repo", str(repository), "--runs-dir", str(tmp_path / "runs")]
    assert qualifying.command.main(args=arguments, standalone_mode=False) == 0
    ((names, size),) = seen
    assert names == []
    assert size > len(FILE)


def test_the_groups_have_no_name_while_their_size_is_looked_at(repository, temporary, tmp_path, monkeypatch):
    class Files(qualifying.QualificationFiles):
        def chunks(self):
            seen = list(temporary.iterdir()), len(self.groups_json) > 100, super().chunks()[0][:2]
            raise UsageError(repr(seen), remedy="")

    monkeypatch.setattr(qualifying, "QualificationFiles", Files)
    arguments = ["--repo", str(repository), "--runs-dir", str(tmp_path / "runs"), "--backend", "k8s"]
    with pytest.raises(UsageError, match=r"\[\], True, b'\\x1f\\x8b'"):
        qualifying.command.main(args=arguments, standalone_mode=False)


def test_the_summary_of_a_traced_job_has_no_name_while_it_runs(temporary, tmp_path):
    job = [sys.executable, "-c", "import os; print(os.listdir(os.environ['TMPDIR']))"]
    command = [sys.executable, "-m", "orchestrate", "trace", "run", "--dir", tmp_path / "traces", "--", *job]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
