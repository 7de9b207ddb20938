"""The options that select cells, shared by every command that takes a cell set."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import click

from orchestrate.cells.cell_set import Selection, select
from orchestrate.commands.saying import say
from orchestrate.errors import UsageError
from orchestrate.receipts.racing import MOST_ROUNDS
from orchestrate.render.request import SCHEDULES

__all__ = ["SCHEDULE_OPTION", "cell_selection_options", "check_race", "selected"]

_Function = TypeVar("_Function", bound=Callable[..., object])

SCHEDULE_OPTION = click.option(
    "--schedule",
    type=click.Choice(SCHEDULES),
    envvar="SCHEDULE",
    default=SCHEDULES[0],
    show_default=True,
    help="racing stops measuring a layout once it is decided that another one is faster.",
)


def check_race(schedule: str, repeat: int) -> None:
    """Refuse a race that nobody would judge, before anything is paid for.

    Raises:
        UsageError: it has too many rounds.
    """
    if schedule == "racing" and repeat > MOST_ROUNDS:
        raise UsageError(f"a race of {repeat} rounds", remedy=f"give --repeat at most {MOST_ROUNDS} for a race")


def cell_selection_options(function: _Function) -> _Function:
    """Add `--cell-set` and `--groups`; the function gets `cell_set` and `groups`, each a text or None."""
    groups = click.option(
        "--groups",
        multiple=True,
        callback=_once,
        metavar="GROUPS",
        help='Groups of the corpus cells, "1,4" or "1 4"; cells without a group stay. Wins over the set\'s variable.',
    )
    cell_set = click.option(
        "--cell-set", multiple=True, callback=_once, metavar="SET", help="The cell set. Wins over CELL_SET."
    )
    return cell_set(groups(function))


def selected(cell_set: str | None, groups: str | None, *, default: str | None = None) -> Selection:
    """What options and environment select; says on stderr what a person must know of how that came about.

    `default` is the set where neither option nor `CELL_SET` names one.

    Raises:
        SelectionError: as `orchestrate.cells.cell_set.select` has it.
    """
    selection = select(cell_set, groups, os.environ, default=default)
    for note in selection.notes:
        say(f"note: {note}", err=True)
    for cell, reason in selection.excluded:
        say(f"note: {cell.key} is excluded: {reason}", err=True)
    return selection


def _once(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> str | None:
    if len(values) > 1:
        raise click.BadParameter(f"given {len(values)} times; name it once", ctx=context, param=parameter)
    return values[0] if values else None
