import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def recorded_cells():
    """The cells that a real campaign recorded, by key."""
    path = REPOSITORY.parent / "shared" / "data" / "h200_dense_h2560_cells.jsonl"
    if not path.is_file():
        pytest.skip(f"the recorded cells are not here: {path}")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["cell"]: line for line in lines}


@pytest.fixture
def harness():
    """Run `python -m harness ...` in a process of its own, with nothing of this one's selection in its environment."""

    def run(*argv, env=None, root=REPOSITORY):
        names = {"CELL_SET", "ELLAVOX_GROUPS", "TEXT_GROUPS", "CORPUS", "CORPUS_SHA256"}
        clean = {name: value for name, value in os.environ.items() if name not in names}
        return subprocess.run(
            [sys.executable, "-m", "harness", *argv],
            cwd=root,
            env={**clean, "PYTHONPATH": str(root), **(env or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
