"""The `orchestrate` command. Subcommands are imported when they are used, so that `--help` answers in a blink."""

from __future__ import annotations

import importlib
import sys
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
    "launch": "Run a cell set from plan to closed, verified receipts.",
    "render": "Render SkyPilot tasks and Kubernetes Jobs.",
    "report": "Write a run as one self-contained HTML page.",
    "status": "Show runs, where they are and what they found.",
    "teardown": "Give back everything a run may own, and prove it.",
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
    try:
        result = cli.main(prog_name="orchestrate", standalone_mode=False)
    except OrchestrateError as error:
        sys.exit(_report(error))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("aborted", err=True)
        sys.exit(130)
    sys.exit(result if isinstance(result, int) else 0)


def _report(error: OrchestrateError) -> int:
    if "--json" in sys.argv[1:]:
        import json  # noqa: PLC0415  # a tenth of the time of `--help`, which needs none of it

        click.echo(json.dumps({"error": error.as_json()}, sort_keys=True))
    click.echo(f"error: {error.cause}\nremedy: {error.remedy}", err=True)
    return error.exit_code
