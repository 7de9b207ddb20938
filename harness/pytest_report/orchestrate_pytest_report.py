"""A pytest plugin that writes what pytest knows about each test, as JSON lines, while the tests run.

It is put on the path alone, by its folder, and asks pytest for nothing but its hooks: the tests that it reports on may
be of any repository and run under any pytest from 7 on. The file is named by ORCHESTRATE_PYTEST_REPORT; without that it
does nothing. Lines are appended whole, so that a killed run leaves what it reported.

A process that runs pytest several times, in threads at once too, reports each run. What such a process starts, and a
pytest within a test of it, is no test of the group; one that a test runs in another thread looks like a further run.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from typing import Any

SCHEMA = "harness.pytest-report/1"
_MAX_TEXT = 2000


class Report:
    """Appends one line for each thing that pytest tells."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._session = secrets.token_hex(4)  # a group may start pytest several times

    def pytest_sessionstart(self, session: Any) -> None:
        """The run begins."""
        import pytest  # noqa: PLC0415 - the plugin is imported by pytest itself

        self._write("start", pytest=pytest.__version__, arguments=len(session.config.args))

    def pytest_deselected(self, items: list[Any]) -> None:
        """Tests that were chosen away, by name."""
        for item in items:
            self._write("deselected", test=item.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        """A module that could not be collected, or was skipped as a whole."""
        if report.outcome == "failed":
            self._write("collect-error", test=report.nodeid, reason=_failure(report.longrepr))
        elif report.outcome == "skipped":
            self._write("collect-skipped", test=report.nodeid, reason=_skip_reason(report.longrepr))

    def pytest_collection_finish(self, session: Any) -> None:
        """How many tests are left to run."""
        self._write("collected", count=len(session.items))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One phase of one test: set-up, call or tear-down."""
        fields = {"test": report.nodeid, "when": report.when, "outcome": report.outcome}
        fields["duration_s"] = round(report.duration, 4)
        if hasattr(report, "wasxfail"):
            fields |= {"xfail": True, "reason": str(report.wasxfail)}
        elif report.outcome == "skipped":
            fields["reason"] = _skip_reason(report.longrepr)
        elif report.outcome in {"failed", "rerun"}:
            fields["reason"] = _failure(report.longrepr)
        self._write("test", **fields)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """The run ended by itself, with this status."""
        self._write("finish", exit_status=int(exitstatus))

    def close(self) -> None:
        """Nothing more is told."""
        os.close(self._fd)

    def _write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"schema": SCHEMA, "session": self._session, "kind": kind, **fields})
        os.write(self._fd, line.encode("utf-8", "backslashreplace") + b"\n")


def pytest_configure(config: Any) -> None:
    """Report, where a file is named, and only from the process that decides: a worker of xdist reports to it."""
    path = os.environ.get(_FILE)
    if path:
        _FILES[os.getpid()] = path  # first: another thread may begin now
        os.environ.pop(_FILE, None)  # a pytest that a test starts is no test of the group
    path = _FILES.get(os.getpid())  # none in a process that was forked
    if path and threading.get_ident() not in _RUNNING and not hasattr(config, "workerinput"):
        report = Report(path)
        _RUNNING[threading.get_ident()] = config, report
        config.pluginmanager.register(report, "orchestrate-report")


def pytest_unconfigure(config: Any) -> None:
    """The next pytest of this thread is none within this one."""
    running, report = _RUNNING.get(threading.get_ident(), (None, None))
    if report is not None and running is config:
        del _RUNNING[threading.get_ident()]
        report.close()


_FILE = "ORCHESTRATE_PYTEST_REPORT"

_FILES: dict[int, str] = {}
"""Process id -> the report that its runs of pytest are told in."""

_RUNNING: dict[int, tuple[Any, Report]] = {}
"""Thread -> the run that reports now, by its configuration: pytest keeps no other place from one run to the next."""


def _skip_reason(longrepr: Any) -> str:
    if isinstance(longrepr, tuple) and len(longrepr) == 3:
        return str(longrepr[2]).removeprefix("Skipped: ")[:_MAX_TEXT]
    return str(longrepr)[:_MAX_TEXT]


def _failure(longrepr: Any) -> str:
    """What was raised, which begins with its type; else the end of what pytest shows, which says it there."""
    crash = getattr(longrepr, "reprcrash", None)
    return str(crash.message)[:_MAX_TEXT] if crash is not None else str(longrepr)[-_MAX_TEXT:]
