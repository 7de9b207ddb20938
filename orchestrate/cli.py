"""The `orchestrate` command. Subcommands are imported when they are used, so that `--help` answers in a blink."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from typing import NoReturn

import click

from orchestrate import __version__
from orchestrate.errors import OrchestrateError

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS = {
    "audit": "Find every resource of ours that is still alive, and reap it.",
    "calibrate": "Fit a cost table to measured cells, certify it, check a certificate.",
    "cells": "List, show and check the cell sets.",
    "doctor": "Say what this machine can run and what is missing.",
    "equivalence": "Say whether evidence of one source supports another.",
    "gate": "The steps of a GitHub workflow that ends in one required check.",
    "launch": "Run a cell set from plan to closed, verified receipts.",
    "qualify": "Run the command groups of a repository at one commit, with receipts.",
    "render": "Render SkyPilot tasks and Kubernetes Jobs.",
    "report": "Write a run as one self-contained HTML page.",
    "review": "Say something of a closed run, by name: a second audit, a hold, a review.",
    "sign": "Sign the closure of a run with a key of yours.",
    "status": "Show runs, where they are and what they found.",
    "teardown": "Give back everything a run may own, and prove it.",
    "trace": "Record what the ranks of a job do, and find where they part.",
    "verify": "Check the receipts of a run, offline.",
}
"""Subcommand -> its one line in `orchestrate --help`. The module `orchestrate.commands.<name>` has the rest."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"orchestrate.commands.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="orchestrate")
def cli() -> None:
    """Qualify distributed GPU training code on 4x H200, and prove what happened.

    \b
    Example:
      orchestrate launch --cell-set smoke
    """


def main() -> NoReturn:
    """Run the command line. What a subcommand returns is the exit code, from the table in `orchestrate/verdict.py`."""
    _open_standard_streams()
    try:
        code = _run()
    except KeyboardInterrupt:
        code = _aborted()
    except OSError as error:
        code = _unwritten(error)
    except Exception as error:  # noqa: BLE001  # an exit code of the table, never Python's own 1, which reads as `failed`
        code = _broken(error)
    sys.exit(code)


def _open_standard_streams() -> None:
    """Put the null device where a standard stream is closed: no file of ours may come to lie on its descriptor."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def _run() -> int:
    try:
        result = cli.main(prog_name="orchestrate", standalone_mode=False)
    except OrchestrateError as error:
        return _report(error)
    except click.ClickException as error:
        _print_json({"code": "usage", "cause": error.format_message(), "remedy": _HELP, "exit_code": error.exit_code})
        error.show()
        return error.exit_code
    except click.Abort:
        return _aborted()
    except SystemExit as stop:
        if stop.code == 1:  # click's own answer to a reader that left
            return _unwritten(BrokenPipeError())
        raise
    return result if isinstance(result, int) else 0


_HELP = "`orchestrate COMMAND --help` has all options and an example"


def _report(error: OrchestrateError) -> int:
    _print_json(error.as_json())
    click.echo(f"error: {error.cause}\nremedy: {error.remedy}", err=True)
    return error.exit_code


def _aborted() -> int:
    """A signal came while the command was still getting ready: nothing was made."""
    reason = "stopped by SIGINT before anything was made"
    if sys.argv[1:2] == ["launch"]:
        nothing = {
            "run_id": None, "verdict": "cancelled", "test_verdict": "cancelled", "reason": reason, "run_dir": None,
            "closure_sha256": None, "device": "none", "cells": {"expected": None, "complete": 0},
            "teardown": {"confirmed": True, "remaining": []}, "exit_code": 130,
        }  # fmt: skip
    else:
        nothing = {"exit_code": 130}
    _print_json({"code": "cancelled", "cause": reason, "remedy": "run it again", "exit_code": 130}, **nothing)
    click.echo("aborted", err=True)
    return 130


def _broken(error: Exception) -> int:
    """A fault of this program: said in one line, below the trace that whoever mends it needs."""
    import traceback  # noqa: PLC0415  # only where it is needed

    code = 5  # infrastructure; the table is not imported for `--help`
    cause = f"a fault of orchestrate itself: {type(error).__name__}: {error}"
    remedy = "report it with the lines above; `orchestrate status` and `orchestrate audit` tell what is left"
    _print_json({"code": "internal", "cause": cause, "remedy": remedy, "exit_code": code})
    traceback.print_exception(error)
    click.echo(f"error: {cause}\nremedy: {remedy}", err=True)
    return code


def _print_json(error: dict[str, object], **beside: object) -> None:
    """The error as the one JSON object of the answer, where one was asked for."""
    if "--json" in sys.argv[1:]:
        import json  # noqa: PLC0415  # a tenth of the time of `--help`, which needs none of it

        click.echo(json.dumps({**beside, "error": error}, sort_keys=True))


def _unwritten(error: OSError) -> int:
    """Say that an answer could not be written, unless its reader left, who wants to hear nothing; the exit code."""
    # What is still buffered can not be written either, and the interpreter would try at its end.
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        where = f"{error.filename}: " if error.filename is not None else ""
        click.echo(f"error: {where}{error.strerror or error}\nremedy: make room or rights there", err=True)
    return 5  # infrastructure: an answer that could not be given says nothing about what was tested
