"""The launcher's side of the warden: start it, know when it is lost, start another, send it home."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from orchestrate.backends.process_table import read_process, send_signal
from orchestrate.errors import BackendError
from orchestrate.lifecycle.run_directory import RunDirectory

__all__ = ["DISMISSED", "READY", "WardenKeeper"]

READY = b"ready\n"
"""What the warden reports once it watches; `signal NAME` and a newline when it was signalled."""

DISMISSED = b"done\n"
"""What the launcher sends when the run is closed. The end of the pipe without it means: the launcher is lost."""

LOOK_S = 1.0
"""How often the launcher looks whether its warden was stopped."""

STOPPED = "Tt"
"""The states of a stopped, or traced, process in `/proc/PID/stat`."""


class WritesJournal(Protocol):
    """Writes one record; must not raise."""

    def __call__(self, kind: str, **facts: Any) -> None:
        """Append a record of this kind."""


class WardenKeeper:
    """Keeps one warden alive for one run.

    Args:
        run: the run to watch.
        harness: the harness package that the run is launched with.
        lifeline_fd: the write end of the node's lifeline, which the warden holds as well.
        journal: writes a record.
        spare: told the pid of each warden, so that it is not taken for a member of the run.
        environ: the environment to start it in.
        restarts: how often a lost warden is replaced; somebody who kills more than that means it.
    """

    def __init__(
        self,
        run: RunDirectory,
        harness: Path,
        lifeline_fd: int,
        *,
        journal: WritesJournal,
        spare: Callable[[int], None],
        environ: Mapping[str, str],
        restarts: int = 20,
    ) -> None:
        self._run = run
        self._harness = harness
        self._lifeline_fd = lifeline_fd
        self._journal = journal
        self._spare = spare
        self._environ = environ
        self._restarts_left = restarts
        self._process: subprocess.Popen[bytes] | None = None
        self._leash = -1
        self._report = -1
        self._heard = b""
        self._look_at = 0.0
        self.is_ready = False

    @property
    def pid(self) -> int | None:
        """The pid of the warden that watches now."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start a warden; `BackendError` where that is not possible."""
        self._journal("warden-starting")
        self._run.logs.mkdir(mode=0o700, exist_ok=True)
        watched, self._leash = os.pipe()
        self._report, reports = os.pipe()
        os.set_blocking(self._report, False)
        fds = (watched, reports, self._lifeline_fd)
        arguments = [str(self._run.path), str(self._harness), *map(str, fds)]
        try:
            with (self._run.logs / "warden.log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "orchestrate.lifecycle.warden", *arguments],
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=fds,
                )
        except OSError as error:
            self._forget()
            raise BackendError(
                f"the warden can not be started: {error.strerror}", remedy="see `ulimit -u` and the free memory"
            ) from error
        finally:
            os.close(watched)
            os.close(reports)
        self.is_ready = False
        self._heard = b""
        self._spare(self._process.pid)
        self._journal("warden-started", pid=self._process.pid)

    def fds(self) -> tuple[int, ...]:
        """The descriptors that become readable when `service` has something to do."""
        return () if self._report < 0 else (self._report,)

    def service(self) -> None:
        """Hear what the warden reports; continue it when it was stopped, replace it when it is lost; return at once."""
        if self._report < 0:
            return
        self._continue()
        try:
            heard = os.read(self._report, 4096)
        except BlockingIOError:
            return
        if not heard:
            self._replace()
            return
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            if line + b"\n" == READY:
                self.is_ready = True
            else:
                self._journal("warden-signalled", signal=line.removeprefix(b"signal ").decode("ascii", "replace"))

    def wait_ready(self, wait: Callable[[float], None], *, timeout_s: float, clock: Callable[[], float]) -> None:
        """Return when a warden watches; `BackendError` when none comes up in `timeout_s`."""
        deadline = clock() + timeout_s
        while not self.is_ready:
            if clock() >= deadline or self._process is None:
                raise BackendError(
                    f"no warden came up within {timeout_s:g}s", remedy=f"see {self._run.run_id}/logs/warden.log"
                )
            wait(0.2)

    def dismiss(self, *, patience_s: float = 5.0) -> None:
        """The run is closed: send the warden home, and see it gone."""
        if self._process is None:
            return
        with contextlib.suppress(BrokenPipeError):  # lost in this very moment, with nothing left to guard
            os.write(self._leash, DISMISSED)
        self._close_fds()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _continue(self) -> None:
        """A warden that somebody stopped (SIGSTOP) would not notice that its launcher is gone."""
        now = time.monotonic()
        if self._process is None or now < self._look_at:
            return
        self._look_at = now + LOOK_S
        seen = read_process(self._process.pid)
        if seen is not None and seen.state in STOPPED:
            send_signal(seen.identity, signal.SIGCONT)
            self._journal("warden-continued", pid=self._process.pid)

    def _replace(self) -> None:
        process = self._process
        code = None if process is None else process.wait()
        self._forget()
        self._journal("warden-lost", pid=None if process is None else process.pid, exit_code=code)
        if self._restarts_left <= 0:
            self._journal("note", text="the warden was lost too often and is not replaced any more")
            return
        self._restarts_left -= 1
        try:
            self.start()
        except BackendError as error:
            self._journal("note", text=error.cause)

    def _forget(self) -> None:
        self._close_fds()
        self._process = None
        self.is_ready = False

    def _close_fds(self) -> None:
        for fd in (self._leash, self._report):
            if fd >= 0:
                os.close(fd)
        self._leash = self._report = -1

    def _environment(self) -> dict[str, str]:
        # The warden must import the very package that launched it, from wherever that was imported.
        parent = str(Path(__file__).resolve().parents[2])
        rest = self._environ.get("PYTHONPATH")
        return {**self._environ, "PYTHONPATH": f"{parent}{os.pathsep}{rest}" if rest else parent}


def readable(fds: tuple[int, ...], timeout_s: float) -> tuple[int, ...]:
    """Those of `fds` that can be read or are at their end, waited for at most `timeout_s` seconds."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return tuple(fd for fd, _ in poll.poll(max(0.0, timeout_s) * 1000))
