"""`orchestrate gate run` and `reconcile`: a launch under the workflow's own name, and the look from a fresh machine."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from orchestrate.clock import to_wire, utc_now
from orchestrate.commands import audit, launch, qualify
from orchestrate.commands.gate_step import RECORDS_OPTION, answer, owner_here
from orchestrate.commands.saying import say
from orchestrate.errors import OrchestrateError, UsageError
from orchestrate.gate.records import (
    ADMITTED,
    CLASSIFIED,
    LAUNCHED,
    RECONCILED,
    as_classified,
    read_record,
    write_record,
)
from orchestrate.verdict import Verdict

__all__ = ["reconcile", "run"]

GAP_S = 5.0
"""Between the two looks of a reconciliation."""


@click.command("run", context_settings={"ignore_unknown_options": True})
@RECORDS_OPTION
@click.option("--runs-dir", type=click.Path(path_type=Path), required=True, metavar="DIR",
              help="Where the run's directory is kept: upload it, whatever happens.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.argument("arguments", nargs=-1, metavar="-- [LAUNCH OPTIONS]")
def run(records: Path, runs_dir: Path, arguments: tuple[str, ...], *, as_json: bool) -> int:
    """Launch, under an owner that names this attempt of this workflow run: by that a fresh machine finds what is left.

    What follows `--` are options of `orchestrate launch`; where the first word is `qualify`, those of `orchestrate
    qualify`, which then tests exactly the commit that was classified, as of its head and base. It needs an admission
    (`gate admit`) that let the change through. Outputs: verdict, run_id, closure. The exit code is that of the verdict.
    A cancelled step ends with the teardown, or leaves it to `gate reconcile`.

    \b
    Example:
      orchestrate gate run --records gate --runs-dir runs -- --backend k8s --cell-set main
    """
    _refuse_ours(arguments, ("--owner", "--runs-dir", "--json", "--commit", "--head", "--base"))
    admitted = read_record(records / ADMITTED, "admitted")
    if admitted is None or admitted.get("admitted") is not True:
        why = "there is no admission" if admitted is None else str(admitted.get("reason"))
        say(f"not run: {why}", err=True)
        return Verdict.NOT_RUN.exit_code
    owner = owner_here()
    ours = ["--owner", owner, "--runs-dir", str(runs_dir), "--json"]
    if arguments[:1] == ("qualify",):
        found = _called(qualify.command, [*arguments[1:], *_tested(records), *ours])
    else:
        found = _called(launch.command, [*arguments, *ours])
    verdict = str(found.get("verdict") or Verdict.INFRASTRUCTURE.label)
    reason = str(found.get("reason") or found.get("error") or "")
    write_record(records / LAUNCHED, "launched", {"verdict": verdict, "reason": reason, "owner": owner})
    outputs = {
        "verdict": verdict,
        "run_id": str(found.get("run_id") or ""),
        "closure": str(found.get("closure_sha256") or ""),
    }
    answer(outputs, found if as_json else None)
    return Verdict.from_label(verdict).exit_code


@click.command("reconcile", context_settings={"ignore_unknown_options": True})
@RECORDS_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.argument("arguments", nargs=-1, metavar="-- [AUDIT OPTIONS]")
def reconcile(records: Path, arguments: tuple[str, ...], *, as_json: bool) -> int:
    """From a fresh machine: take away whatever this attempt of this workflow run still owns, and look again.

    It needs the provider's credentials and nothing else, no artifact and no local state: everything names its owner.
    What follows `--` are options of `orchestrate audit` that say where to look. The exit code is 0 where two looks in
    a row found nothing, 70 otherwise.

    \b
    Example:
      orchestrate gate reconcile --records gate -- --backend k8s --namespace TEAM
    """
    _refuse_ours(arguments, ("--owner", "--run", "--reap", "--older-than", "--json"))
    if not any(argument.partition("=")[0] == "--backend" for argument in arguments):
        raise UsageError("no --backend is named to look at", remedy="give --backend after `--`, as the run had it")
    owner = owner_here()
    asked = [*arguments, "--owner", owner, "--reap", "--json"]
    looks: list[dict[str, Any]] = []
    while len(looks) < 3:
        if looks:
            time.sleep(GAP_S)
        looks.append(_called(audit.command, asked))
        if len(looks) > 1 and all(_is_clean(look) for look in looks[-2:]):
            break
    last = looks[-1]
    record = {
        "owner": owner,
        "confirmed": len(looks) > 1 and all(_is_clean(look) for look in looks[-2:]),
        "found": [item for look in looks for finding in _findings(look) for item in finding.get("items", ())],
        "left": [item for finding in _findings(last) for item in finding.get("left", ())],
        "unknown": [str(text) for text in last.get("unknown", ())] + _failure(last),
        "at": to_wire(utc_now()),
    }
    write_record(records / RECONCILED, "reconciled", record)
    answer({"confirmed": str(record["confirmed"]).lower()}, record if as_json else None)
    say(f"{owner}: {'nothing is left' if record['confirmed'] else 'something may be left'}", err=as_json)
    return 0 if record["confirmed"] else Verdict.TEARDOWN_UNCONFIRMED.exit_code


def _tested(records: Path) -> list[str]:
    """The options of `qualify` that name the classified change."""
    classified = as_classified(read_record(records / CLASSIFIED, "classified"))
    if classified is None:
        raise UsageError(f"{records / CLASSIFIED} is no record of `gate classify`", remedy="run that step first")
    change = classified.change
    named = ["--commit", classified.checkout.commit]
    return named if change.base is None else [*named, "--head", change.head, "--base", change.base]


def _called(command: click.Command, arguments: Sequence[str]) -> dict[str, Any]:
    """Another command of ours, in this process so that its signals are ours; its JSON answer.

    An error of its own comes back as `error`, so that nothing is taken for an empty answer.
    """
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            command.main(args=list(arguments), standalone_mode=False)
        found = json.loads(said.getvalue())
    except click.ClickException as error:
        raise UsageError(error.format_message(), remedy="look at the options after `--`") from error
    except OrchestrateError as error:
        return {"error": error.cause, "verdict": _verdict_of(error).label}
    except ValueError:
        return {"error": f"`orchestrate {command.name}` gave no answer"}
    return found if isinstance(found, dict) else {"error": "the answer is no object"}


def _verdict_of(error: OrchestrateError) -> Verdict:
    by_code = {verdict.exit_code: verdict for verdict in Verdict}
    return by_code.get(error.exit_code, Verdict.INFRASTRUCTURE)


def _is_clean(look: dict[str, Any]) -> bool:
    return look.get("exit_code") == 0 and not look.get("findings") and not look.get("unknown")


def _findings(look: dict[str, Any]) -> list[dict[str, Any]]:
    rows = look.get("findings")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _failure(look: dict[str, Any]) -> list[str]:
    return [str(look["error"])] if "error" in look else []


def _refuse_ours(arguments: Sequence[str], ours: Sequence[str]) -> None:
    for argument in arguments:
        name = argument.partition("=")[0]
        if name in ours:
            raise UsageError(f"{name} is the gate's own", remedy="leave it out after `--`")
