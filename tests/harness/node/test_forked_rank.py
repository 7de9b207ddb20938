"""A forked rank answers torchrun as a started one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from harness.forked_rank import ForkedRank


@pytest.fixture
def fork(tmp_path):
    """Forks `work` with its output in a file; returns the rank and that file."""
    ranks = []

    def start(work, env=None):
        path = tmp_path / f"out{len(ranks)}"
        with path.open("w") as out:
            ranks.append(ForkedRank(work, env or {"RANK": "3"}, out, out))
        return ranks[-1], path

    yield start
    for rank in ranks:
        if rank.poll() is None:
            os.kill(rank.pid, signal.SIGKILL)
            rank.wait(10)


def raises(error):
    raise error


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (lambda: 0, 0),
        (lambda: 7, 7),
        (lambda: sys.exit(4), 4),
        (lambda: sys.exit("no"), 1),
        (lambda: raises(RuntimeError("a fault of its own")), 1),
    ],
)
def test_the_exit_code_is_that_of_the_work(fork, work, code):
    rank, _ = fork(work)
    assert rank.wait(20) == code
    assert rank.poll() == rank.returncode == code


def test_a_signal_is_told_as_a_negative_code(fork):
    rank, _ = fork(lambda: time.sleep(60) or 0)
    assert rank.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        rank.wait(0.1)
    os.kill(rank.pid, signal.SIGKILL)
    assert rank.wait(20) == -signal.SIGKILL


def test_what_torchrun_catches_ends_a_rank(fork):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        rank, path = fork(lambda: print("up", flush=True) or time.sleep(60) or 0)
        deadline = time.monotonic() + 20
        while path.read_text() != "up\n":
            assert time.monotonic() < deadline
        os.kill(rank.pid, signal.SIGTERM)
        assert rank.wait(20) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_rank_leads_its_own_session_has_its_own_environment_and_writes_to_its_own_file(fork):
    def work():
        print(os.getsid(0) == os.getpid(), dict(os.environ))
        print("to stderr", file=sys.stderr)
        return 0

    rank, path = fork(work, {"RANK": "2", "ONLY": "this"})
    assert rank.wait(20) == 0
    assert path.read_text().splitlines() in (
        ["True {'RANK': '2', 'ONLY': 'this'}", "to stderr"],
        ["to stderr", "True {'RANK': '2', 'ONLY': 'this'}"],
    )


def test_an_error_of_a_rank_leaves_its_traceback(fork):
    rank, path = fork(lambda: raises(RuntimeError("a fault of its own")))
    assert rank.wait(20) == 1
    assert "RuntimeError: a fault of its own" in path.read_text()
