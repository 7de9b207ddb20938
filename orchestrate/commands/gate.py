"""`orchestrate gate`: the steps of a GitHub workflow that ends in one required check."""

from __future__ import annotations

import click

from orchestrate.commands.gate_before import admit, classify
from orchestrate.commands.gate_conclude import conclude
from orchestrate.commands.gate_run import reconcile, run

__all__ = ["command"]


@click.group("gate")
def command() -> None:
    """Decide whether a change needs GPUs, run it, look afterwards from a fresh machine, and conclude.

    Each is a step of `.github/workflows/gpu-gate.yml`. They talk through files in one folder (--records) and through
    GitHub's own variables; run by hand they need GITHUB_EVENT_NAME, GITHUB_EVENT_PATH, GITHUB_REPOSITORY, GITHUB_SHA,
    GITHUB_RUN_ID and GITHUB_RUN_ATTEMPT.

    \b
    Example:
      orchestrate gate classify --records gate
      orchestrate gate admit --records gate --within 6h
      orchestrate gate run --records gate --runs-dir runs -- --backend k8s --cell-set main --image NAME@sha256:DIGEST
      orchestrate gate reconcile --records gate -- --backend k8s
      orchestrate gate conclude --records gate --runs-dir runs
    """


for step in (classify, admit, run, reconcile, conclude):
    command.add_command(step)
