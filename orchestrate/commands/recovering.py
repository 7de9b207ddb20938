"""What the commands that end other people's unfinished runs have in common."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrate.backends.process_table import become_subreaper
from orchestrate.lifecycle.recovery import Recovery
from orchestrate.lifecycle.warden import harness_folder, open_backend
from orchestrate.report.console import ConsoleProgress

__all__ = ["recovery_for"]


def recovery_for(command: str) -> Recovery:
    """A recovery that tells on standard error what it does, one line a step."""
    become_subreaper()
    return Recovery(
        by=command,
        open_backend=open_backend,
        harness=harness_folder(),
        home=Path.home(),
        narrator=ConsoleProgress(sys.stderr, interactive=False),
    )
