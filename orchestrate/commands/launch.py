"""`orchestrate launch`: run a cell set from plan to closed, verified receipts."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import orchestrate
from orchestrate.backends.catalogue import PROVIDERS
from orchestrate.backends.local_node import INSTALL_HARNESS, harness_parent
from orchestrate.capacity.report import annotation, as_json, as_text
from orchestrate.cells.cell_set import Selection
from orchestrate.cells.manifest import load_manifest
from orchestrate.commands.corpus_choice import ChosenCorpus, choose_corpus
from orchestrate.commands.duration import DURATION
from orchestrate.commands.provider_options import places_of, provider_options, settings_of
from orchestrate.commands.provider_values import Needs
from orchestrate.commands.resuming import chosen_resumption, refuse_beside_resume
from orchestrate.commands.run_dir import RUNS_DIR_OPTION
from orchestrate.commands.saying import say
from orchestrate.commands.selection import SCHEDULE_OPTION, cell_selection_options, check_race, selected
from orchestrate.commands.signing import SIGN_KEY_OPTION, check_sign_key, sign_run
from orchestrate.errors import NotRunError, OrchestrateError, RunsDirError, UnsatisfiableError
from orchestrate.lifecycle.closure import Closed
from orchestrate.lifecycle.corpora import corpora_of
from orchestrate.lifecycle.launching import Launch, Launched, Place
from orchestrate.lifecycle.payload import CellsPayload
from orchestrate.lifecycle.resuming import Resume
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.qualify.overview import GroupRow, group_row, groups_as_json
from orchestrate.report.console import CellLine, ConsoleProgress, RunSummary
from orchestrate.user import default_owner, home_folder
from orchestrate.verdict import Verdict

__all__ = ["command", "launched_as_json", "place_here", "run_and_tell"]


@click.command("launch")
@click.option("--backend", type=click.Choice(list(PROVIDERS)), default="local", show_default=True,
              help="Who gives the GPUs: this machine, SkyPilot, or a Kubernetes cluster.")  # fmt: skip
@cell_selection_options
@click.option("--repeat", type=click.IntRange(1, 1000), envvar="REPEAT", default=8, show_default=True, metavar="N",
              help="Measured rounds of each candidate.")  # fmt: skip
@SCHEDULE_OPTION
@click.option("--deadline", type=DURATION, metavar="DURATION",
              help="The whole run, teardown included, is over by then.  [default: 30m; sky, k8s: 4h]")  # fmt: skip
@click.option("--corpus", envvar="CORPUS", metavar="PATH|pvc:CLAIM/PATH|URI",
              help="The private corpus: a file here (local, sky), on a claim (k8s), in a bucket (sky).")  # fmt: skip
@click.option(
    "--corpus-sha256", envvar="CORPUS_SHA256", metavar="SHA256", help="The digest that the private corpus must have."
)
@click.option("--max-gpu-hours", type=click.FloatRange(min=0), metavar="HOURS",
              help="Refuse a run that may take more.")  # fmt: skip
@click.option("--owner", envvar="ORCHESTRATE_OWNER", default=default_owner, show_default="user@host",
              help="The owner that every resource of the run names.")  # fmt: skip
@click.option("--wait", type=click.FloatRange(min=0, max=10080), metavar="MINUTES", default=0.0,
              help="Ask again for so long where nothing is free.  [default: ask once]")  # fmt: skip
@click.option("--resume", metavar="RUN",
              help="Measure what is missing in a closed run, as a further attempt of its plan.")  # fmt: skip
@provider_options
@SIGN_KEY_OPTION
@RUNS_DIR_OPTION
@click.option(
    "--json", "json_wanted", is_flag=True, help="One JSON object on standard output, also when the run fails."
)
def command(
    backend: str,
    cell_set: str | None,
    groups: str | None,
    repeat: int,
    schedule: str,
    deadline: int | None,
    corpus: str | None,
    corpus_sha256: str | None,
    max_gpu_hours: float | None,
    owner: str,
    wait: float,
    resume: str | None,
    sign_key: str | None,
    runs_dir: Path,
    *,
    json_wanted: bool,
    **given: Any,
) -> int:
    """Run the selected cells, bring home receipts, give everything back, and prove it.

    Without options: cell set `smoke` on this machine. The exit code is the verdict's. Ctrl-C ends the run with its
    teardown; a second one does not skip it.

    \b
    Example:
      orchestrate launch
      orchestrate launch --cell-set text --groups 1,4 --repeat 4 --deadline 20m
      orchestrate launch --json | jq -r .verdict
      orchestrate launch --resume latest
      orchestrate launch --backend sky --infra slurm/CLUSTER --cell-set ellavox --corpus PATH --corpus-sha256 SHA256
      orchestrate launch --backend sky --any-of k8s/CONTEXT,slurm/CLUSTER --cell-set main --wait 30
      orchestrate launch --backend k8s --namespace TEAM --cell-set main --image NAME@sha256:DIGEST --deadline 2h
    """
    check_sign_key(sign_key)
    progress = ConsoleProgress(sys.stderr)
    if resume is not None:
        refuse_beside_resume(click.get_current_context())
        chosen_run = chosen_resumption(resume, runs_dir, corpus, corpus_sha256)
        return run_and_tell(
            lambda: Resume(
                run=chosen_run.run,
                place=place_here(runs_dir),
                narrator=progress,
                deadline_s=None if deadline is None else float(deadline),
                corpus=chosen_run.corpus,
                wait_s=wait * 60,
                max_gpu_hours=max_gpu_hours,
            ),
            chosen_run.expected,
            progress,
            sign_key,
            json_wanted=json_wanted,
        )
    check_race(schedule, repeat)
    selection = selected(cell_set, groups, default="smoke")
    deadline_s = PROVIDERS[backend].default_deadline_s if deadline is None else deadline
    chosen = _corpus(backend, selection, corpus, corpus_sha256)
    settings = settings_of(backend, given, Needs.of_cells(selection), deadline_s, chosen.settings)
    places = places_of(backend, given)
    return run_and_tell(
        lambda: Launch(
            runs=CellsPayload(selection, load_manifest(), repeat, schedule, corpora_of(selection.cells, chosen.corpus)),
            deadline_s=float(deadline_s),
            owner=owner,
            place=place_here(runs_dir),
            narrator=progress,
            backend=backend,
            settings=settings,
            places=places,
            wait_s=wait * 60,
            corpus=chosen.corpus,
            max_gpu_hours=max_gpu_hours,
        ),
        len(selection.cells),
        progress,
        sign_key,
        json_wanted=json_wanted,
    )


def run_and_tell(
    prepare: Callable[[], Launch | Resume],
    expected: int,
    progress: ConsoleProgress,
    sign_key: str | None,
    *,
    json_wanted: bool,
) -> int:
    """Run it, sign its closure where a key is named, tell what came of it, and return the exit code.

    A pass that could not be signed as it was asked for is no success: the receipts stand, and the exit code says 4.
    """
    try:
        launched = prepare().start()
    except (NotRunError, UnsatisfiableError) as error:
        if json_wanted:
            say(json.dumps(_refused_as_json(error, expected), sort_keys=True))
        say(f"error: {error.cause}\nremedy: {error.remedy}", err=True)
        return error.exit_code
    finally:
        progress.close()
    signature, problem = _signed(launched, sign_key)
    if json_wanted:
        answer = launched_as_json(launched, expected)
        if problem is not None and answer["exit_code"] == 0:
            answer |= {"exit_code": Verdict.INCOMPLETE.exit_code, "reason": problem}
        say(json.dumps(answer | {"signature": signature}, sort_keys=True))
    if launched.run is None or launched.closed is None:
        say(f"stopped by {launched.stopped_by} before anything was made", err=True)
        return Verdict.CANCELLED.exit_code
    progress.verdict(summary_of(launched.run, launched.closed))
    _tell_refusal(launched.closed)
    if launched.closed.remedy:
        say(f"remedy: {launched.closed.remedy}", err=True)
    if problem is not None:
        say(f"error: not signed: {problem}", err=True)
    return exit_code_of(launched.closed) or (Verdict.INCOMPLETE.exit_code if problem else 0)


def _signed(launched: Launched, sign_key: str | None) -> tuple[str | None, str | None]:
    """The envelope over the new closure, and why there is none where one was asked for."""
    if sign_key is None or launched.run is None or launched.closed is None:
        return None, None
    try:
        return os.fspath(sign_run(launched.run.path, sign_key)[0]), None
    except OrchestrateError as error:
        return None, f"{error.cause}; remedy: {error.remedy}"


def _tell_refusal(closed: Closed) -> None:
    if closed.refused is None:
        return
    for line in as_text(closed.refused):
        say(line, err=True)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        say(annotation(closed.refused), err=True)


def launched_as_json(launched: Launched, expected: int) -> dict[str, Any]:
    """The answer of `launch --json` and `qualify --json`, which alone has `groups`."""
    run, plan, closed = launched.run, launched.plan, launched.closed
    if run is None or plan is None or closed is None:
        reason = f"stopped by {launched.stopped_by} before anything was made"
        return _nothing_as_json(Verdict.CANCELLED, reason, expected)
    verdict = verdict_of(closed)
    return {
        "run_id": run.run_id,
        "verdict": verdict.label,
        "test_verdict": closed.decision.test_verdict.label,
        "exit_code": verdict.exit_code,
        "reason": closed.decision.reason,
        "run_dir": str(run.path),
        "closure_sha256": closed.closure_sha256,
        "device": closed.collected.device,
        "backend": plan.backend,
        "accelerators": plan.accelerators,
        "cells": {"expected": expected, "complete": closed.collected.complete},
        **({"groups": groups_as_json(_group_rows(closed))} if closed.collected.groups else {}),
        "capacity": None if closed.refused is None else as_json(closed.refused),
        "teardown": {"confirmed": closed.confirmed, "remaining": [*closed.remaining, *closed.unknown]},
    }


def verdict_of(closed: Closed) -> Verdict:
    """The verdict; a run whose closure could not be written lacks a receipt and is `incomplete` at best."""
    verdict = closed.decision.verdict
    if closed.closure_sha256 is None and verdict is not Verdict.TEARDOWN_UNCONFIRMED:
        return Verdict.INCOMPLETE
    return verdict


def exit_code_of(closed: Closed) -> int:
    """The exit code of the verdict."""
    return verdict_of(closed).exit_code


def summary_of(run: RunDirectory, closed: Closed) -> RunSummary:
    """What is printed for people at the end."""
    cells = [
        CellLine(judged.key, word.status, judged.complete, judged.rows, judged.missing)
        for judged, word in zip(closed.collected.cells, closed.collected.words, strict=False)
    ]
    return RunSummary(
        run_id=run.run_id,
        verdict=verdict_of(closed),
        test_verdict=closed.decision.test_verdict,
        reason=closed.decision.reason,
        run_dir=run.path,
        closure_sha256=closed.closure_sha256,
        device=closed.collected.device,
        cells=cells,
        teardown_confirmed=closed.confirmed,
        looks=[look.at for look in closed.census.looks] if closed.census else (),
        remaining=closed.remaining,
        unknown=closed.unknown,
        groups=_group_rows(closed),
    )


def _group_rows(closed: Closed) -> list[GroupRow]:
    """The groups of a qualification; none where cells ran."""
    groups = closed.collected.groups
    return [] if groups is None else [group_row(each) for each in groups.judgements]


def _corpus(backend: str, selection: Selection, location: str | None, sha256: str | None) -> ChosenCorpus:
    """The private corpus. One that only the environment names is of no matter to cells that read none."""
    source = click.get_current_context().get_parameter_source("corpus")
    is_needed = None in corpora_of(selection.cells, None).values()
    if not is_needed and source is not click.core.ParameterSource.COMMANDLINE:
        return ChosenCorpus(None)
    return choose_corpus(backend, location, sha256)


def place_here(runs_dir: Path) -> Place:
    """Where a run is launched from: this machine, this environment. `UnsatisfiableError` without a harness."""
    parent = harness_parent()
    if parent is None:
        raise UnsatisfiableError("the package `harness` is not installed here", remedy=INSTALL_HARNESS)
    return Place(
        runs_dir=runs_dir.absolute(),
        temp_base=Path(tempfile.gettempdir()),
        home=home_folder(),
        harness=parent / "harness",
        build_record=Path(orchestrate.__file__).parent / "_source.json",
        environ=dict(os.environ),
    )


def _refused_as_json(error: OrchestrateError, expected: int) -> dict[str, Any]:
    verdict = Verdict.NOT_RUN if isinstance(error, NotRunError) else Verdict.UNSATISFIABLE
    kind = "runs-dir" if isinstance(error, RunsDirError) else verdict.label
    return {**_nothing_as_json(verdict, error.cause, expected), "error": {**error.as_json(), "code": kind}}


def _nothing_as_json(verdict: Verdict, reason: str, expected: int) -> dict[str, Any]:
    return {
        "run_id": None,
        "verdict": verdict.label,
        "test_verdict": verdict.label,
        "exit_code": verdict.exit_code,
        "reason": reason,
        "run_dir": None,
        "closure_sha256": None,
        "device": "none",
        "cells": {"expected": expected, "complete": 0},
        "teardown": {"confirmed": True, "remaining": []},
    }
