"""What the steps of the gate have in common: their options, GitHub's files, and how they answer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from orchestrate.commands.saying import say
from orchestrate.errors import UsageError
from orchestrate.gate.change import Checkout
from orchestrate.gate.github_files import append_outputs

__all__ = [
    "POLICY_OPTION",
    "RECORDS_OPTION",
    "answer",
    "checkout_here",
    "git",
    "workflow_run_here",
]

RECORDS_OPTION = click.option(
    "--records",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder that the steps share.",
)
POLICY_OPTION = click.option(
    "--policy", type=click.Path(path_type=Path), default=Path(".github/gpu-gate.yml"), show_default=True,
    metavar="FILE", help="Which paths need GPUs, and what a pass must have.",
)  # fmt: skip


def workflow_run_here() -> tuple[str, int, int]:
    """Repository, number of the workflow run and of its attempt; it needs no file."""
    repository = os.environ.get("GITHUB_REPOSITORY", "")
    run, attempt = os.environ.get("GITHUB_RUN_ID", ""), os.environ.get("GITHUB_RUN_ATTEMPT", "")
    if not repository or not run.isdecimal() or not attempt.isdecimal():
        raise UsageError(
            "GITHUB_REPOSITORY, GITHUB_RUN_ID or GITHUB_RUN_ATTEMPT is not set",
            remedy="run this as a step of a GitHub workflow",
        )
    return repository, int(run), int(attempt)


def checkout_here() -> Checkout:
    """What git says of the files that are here."""
    try:
        commit, *parents = git("rev-list", "--parents", "-n", "1", "HEAD").decode().split()
        tree = git("rev-parse", "HEAD^{tree}").decode().strip()
        return Checkout(commit, tuple(parents), tree, dirty=bool(git("status", "--porcelain", "--untracked-files=no")))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UsageError(
            "git can not say what is checked out here", remedy="check the repository out first, with its history"
        ) from error


def git(*arguments: str) -> bytes:
    """What git answers about the repository here; `OSError` or `SubprocessError` where it does not."""
    env = {**os.environ, "GIT_NO_REPLACE_OBJECTS": "1"}
    done = subprocess.run(
        ["git", *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True
    )
    return done.stdout


def answer(outputs: Mapping[str, str], as_json: Mapping[str, Any] | None) -> None:
    """Hand the outputs to GitHub where it asks for them; with `as_json` print that one object."""
    path = os.environ.get("GITHUB_OUTPUT")
    if path:
        append_outputs(Path(path), outputs)
    if as_json is not None:
        say(json.dumps(as_json, sort_keys=True))
