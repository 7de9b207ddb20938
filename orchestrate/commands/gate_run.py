"""`orchestrate gate run` and `reconcile`: a launch under the workflow's own name, and the look from a fresh machine."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from orchestrate.clock import to_wire, utc_now
from orchestrate.commands import audit, launch, qualify
from orchestrate.commands.gate_asked import LAUNCH_OWN, look_of, refuse_options, targets_of
from orchestrate.commands.gate_step import RECORDS_OPTION, answer, workflow_run_here
from orchestrate.commands.provider_options import CREDENTIALS_OPTION
from orchestrate.commands.saying import say
from orchestrate.errors import OrchestrateError, UsageError
from orchestrate.gate.change import owner_of
from orchestrate.gate.conclusion import Classified
from orchestrate.gate.credentials import placed
from orchestrate.gate.records import (
    ADMITTED,
    CLASSIFIED,
    LAUNCHED,
    RECONCILED,
    as_classified,
    read_record,
    write_record,
)
from orchestrate.markup import brief
from orchestrate.verdict import Verdict

__all__ = ["reconcile", "run"]

GAP_S = 5.0
"""Between the two looks of a reconciliation."""


@click.command("run", context_settings={"ignore_unknown_options": True})
@RECORDS_OPTION
@click.option("--runs-dir", type=click.Path(path_type=Path), required=True, metavar="DIR",
              help="Where the run's directory is kept: upload it, whatever happens.")  # fmt: skip
@CREDENTIALS_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.argument("arguments", nargs=-1, metavar="-- [LAUNCH OPTIONS]")
def run(records: Path, runs_dir: Path, credentials: Path | None, arguments: tuple[str, ...], *, as_json: bool) -> int:
    """Launch, under an owner that names this attempt of this workflow run: by that a fresh machine finds what is left.

    What follows `--` are options of `orchestrate launch`; where the first word is `qualify`, those of `orchestrate
    qualify`, which then tests exactly the commit that was classified, as of its head and base. It needs an admission
    (`gate admit`) that let the change through. Outputs: verdict, run_id, closure. The exit code is that of the verdict.
    A cancelled step ends with the teardown, or leaves it to `gate reconcile`.

    \b
    Example:
      orchestrate gate run --records gate --runs-dir runs -- --backend k8s --cell-set main
    """
    refuse_options(arguments, LAUNCH_OWN)
    admitted = read_record(records / ADMITTED, "admitted")
    if admitted is None or admitted.get("admitted") is not True:
        why = "there is no admission" if admitted is None else str(admitted.get("reason"))
        say(f"not run: {brief(why)}", err=True)
        return Verdict.NOT_RUN.exit_code
    owner = owner_of(*workflow_run_here())
    try:
        remote = any(target.backend != "local" for target in targets_of(arguments))
        with placed(credentials, os.environ, remote=remote):
            found = _launched(records, arguments, owner, runs_dir)
    except UsageError as error:
        _write_launched(records, Verdict.INCOMPLETE.label, error.cause, owner)
        raise
    verdict = str(found.get("verdict") or Verdict.INFRASTRUCTURE.label)
    _write_launched(records, verdict, str(found.get("reason") or found.get("error") or ""), owner)
    outputs = {
        "verdict": verdict,
        "run_id": str(found.get("run_id") or ""),
        "closure": str(found.get("closure_sha256") or ""),
    }
    answer(outputs, found if as_json else None)
    return Verdict.from_label(verdict).exit_code


def _launched(records: Path, arguments: tuple[str, ...], owner: str, runs_dir: Path) -> dict[str, Any]:
    classified = as_classified(read_record(records / CLASSIFIED, "classified"))
    if classified is not None and classified.launch not in {None, arguments}:
        raise UsageError(
            "these are not the options that the change was classified with", remedy="give both steps the same"
        )
    ours = ["--owner", owner, "--runs-dir", str(runs_dir), "--json"]
    if arguments[:1] == ("qualify",):
        return _called(qualify.command, [*arguments[1:], *_tested(classified, records), *ours])
    return _called(launch.command, [*arguments, *ours])


def _write_launched(records: Path, verdict: str, reason: str, owner: str) -> None:
    write_record(records / LAUNCHED, "launched", {"verdict": verdict, "reason": reason, "owner": owner})


@click.command("reconcile", context_settings={"ignore_unknown_options": True})
@RECORDS_OPTION
@CREDENTIALS_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.argument("arguments", nargs=-1, metavar="-- [AUDIT OPTIONS]")
def reconcile(records: Path, credentials: Path | None, arguments: tuple[str, ...], *, as_json: bool) -> int:
    """From a fresh machine: take away whatever this workflow run still owns, of any attempt so far, and look again.

    It needs the provider's credentials and nothing else, no artifact and no local state: everything names its owner.
    What follows `--` are options of `orchestrate audit` that say where to look. The exit code is 0 where two looks in
    a row found nothing, 70 otherwise.

    \b
    Example:
      orchestrate gate reconcile --records gate -- --backend k8s --namespace TEAM
    """
    look = look_of(arguments)
    repository, run_number, attempt = workflow_run_here()
    # An attempt before this one has ended: what it owns has no owner any more. GitHub keeps at most 50.
    owners = [owner_of(repository, run_number, each) for each in range(max(1, attempt - 49), attempt + 1)]
    with placed(credentials, os.environ, remote=look.backends != {"local"}):
        looks = _looks(arguments, owners)
    last = looks[-1]
    owner = owners[-1]
    record = {
        "owner": owner,
        "look": look.as_json(),
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


def _looks(arguments: tuple[str, ...], owners: Sequence[str]) -> list[dict[str, Any]]:
    """Look, taking away what is found, until two looks in a row found nothing; three times at most."""
    looks: list[dict[str, Any]] = []
    while len(looks) < 3:
        if looks:
            time.sleep(GAP_S)
        each = [_called(audit.command, [*arguments, "--owner", owner, "--reap", "--json"]) for owner in owners]
        looks.append(each[0] if len(each) == 1 else _together(each))
        if len(looks) > 1 and all(_is_clean(look) for look in looks[-2:]):
            break
    return looks


def _together(looks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One look from those at each owner."""
    return {
        "exit_code": next((look.get("exit_code") for look in looks if look.get("exit_code") != 0), 0),
        "findings": [finding for look in looks for finding in _findings(look)],
        "unknown": list(dict.fromkeys(text for look in looks for text in (*look.get("unknown", ()), *_failure(look)))),
    }


def _tested(classified: Classified | None, records: Path) -> list[str]:
    """The options of `qualify` that name the classified change."""
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
    except UsageError:
        raise
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
