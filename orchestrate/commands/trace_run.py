"""`orchestrate trace run`: any command whose ranks then record their collectives."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from orchestrate.backends.local_node import INSTALL_HARNESS, harness_parent
from orchestrate.clock import utc_now
from orchestrate.commands.duration import DURATION
from orchestrate.commands.saying import say
from orchestrate.errors import BackendError, UnsatisfiableError, UsageError
from orchestrate.verdict import USAGE_EXIT_CODE

__all__ = ["command"]

# Not PYTHONPATH: that would be the job's too.
_LAUNCHER = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from harness.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@click.command("run")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the traces go; must be new or empty [default: trace-<time>, here].",
)
@click.option("--observe-only", is_flag=True, help="Write the stacks of a job that hangs, but do not end it.")
@click.option("--load-budget", type=DURATION, help="Time without a sign of life while loading [default: 30m].")
@click.option("--compile-budget", type=DURATION, help="The same while a rank compiles [default: 30m].")
@click.option("--step-budget", type=DURATION, help="The same between collectives [default: 5m].")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the summary as one JSON object; the job's output goes to stderr."
)
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    *,
    directory: Path | None,
    observe_only: bool,
    load_budget: int | None,
    compile_budget: int | None,
    step_budget: int | None,
    as_json: bool,
    words: tuple[str, ...],
) -> int:
    """Run COMMAND and record every collective and point-to-point operation of its ranks.

    COMMAND is any command that starts Python processes: torchrun, a launcher of your own, one rank. Its code is not
    changed. Nothing is recorded of Pythons that are started with -I, -E or -S. When the job gets on no more, the stacks
    of all ranks are written and the job is ended: exit code 3. Else the exit code is that of COMMAND.

    \b
    Example:
      orchestrate trace run -- torchrun --nproc-per-node 4 train.py
      orchestrate trace run --dir traces --observe-only --json -- python -m my.launcher
    """
    parent = harness_parent()
    if parent is None:
        raise UnsatisfiableError("the package `harness` is not installed here", remedy=INSTALL_HARNESS)
    where = directory or Path(f"trace-{utc_now():%Y%m%dT%H%M%SZ}")
    if where.exists() and any(where.iterdir()):
        raise UsageError(f"{where} is not empty", remedy="name a new folder: traces of two runs would mix")
    with tempfile.TemporaryFile() as summary:  # without a name: a SIGKILL leaves nothing
        arguments = ["--dir", str(where), "--summary", f"/proc/self/fd/{summary.fileno()}"]
        arguments += ["--observe-only"] if observe_only else []
        for name, budget in (("load", load_budget), ("compile", compile_budget), ("step", step_budget)):
            arguments += [] if budget is None else [f"--{name}-budget", str(budget)]
        code = _run([*arguments, "--", *words], parent, summary.fileno(), as_json=as_json)
        told = summary.read()
        answer: dict[str, Any] | None = json.loads(told) if told else None
    if answer is None and code == USAGE_EXIT_CODE:
        raise UsageError(f"{words[0]} could not be started", remedy="see the message above")
    if answer is None:
        raise BackendError(f"the runner of the job failed with exit code {code}", remedy="see the message above")
    if as_json:
        click.echo(json.dumps(answer, sort_keys=True))
    else:
        say(_told(answer), err=True)
    return int(answer["exit_code"])


def _run(arguments: list[str], parent: Path, summary_fd: int, *, as_json: bool) -> int:
    """The harness's own runner does the work: it holds what knows the format. It passes signals on to the job."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _LAUNCHER, str(parent), "trace_run", *arguments],
        stdout=2 if as_json else None,
        pass_fds=(summary_fd,),
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # a terminal sends it to the runner too, which ends when the job does
            continue


def _told(answer: dict[str, Any]) -> str:
    ranks, records = answer["ranks"], answer["records"]
    lines = [f"{_counted(records, 'record')} of {_counted(len(ranks), 'rank')} in {answer['directory']}"]
    lines += [f"hung: {stall}" for stall in answer["stalls"]]
    return "\n".join(lines)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
