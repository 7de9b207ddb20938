"""`launch --resume`: which run, and which options may stand beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from orchestrate.cells.cell import parse_key
from orchestrate.commands.corpus_choice import choose_corpus
from orchestrate.errors import UsageError
from orchestrate.lifecycle.corpora import corpora_of
from orchestrate.lifecycle.plan import Corpus, Plan, read_plan
from orchestrate.lifecycle.run_directory import RunDirectory, find_run

__all__ = ["ChosenRun", "chosen_resumption", "refuse_beside_resume"]

_BESIDE = {"resume", "deadline", "corpus", "corpus_sha256", "wait", "max_gpu_hours", "runs_dir", "json_wanted"}


def refuse_beside_resume(context: click.Context) -> None:
    """`UsageError` where an option was given that would make it another run than the one that is gone on with."""
    for name in context.params:
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name not in _BESIDE:
            raise UsageError(
                f"--{name.replace('_', '-')} stands beside --resume, which goes on with the plan of the run",
                remedy="leave it out, or launch a new run",
            )


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """The run to go on with, how many cells its plan expects, and the private corpus where one lies here."""

    run: RunDirectory
    expected: int
    corpus: Corpus | None


def chosen_resumption(run: str, runs_dir: Path, corpus: str | None, corpus_sha256: str | None) -> ChosenRun:
    """The run that `run` names.

    Raises `RunNotFoundError` without one, `UsageError` for a wrong or missing corpus, and for a qualification.
    """
    directory = find_run(runs_dir, run)
    plan = read_plan(directory)
    if plan.tree.get("payload") == "groups":
        raise UsageError(
            f"run {plan.run_id} is a qualification, and none is gone on with: its groups are evidence of one run",
            remedy=f"`orchestrate qualify --commit {plan.tree['source']['commit']}` makes a run of its own",
        )
    return ChosenRun(directory, len(plan.cells), _corpus(plan, corpus, corpus_sha256))


def _corpus(plan: Plan, location: str | None, sha256: str | None) -> Corpus | None:
    """The private corpus, where the cells read one that lies on this machine: where that is, no plan says."""
    needed = corpora_of([parse_key(key) for key in plan.cells], None)
    private = {each["name"]: each["sha256"] for each in plan.tree["corpora"] if needed.get(each["name"], "") is None}
    if not private or "corpus" in plan.settings:
        return None
    pinned = next(iter(private.values()))
    if pinned is not None and location is None:
        raise UsageError("the cells read a private corpus, and no plan says where it lies", remedy="give --corpus PATH")
    return choose_corpus(plan.backend, location, sha256 or pinned).corpus
