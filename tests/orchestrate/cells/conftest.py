import shutil
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def checkout(tmp_path):
    """A copy of the pieces that must agree: the harness with its sets, and both template folders."""
    for name in ("harness", "sky", "k8s"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path
