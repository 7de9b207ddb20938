"""Asking the living owner of a run to end it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from orchestrate.backends.process_table import ProcessIdentity, boot_id, send_signal
from orchestrate.errors import RunIsLiveError
from orchestrate.lifecycle.journal import read_journal
from orchestrate.lifecycle.run_directory import RunDirectory, RunLock

__all__ = ["ask_to_end"]


def ask_to_end(
    run: RunDirectory,
    *,
    wait_s: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> RunLock:
    """Signal the launcher of a run (SIGTERM, by pid and start time), and return the run's lock once it is free.

    A launcher that is gone already is not signalled: then its warden, or an audit, is ending the run. Raises
    `RunIsLiveError` when the owner still holds the run after `wait_s` seconds.
    """
    deadline = clock() + wait_s
    lock = RunLock.try_take(run)
    if lock is not None:
        return lock
    told = [record for record in read_journal(run.journal).records if "supervisor" in record.facts]
    supervisor = told[-1].facts["supervisor"] if told else {}
    if supervisor.get("boot") == boot_id():
        identity = ProcessIdentity(supervisor["pid"], supervisor["start_ticks"])
        send_signal(identity, signal.SIGTERM)
        send_signal(identity, signal.SIGCONT)  # a launcher that somebody suspended with Ctrl-Z
    while clock() < deadline:
        lock = RunLock.try_take(run)
        if lock is not None:
            return lock
        pause(0.1)
    raise RunIsLiveError(
        f"the owner of run {run.run_id} still holds it after {wait_s:g}s",
        remedy="look at that process: `orchestrate status RUN` names it; it may be stopped or on another machine",
    )
