"""`orchestrate teardown`: give back everything a run may own, and prove it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from orchestrate.commands.duration import DURATION
from orchestrate.commands.recovering import recovery_for
from orchestrate.commands.run_dir import RUNS_DIR_OPTION
from orchestrate.errors import JournalDamagedError, TeardownUnconfirmedError
from orchestrate.lifecycle.owner import ask_to_end
from orchestrate.lifecycle.run_directory import RunDirectory, find_run
from orchestrate.receipts.statement import Receipt
from orchestrate.receipts.store import ReceiptStore
from orchestrate.verdict import Verdict

__all__ = ["command"]


@click.command("teardown")
@click.argument("run", metavar="RUN")
@click.option("--wait", type=DURATION, default="90s", show_default=True, metavar="DURATION",
              help="How long a living owner gets to end its run.")  # fmt: skip
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(run: str, wait: int, runs_dir: Path, *, as_json: bool) -> int:
    """End a run, whatever state it is in, and prove that nothing of it is left.

    A living owner is asked to end its run (SIGTERM) and waited for. A run whose owner is gone is closed. A run that is
    closed is looked at again: where anything differs from what its closure says, it is removed and a further closure
    is written. Doing it twice does no harm. RUN is an id, an unambiguous beginning of one, `latest`, or a path.

    The exit code is 0 when nothing of the run is left, 70 when that could not be proven.

    \b
    Example:
      orchestrate teardown latest
      orchestrate teardown r20260102-030405-0a1b2c --json
    """
    directory = find_run(runs_dir, run)
    recovery = recovery_for("teardown")
    was_live = directory.has_owner()
    try:
        lock = ask_to_end(directory, wait_s=float(wait))
        try:
            closed = recovery.end(directory, "its owner was gone and a person asked for the teardown")
            if closed is None and not was_live:
                recovery.look_again(directory, "a person asked for the teardown again")
        finally:
            lock.release()
    except JournalDamagedError as error:
        raise TeardownUnconfirmedError(
            f"whatever carries the token of run {directory.run_id} was ended and removed, but what it had made is not "
            f"known any more: {error.cause}",
            remedy=error.remedy,
        ) from error
    closure = ReceiptStore(directory.receipts).newest_closure()
    if closure is None:
        raise TeardownUnconfirmedError(
            f"run {directory.run_id} could not be closed", remedy="see the notes above; free the disk and try again"
        )
    answer = _as_json(directory, closure)
    if as_json:
        click.echo(json.dumps(answer, sort_keys=True))
    confirmed = bool(answer["teardown"]["confirmed"])
    click.echo(
        f"{directory.run_id}: {'nothing is left' if confirmed else 'something may be left'}, "
        f"verdict {answer['verdict']} ({answer['reason']})",
        err=as_json,
    )
    return 0 if confirmed else Verdict.TEARDOWN_UNCONFIRMED.exit_code


def _as_json(run: RunDirectory, closure: Receipt) -> dict[str, Any]:
    facts = closure.facts
    teardown = facts.get("teardown", {})
    return {
        "run_id": run.run_id,
        "verdict": facts.get("verdict"),
        "test_verdict": facts.get("test_verdict"),
        "exit_code": facts.get("exit_code"),
        "reason": facts.get("reason"),
        "run_dir": str(run.path),
        "closure_sha256": closure.sha256,
        "device": facts.get("device"),
        "cells": facts.get("cells"),
        "teardown": {
            "confirmed": teardown.get("confirmed") is True,
            "remaining": [*teardown.get("remaining", ()), *teardown.get("unknown", ())],
        },
    }
