"""Templates and harness are found in a checkout and in an installation, and SkyPilot never in their place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrate.render import Backend, harness_dir, template_path, templates_dir
from orchestrate.render.templates import TEMPLATES, in_checkout

ROOT = Path(__file__).parents[3]

FIND = """
from orchestrate.render import Backend, harness_dir, templates_dir
from orchestrate.render.templates import in_checkout
print(templates_dir(Backend.SKY), templates_dir(Backend.K8S), harness_dir(), in_checkout(), sep="\\n")
"""


def test_a_checkout_has_its_templates_at_its_root():
    assert [templates_dir(backend) for backend in Backend] == [ROOT / "sky", ROOT / "k8s"]
    assert harness_dir() == ROOT / "harness"
    assert in_checkout()


@pytest.fixture
def installed(tmp_path):
    """The layout of an installed wheel, with SkyPilot's package beside it; runs a program there."""
    site = tmp_path / "site-packages"
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("orchestrate", "harness"):
        shutil.copytree(ROOT / package, site / package, ignore=ignored)
    (site / "sky").mkdir()
    (site / "sky" / "__init__.py").write_text("")
    for backend in Backend:
        shutil.copytree(ROOT / backend.value, site / "orchestrate" / "templates" / backend.value)

    def run(*arguments):
        env = {**os.environ, "PYTHONPATH": str(site)}
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env=env, cwd=tmp_path, check=False
        )

    run.site = site
    return run


def test_an_installation_has_its_templates_inside_the_package(installed):
    answer = installed("-c", FIND)
    package = installed.site / "orchestrate" / "templates"
    expected = [package / "sky", package / "k8s", installed.site / "harness", False]
    assert answer.stdout.splitlines() == [str(one) for one in expected], answer.stderr


def test_an_installation_renders_with_its_harness_mounted(installed):
    answer = installed("-m", "orchestrate", "render", "--backend", "sky", "--cell-set", "smoke", "--run-id", "x")
    assert answer.returncode == 0, answer.stderr
    assert f"~/orchestrate-harness/harness: {installed.site}/harness" in answer.stdout.replace('"', "")
    assert "workdir:" not in answer.stdout


def test_the_folder_of_skypilot_is_never_taken_for_ours(installed):
    shutil.rmtree(installed.site / "orchestrate" / "templates")
    answer = installed("-m", "orchestrate", "render", "--backend", "sky", "--cell-set", "smoke")
    assert answer.returncode == 1
    assert TEMPLATES[Backend.SKY] in answer.stderr
    assert "remedy: " in answer.stderr


@pytest.mark.parametrize("backend", Backend)
def test_template_folders_hold_templates_alone(backend):
    assert not list(templates_dir(backend).glob("*.py"))
    assert template_path(backend).is_file()
