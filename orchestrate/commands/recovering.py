"""What the commands that end other people's unfinished runs have in common."""

from __future__ import annotations

import sys

from orchestrate.lifecycle.recovery import Recovery
from orchestrate.lifecycle.warden import open_backend
from orchestrate.report.console import ConsoleProgress
from orchestrate.user import home_folder

__all__ = ["recovery_for"]


def recovery_for(command: str) -> Recovery:
    """A recovery that tells on standard error what it does, one line a step."""
    return Recovery(
        by=command,
        open_backend=open_backend,
        harness=None,
        home=home_folder(),
        narrator=ConsoleProgress(sys.stderr, interactive=False),
    )
