"""`orchestrate audit`: find every resource of ours that is still alive, and reap it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from orchestrate.backends.catalogue import PROVIDERS, BackendPlace, open_surveyor
from orchestrate.backends.configured import why_not_configured
from orchestrate.backends.survey import Surveyor
from orchestrate.clock import utc_now
from orchestrate.commands.duration import DURATION
from orchestrate.commands.provider_options import CREDENTIALS_OPTION
from orchestrate.commands.recovering import recovery_for
from orchestrate.commands.run_dir import RUNS_DIR_OPTION
from orchestrate.commands.saying import say
from orchestrate.errors import BackendError, UnsatisfiableError
from orchestrate.gate.credentials import placed
from orchestrate.lifecycle.audit import AuditPlan, apply, plan_audit
from orchestrate.lifecycle.findings import Action, Filter, Finding
from orchestrate.report.words import clean, duration
from orchestrate.user import home_folder
from orchestrate.verdict import Verdict

__all__ = ["command"]

ALL = "all"


@click.command("audit")
@click.option(
    "--backend",
    "names",
    multiple=True,
    type=click.Choice([*PROVIDERS, ALL]),
    help="Only this backend; may be repeated.  [default: local, and each that is configured here]",
)
@click.option("--infra", metavar="INFRA", help="sky: only this infra, e.g. slurm/cluster.")
@click.option("--context", metavar="NAME", help="k8s: the context of the kubeconfig.")
@click.option("--namespace", metavar="NAME", help="k8s: only this namespace.  [default: all that may be seen]")
@click.option("--run", "run_id", metavar="RUN", help="Only this run; it may be reaped before it expires.")
@click.option("--owner", metavar="OWNER", help="Only this owner's; they may be reaped before they expire.")
@click.option("--older-than", type=DURATION, metavar="DURATION", help="Only what is older.")
@CREDENTIALS_OPTION
@click.option("--overdue", is_flag=True, help="Leave out what is within its time: for a look by the clock.")
@click.option("--reap", is_flag=True, help="End and remove what was found, exactly as listed.")
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    names: tuple[str, ...],
    infra: str | None,
    context: str | None,
    namespace: str | None,
    run_id: str | None,
    owner: str | None,
    older_than: int | None,
    credentials: Path | None,
    runs_dir: Path,
    *,
    overdue: bool,
    reap: bool,
    as_json: bool,
) -> int:
    """List what is still alive of any run: who owns it, since when, and what is to be done about it.

    It needs no local state: processes, folders, Jobs and clusters carry run, owner and expiry themselves, so that any
    machine with the provider's credentials will do. With --reap a run whose owner is gone is closed, and what only its
    marks tell of is ended once it has expired (or when --run or --owner names it). What has a living owner on this
    machine is never touched, and neither is what appeared after the list was made. With --overdue only what should be
    gone by now is a finding: not what has a living owner, or says that it has not expired.

    The exit code is 0 when nothing is there, 1 when something is, 70 when something could not be looked at or
    removed, or when the answer could not be written.

    \b
    Example:
      orchestrate audit
      orchestrate audit --backend k8s --context prod --overdue --reap
      orchestrate audit --owner ada@ws1 --older-than 2h --reap --json
    """
    with placed(credentials, os.environ, remote=set(names) != {"local"}):
        settings = {"infra": infra, "context": context, "namespace": namespace}
        wanted = Filter(run_id, owner, None if older_than is None else float(older_than), overdue)
        return _audit(names, settings, wanted, runs_dir.absolute(), reap=reap, as_json=as_json)


def _audit(
    names: tuple[str, ...],
    settings: Mapping[str, str | None],
    wanted: Filter,
    runs_dir: Path,
    *,
    reap: bool,
    as_json: bool,
) -> int:
    place = BackendPlace(Path(tempfile.gettempdir()), home_folder(), dict(os.environ), runs_dir)
    surveyors, refused, not_looked = _open(names, {key: value for key, value in settings.items() if value}, place)
    local_runs = any(surveyor.name == "local" for surveyor in surveyors)
    recovery = recovery_for("audit")
    plan = plan_audit(surveyors, runs_dir, wanted, utc_now(), local_runs=local_runs, look=recovery.look)
    unknown = (*refused, *plan.unknown)
    told = True
    if not as_json:
        told = _tell(_plan_lines(plan, unknown, not_looked, wanted, reap=reap))
    done: list[Finding] = []
    for finding in apply(plan, recovery) if reap else plan.findings:
        done.append(finding)
        if finding.outcome and not as_json:
            told = _tell([f"{clean(finding.run_id)}: {clean(finding.outcome)}", *_left_lines(finding)]) and told
    code = _exit_code(done, unknown, reaped=reap)
    if as_json:
        told = _tell(
            [json.dumps(_answer(plan, done, unknown, not_looked, wanted.run_id, code, reap=reap), sort_keys=True)]
        )
    return code if told else Verdict.TEARDOWN_UNCONFIRMED.exit_code


def _open(
    names: tuple[str, ...], settings: dict[str, str], place: BackendPlace
) -> tuple[list[Surveyor], list[str], list[str]]:
    """The surveyors to ask, why one that was named can not be asked, and why others are not."""
    asked = tuple(PROVIDERS) if ALL in names else tuple(dict.fromkeys(names))
    surveyors: list[Surveyor] = []
    refused: list[str] = []
    not_looked: list[str] = []
    for name in PROVIDERS:
        if asked and name not in asked:
            not_looked.append(f"{name}: it was not asked for")
            continue
        why = None if asked else why_not_configured(name, place)
        if why is not None:
            not_looked.append(f"{name}: {why}")
            continue
        try:
            surveyors.append(open_surveyor(name, settings, place))
        except BackendError as error:
            missing = isinstance(error, UnsatisfiableError) and not asked
            (not_looked if missing else refused).append(f"{name}: {error.cause}")
    return surveyors, refused, not_looked


def _exit_code(findings: list[Finding], unknown: tuple[str, ...], *, reaped: bool) -> int:
    acted = [finding for finding in findings if reaped and finding.action is not Action.NONE and not finding.live]
    if unknown or any(finding.left for finding in acted):
        return Verdict.TEARDOWN_UNCONFIRMED.exit_code
    return 1 if len(acted) < len(findings) else 0


def _answer(
    plan: AuditPlan,
    done: list[Finding],
    unknown: tuple[str, ...],
    not_looked: list[str],
    run_id: str | None,
    code: int,
    *,
    reap: bool,
) -> dict[str, Any]:
    return {
        "findings": [finding.as_json() for finding in done],
        "reaped": reap,
        "looked": list(plan.looked),
        "not_looked": not_looked,
        "unknown": list(unknown),
        "run_known": None if run_id is None else plan.known_runs > 0,
        "exit_code": code,
    }


def _plan_lines(
    plan: AuditPlan, unknown: tuple[str, ...], not_looked: list[str], wanted: Filter, *, reap: bool
) -> Iterable[str]:
    for finding in plan.findings:
        yield from _finding_lines(finding, reap=reap)
    for text in unknown:
        yield f"{click.style('unknown', fg='yellow')}  {clean(text)}"
    for text in plan.looked:
        yield f"looked at  {clean(text)}"
    for text in not_looked:
        yield f"not looked at  {clean(text)}"
    if wanted.run_id is not None and not plan.known_runs:
        yield f"no run {clean(wanted.run_id)} is known where was looked; a misspelt name looks the same"
    if not plan.findings and not unknown:
        about = "" if wanted.run_id is None else f" of run {clean(wanted.run_id)}"
        about += "" if wanted.owner is None else f" of owner {clean(wanted.owner)}"
        about += " that is overdue" if wanted.overdue else ""
        about += "" if wanted.older_than_s is None else f" older than {duration(wanted.older_than_s)}"
        yield f"clean: nothing of ours{about} is there"


def _finding_lines(finding: Finding, *, reap: bool) -> Iterable[str]:
    word = click.style("live", fg="cyan") if finding.live else click.style("left", fg="red")
    head = f"owner {clean(finding.owner)}, {duration(finding.age_s)} old"
    if finding.gpus:
        head += f", holds {finding.gpus} GPUs (about {finding.gpu_hours or 0:.1f} GPU hours so far)"
    yield f"{word}  {clean(finding.run_id)}  {head}: {clean(finding.because)}"
    for each in finding.held:
        yield f"        {clean(each.resources.backend)} at {clean(each.resources.where)}"
        yield from (f"          {clean(item)}" for item in each.resources.items)
    if finding.action is Action.REMOVE_HUSK:
        yield from (f"        {clean(item)}" for item in finding.items)
    yield from (f"        {clean(item)}" for item in finding.seen)
    does = f"{finding.action}{'' if reap else ' with --reap'}"
    yield f"        -> {'nothing is done' if finding.action is Action.NONE else does}"


def _left_lines(finding: Finding) -> Iterable[str]:
    return (f"        left: {clean(text)}" for text in finding.left if finding.action is not Action.NONE)


def _tell(lines: Iterable[str]) -> bool:
    """Print; False where the answer can not be written. A reader that left early has read what it wanted."""
    try:
        for line in lines:
            click.echo(line)
    except BrokenPipeError:
        say("")  # leads the stream nowhere from here on
    except OSError as error:
        say("")
        say(f"error: the answer can not be written: {error.strerror or error}\nremedy: make room there", err=True)
        return False
    return True
