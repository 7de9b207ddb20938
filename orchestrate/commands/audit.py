"""`orchestrate audit`: find every resource of ours that is still alive, and reap it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from orchestrate.backends.local import LocalBackend
from orchestrate.clock import utc_now
from orchestrate.commands.duration import DURATION
from orchestrate.commands.recovering import recovery_for
from orchestrate.commands.run_dir import RUNS_DIR_OPTION
from orchestrate.lifecycle.audit import Action, AuditPlan, Filter, Finding, apply, plan_audit
from orchestrate.verdict import Verdict

__all__ = ["command"]


@click.command("audit")
@click.option("--backend", type=click.Choice([LocalBackend.name]), default=LocalBackend.name, show_default=True,
              expose_value=False)  # fmt: skip
@click.option("--run", "run_id", metavar="RUN", help="Only this run; it may be reaped before it expires.")
@click.option("--owner", metavar="OWNER", help="Only this owner's; they may be reaped before they expire.")
@click.option("--older-than", type=DURATION, metavar="DURATION", help="Only what is older.")
@click.option("--reap", is_flag=True, help="End and remove what was found, exactly as listed.")
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    run_id: str | None, owner: str | None, older_than: int | None, runs_dir: Path, *, reap: bool, as_json: bool
) -> int:
    """List what is still alive of any run on this machine: who owns it, since when, and what is to be done about it.

    It needs no local state: processes and temporary folders carry run, owner and expiry themselves. With --reap a run
    whose owner is gone is closed, and what only its marks tell of is ended once it has expired (or when --run or
    --owner names it). What has a living owner is never touched.

    The exit code is 0 when nothing is there, 1 when something is, 70 when something could not be looked at or
    removed.

    \b
    Example:
      orchestrate audit
      orchestrate audit --reap
      orchestrate audit --owner ada@ws1 --older-than 2h --reap --json
    """
    wanted = Filter(run_id, owner, None if older_than is None else float(older_than))
    plan = plan_audit(runs_dir.absolute(), Path(tempfile.gettempdir()), wanted, utc_now())
    if not as_json:
        _print_plan(plan, reap=reap)
    done = tuple(apply(plan, recovery_for("audit"))) if reap else plan.findings
    code = _exit_code(done, plan.unknown, reaped=reap)
    if as_json:
        answer = {
            "findings": [finding.as_json() for finding in done],
            "reaped": reap,
            "unknown": list(plan.unknown),
            "exit_code": code,
        }
        click.echo(json.dumps(answer, sort_keys=True))
    elif reap:
        for finding in done:
            if finding.outcome:
                click.echo(f"{finding.run_id}: {finding.outcome}")
    return code


def _exit_code(findings: tuple[Finding, ...], unknown: tuple[str, ...], *, reaped: bool) -> int:
    acted = [finding for finding in findings if reaped and finding.action is not Action.NONE and not finding.live]
    if unknown or any(finding.left for finding in acted):
        return Verdict.TEARDOWN_UNCONFIRMED.exit_code
    return 1 if len(acted) < len(findings) else 0


def _print_plan(plan: AuditPlan, *, reap: bool) -> None:
    for finding in plan.findings:
        word = click.style("live", fg="cyan") if finding.live else click.style("left", fg="red")
        what = (
            "nothing is done" if finding.action is Action.NONE else f"{finding.action}{'' if reap else ' with --reap'}"
        )
        click.echo(f"{word}  {finding.run_id}  owner {finding.owner}, {finding.age_s:.0f}s old: {finding.because}")
        for item in finding.items:
            click.echo(f"        {item}")
        click.echo(f"        -> {what}")
    for text in plan.unknown:
        click.echo(f"{click.style('unknown', fg='yellow')}  {text}")
    if not plan.findings and not plan.unknown:
        click.echo("clean: nothing of ours is there")
