"""What the commands that end other people's unfinished runs have in common."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from orchestrate.lifecycle.recovery import Recovery
from orchestrate.report.console import ConsoleProgress
from orchestrate.user import home_folder

__all__ = ["recovery_for"]


def recovery_for(command: str) -> Recovery:
    """A recovery that tells on standard error what it does, one line a step."""
    return Recovery(
        by=command,
        temp_base=Path(tempfile.gettempdir()),
        environ=dict(os.environ),
        harness=None,
        home=home_folder(),
        narrator=ConsoleProgress(sys.stderr, interactive=False),
    )
