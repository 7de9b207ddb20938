"""`orchestrate trace`: what every rank did, collective by collective. Subcommands are imported when they are used."""

from __future__ import annotations

import importlib

import click

__all__ = ["SUBCOMMANDS", "command"]

SUBCOMMANDS = {
    "diff": "Find the first collective in which the ranks of a job disagree, and say how.",
    "export": "Write traces as flight recorder dumps, or for Perfetto.",
    "run": "Run a command and record the collectives of its ranks.",
}
"""Subcommand -> its one line in `orchestrate trace --help`. The module `orchestrate.commands.trace_<name>` has it."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click fixes the signature
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in SUBCOMMANDS:
            return None
        found: click.Command = importlib.import_module(f"orchestrate.commands.trace_{cmd_name}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup, no_args_is_help=True)
def command() -> None:
    """Record what the ranks of a job do, and find where they part.

    \b
    Example:
      orchestrate trace run --dir traces -- torchrun --nproc-per-node 4 train.py
      orchestrate trace diff traces
    """
