"""`orchestrate status`: runs, where they are and what they found."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import click

from orchestrate.commands.run_dir import RUNS_DIR_OPTION
from orchestrate.errors import JournalDamagedError, RunNotFoundError
from orchestrate.lifecycle.journal import JournalView, read_journal
from orchestrate.lifecycle.run_directory import find_run
from orchestrate.lifecycle.runs import RunHead, RunState, checked_heads, head_of, list_runs
from orchestrate.verdict import Verdict

__all__ = ["command"]


@click.command("status")
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the N newest runs.")
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(run: str | None, limit: int | None, runs_dir: Path, *, as_json: bool) -> int:
    """Show the runs, newest first; or one run with its stages, cells and what to do next.

    A run is `live` (its owner lives), `closed`, `open` (its owner is gone before that: `orchestrate audit --reap`
    closes it), `damaged`, or `misnamed`: a copy, or a run that was renamed, which counts as no run.

    \b
    Example:
      orchestrate status
      orchestrate status latest
      orchestrate status --limit 20 --json
    """
    if run is None:
        heads = list(checked_heads(islice(list_runs(runs_dir), limit)))
        if as_json:
            answer = {"runs_dir": str(runs_dir), "runs": [head.as_json() for head in heads]}
            click.echo(json.dumps(answer, sort_keys=True))
        else:
            _print_list(heads, runs_dir)
        return 0
    directory = find_run(runs_dir, run)
    head = next(checked_heads(filter(None, [head_of(directory)])), None)
    if head is None:
        raise RunNotFoundError(f"{directory.path} is not a run", remedy="`orchestrate status` lists the runs")
    try:
        story = _story(read_journal(directory.journal), is_live=head.state is RunState.LIVE)
    except JournalDamagedError as error:
        story = {"stages": [], "cells": [], "problem": error.cause}
    if as_json:
        click.echo(json.dumps({**head.as_json(), **story}, sort_keys=True))
    else:
        _print_one(head, story)
    return 0


def _story(view: JournalView, *, is_live: bool) -> dict[str, Any]:
    begun = "running" if is_live else "interrupted"  # who is gone runs nothing
    cells: dict[str, dict[str, Any]] = {}
    for record in view.all("cell"):
        key = str(record.facts.get("cell"))
        status = record.facts.get("status") if record.facts.get("event") == "cell-ended" else begun
        cells[key] = {"key": key, "status": status, "reason": record.facts.get("reason") or None, "at": record.at}
    told = [record for record in view.records if "supervisor" in record.facts]
    warden = view.last("warden-started")
    signals = [{"signal": record.facts["signal"], "at": record.at} for record in view.all("signal")]
    return {
        "stages": [{"stage": record.facts["stage"], "at": record.at} for record in view.all("stage")],
        "cells_so_far": list(cells.values()),
        "supervisor": told[-1].facts["supervisor"] if told else None,
        "attempts": [
            {
                "attempt": number,
                "refused": None if (refused := each.last("refused")) is None else refused.facts["verdict"],
            }
            for number, each in view.attempts
        ],
        "warden_pid": None if warden is None else warden.facts["pid"],
        "signals": signals,
        "takeovers": [{"by": record.facts["by"], "at": record.at} for record in view.all("takeover")],
        "notes": [record.facts.get("text") for record in view.all("note")],
        "records": len(view.records),
    }


def _print_list(heads: list[RunHead], runs_dir: Path) -> None:
    if not heads:
        click.echo(f"no runs in {runs_dir}")
        return
    for head in heads:
        word, colour = _word(head)
        cells = head.facts.get("cells") or {}
        count = f"{cells.get('complete')}/{cells.get('expected')}" if cells else "-"
        line = (
            f"{head.run.run_id:26} {click.style(f'{word:21}', fg=colour)} {head.cell_set:10} {count:>7}  {head.owner}"
        )
        click.echo(line)


def _print_one(head: RunHead, story: dict[str, Any]) -> None:
    word, colour = _word(head)
    click.echo(f"run       {head.run.run_id}\nstate     {head.state}")
    click.echo(f"verdict   {click.style(word, fg=colour, bold=True)}  {head.facts.get('reason') or head.problem}")
    click.echo(f"owner     {head.owner}\nset       {head.cell_set}\ncreated   {head.created_at}")
    for entry in story["stages"]:
        click.echo(f"  {entry['at']}  {entry['stage']}")
    for cell in story.get("cells_so_far", ()):
        click.echo(f"  {cell['at']}  {cell['status']:10} {cell['key']}")
    for entry in story.get("signals", ()):
        click.echo(f"  {entry['at']}  {entry['signal']}")
    for text in story.get("notes", ()):
        click.echo(f"  note: {text}")
    click.echo(f"run dir   {head.run.path}")
    step = {
        RunState.LIVE: f"orchestrate teardown {head.run.run_id}   (ends it)",
        RunState.OPEN: f"orchestrate audit --reap --run {head.run.run_id}",
        RunState.CLOSED: f"orchestrate verify {head.run.run_id}",
        RunState.DAMAGED: f"orchestrate audit --run {head.run.run_id}",
        RunState.MISNAMED: f"orchestrate verify {head.run.path}",
    }[head.state]
    click.echo(f"next      {step}")


def _word(head: RunHead) -> tuple[str, str]:
    if head.state is RunState.CLOSED and head.verdict is not None:
        verdict = Verdict.from_label(head.verdict)
        return verdict.label, verdict.colour
    if head.state is RunState.LIVE:
        return f"live: {head.stage}", "cyan"
    return f"{head.state}: {head.stage}" if head.stage else head.state.value, "red"
