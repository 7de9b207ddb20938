"""What a workflow hands to `launch`, `qualify` and `audit` as text, read as those commands would read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from orchestrate.backends.catalogue import PROVIDERS
from orchestrate.commands import audit, launch, qualify
from orchestrate.commands.provider_options import places_of
from orchestrate.errors import UsageError
from orchestrate.gate.asked import Look, Target, uncovered

__all__ = ["asked_problems", "file_of_groups", "look_of", "refuse_options", "targets_of"]

LAUNCH_OWN = ("--owner", "--runs-dir", "--json", "--commit", "--head", "--base")
AUDIT_OWN = ("--owner", "--run", "--reap", "--older-than", "--overdue", "--credentials", "--json")


def asked_problems(launched: Sequence[str] | None, looked: Sequence[str] | None) -> tuple[str, ...]:
    """What is wrong with the options of the run and of the look after it; None is not known, and nothing is."""
    problems: list[str] = []
    try:
        targets = () if launched is None else targets_of(launched)
        look = None if looked is None else look_of(looked)
    except UsageError as error:
        return (error.cause,)
    if look is not None:
        problems.extend(uncovered(targets, look))
    return tuple(problems)


def look_of(arguments: Sequence[str]) -> Look:
    """Where `orchestrate audit` with these options looks; `UsageError` where they are none, or name no backend."""
    refuse_options(arguments, AUDIT_OWN)
    values = _values(audit.command, arguments)
    named = set(values["names"])
    if not named:
        raise UsageError("no --backend is named to look at", remedy="give --backend after `--`, as the run had it")
    backends = frozenset(PROVIDERS if audit.ALL in named else named)
    return Look(backends, values["namespace"], values["infra"])


def file_of_groups(launched: Sequence[str] | None) -> str | None:
    """The file of groups that a qualification with these options reads; None where they are none of one."""
    if launched is None:
        return "qualification.yaml"
    if tuple(launched[:1]) != ("qualify",):
        return None
    return str(_values(qualify.command, launched[1:])["name"])


def refuse_options(arguments: Sequence[str], ours: Sequence[str]) -> None:
    """`UsageError` where one of `ours` is among the options: those the gate gives itself."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if name in ours:
            raise UsageError(f"{name} is the gate's own", remedy="leave it out after `--`")


def targets_of(arguments: Sequence[str]) -> tuple[Target, ...]:
    """Where a launch, or after `qualify` a qualification, with these options goes; `UsageError` where they are none."""
    refuse_options(arguments, LAUNCH_OWN)
    is_qualify = tuple(arguments[:1]) == ("qualify",)
    values = _values(qualify.command if is_qualify else launch.command, arguments[1:] if is_qualify else arguments)
    places = places_of(values["backend"], values)
    return tuple(
        Target(values["backend"], place.get("namespace", values["namespace"]), place.get("infra", values["infra"]))
        for place in places
    )


def _values(command: click.Command, arguments: Sequence[str]) -> dict[str, Any]:
    if not {"-h", "--help"}.isdisjoint(arguments):
        raise _wrong(command, "they only ask for help")
    try:
        return command.make_context(str(command.name), list(arguments)).params
    except click.ClickException as error:
        raise _wrong(command, error.format_message()) from error


def _wrong(command: click.Command, why: str) -> UsageError:
    return UsageError(f"the options for `orchestrate {command.name}`: {why}", remedy="correct them in the workflow")
