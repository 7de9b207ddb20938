"""A rank that is forked from torchrun instead of being started anew.

Python, torch and dynamo take about four seconds of processor time to import, in every rank of every cell. torchrun
imports them once and forks its ranks: each is still a process of its own, in a session of its own, that lives for one
cell. Only for ranks on a CPU: CUDA does not survive a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from subprocess import TimeoutExpired
from typing import IO, NoReturn

__all__ = ["ForkedRank", "preload"]

_PR_SET_NAME = 15
_POLL_S = 0.05


def preload() -> None:
    """Import in this process what every rank needs, and take it out of the garbage collector's sight."""
    gc.disable()
    importlib.import_module("harness.cell_run")
    gc.enable()
    gc.freeze()  # a collection in a rank would otherwise touch, and so copy, every page of it


class ForkedRank:
    """What torchrun asks of a `subprocess.Popen`, over a forked child.

    Args:
        work: what the child does; returns its exit code.
        env: the child's environment.
        stdout: where the child's standard output goes, None for this process's.
        stderr: the same for its standard error.
    """

    def __init__(
        self, work: Callable[[], int], env: Mapping[str, str], stdout: IO[str] | None, stderr: IO[str] | None
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_rank(work, env, stdout, stderr)

    def poll(self) -> int | None:
        """The exit code, negative for a signal, None while the child runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; `subprocess.TimeoutExpired` when it does not come within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutExpired(f"forked rank {self.pid}", timeout or 0.0)
            time.sleep(_POLL_S)
        return code


def _be_rank(
    work: Callable[[], int], env: Mapping[str, str], stdout: IO[str] | None, stderr: IO[str] | None
) -> NoReturn:
    """The child's whole life; never returns: nothing of torchrun's own end (its handlers, its exit hooks) is ours."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream, fd in ((stdout, 1), (stderr, 2)):
            if stream is not None:
                os.dup2(stream.fileno(), fd)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - torchrun's had its own buffer
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(env)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"rank{env.get('RANK', '')}".encode(), 0, 0, 0)
        code = work()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001  # as the interpreter does at the end of a program
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
