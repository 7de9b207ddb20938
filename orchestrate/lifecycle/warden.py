"""The warden of a run: a second process that ends the run when its launcher is gone, however it went.

It holds the read end of a pipe whose write end only the launcher has. While the launcher lives the warden does nothing
and can not be told to go: SIGINT, SIGTERM and SIGHUP are reported to the launcher and otherwise ignored. At the end
of the pipe without a dismissal it takes the lock of the run, and tears down, looks twice and writes the receipts.

Started by `orchestrate.lifecycle.warden_keeper`, with the run directory, the harness package of the run, and three
descriptors: the leash to the launcher, the pipe for reports, and the write end of the node's lifeline, which it holds
so that the node lives on while either of the two does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrate.errors import OrchestrateError
from orchestrate.lifecycle.recovery import Recovery
from orchestrate.lifecycle.run_directory import RunDirectory, RunLock
from orchestrate.lifecycle.warden_keeper import DISMISSED, READY
from orchestrate.user import home_folder

__all__ = ["LogNarrator", "main", "watch"]

LOCK_WAIT_S = 20.0


class LogNarrator:
    """Tells one line at a time on standard output, which is the warden's log."""

    def stage(self, name: str) -> None:
        """Print the stage."""
        self.note(f"stage {name}")

    def deadline(self, at: datetime) -> None:
        """Nothing: the launcher tells this."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Nothing: the launcher tells this."""

    def note(self, text: str) -> None:
        """Print it."""
        with contextlib.suppress(OSError, ValueError):
            print(text, flush=True)

    def tick(self) -> None:
        """Nothing."""


def main(arguments: list[str]) -> int:
    """Be the warden of one run: `RUN_DIR HARNESS LEASH_FD REPORT_FD LIFELINE_FD`."""
    path, harness, leash, report, _lifeline = arguments
    recovery = Recovery(
        by="warden",
        temp_base=Path(tempfile.gettempdir()),
        environ=dict(os.environ),
        harness=Path(harness),
        home=home_folder(),
        narrator=LogNarrator(),
    )
    watch(RunDirectory(Path(path)), int(leash), int(report), recovery)
    return 0


def watch(run: RunDirectory, leash: int, report: int, recovery: Recovery) -> None:
    """Watch the launcher at the other end of `leash` until it dismisses us or is gone; then end its run."""

    def tell(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # no launcher is left to tell
            os.write(report, f"signal {signal.Signals(number).name}\n".encode())

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, tell)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        os.write(report, READY)
    heard = b""
    while part := os.read(leash, 64):
        heard += part
    if heard == DISMISSED:
        return
    narrator = recovery.narrator
    narrator.note(f"the launcher of {run.run_id} is gone: ending the run")
    try:
        lock = RunLock.take(run, wait_s=LOCK_WAIT_S)
    except OrchestrateError as error:
        narrator.note(error.cause)  # somebody else (an audit) is ending it already
        return
    try:
        recovery.end(run, "the launcher was lost")
    except (OSError, OrchestrateError) as error:
        narrator.note(f"the run could not be closed: {error}")
    finally:
        lock.release()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
