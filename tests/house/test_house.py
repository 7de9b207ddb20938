"""Rules of the house that no linter knows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_import_sky_from_the_repository_root_finds_skypilot():
    answer = subprocess.run(
        [sys.executable, "-c", "import sky; print(sky.__file__)"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip().endswith("sky/__init__.py")
    assert not (ROOT / "sky" / "__init__.py").exists()


def test_ci_and_readme_give_the_same_test_command():
    readme = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"^\S*python3? -m venv .*nox$", readme, re.MULTILINE)
    assert command in (ROOT / ".ci" / "run").read_text()


def test_the_workflow_runs_the_ci_script():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "bash .ci/run" in workflow


def test_actions_are_pinned_by_digest():
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        for used in re.findall(r"uses:\s*(\S+)", workflow.read_text()):
            assert used.startswith("./") or re.search(r"@[0-9a-f]{40}$", used), f"{workflow.name}: {used}"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout: what belongs to it can not be told")
def test_nothing_here_names_a_package_registry_host():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = listed.stdout.splitlines()
    assert "pyproject.toml" in names
    for name in names:
        path = ROOT / name
        if path.is_file() and path.suffix in {".txt", ".toml", ".md", ".py", ".yml", ".yaml", ""}:
            text = path.read_text(errors="replace")
            assert not re.search(r"https?://\S*/simple/", text), name
            for host in ("files.pythonhosted", "pypi"):
                assert host + ".org" not in text, name
