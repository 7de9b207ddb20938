"""Templates and harness are found in a checkout and in an installation, and SkyPilot never in their place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrate.errors import RenderError
from orchestrate.render import Backend, harness_dir, render, template_path, templates, templates_dir
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


DAMAGES = {
    "a list": lambda text: "- a\n",
    "null": lambda text: "null\n",
    "something else": lambda text: "a: 1\n",
    "empty": lambda text: "",
    "no YAML": lambda text: "a: [",
    "a field of another type": lambda text: text.replace("labels:", "labels: [1]\n#"),
    "without labels": lambda text: text.replace("labels:", "annotations:", 1),
    "without its harness or its caps": lambda text: text.replace("- name: harness", "- name: h").replace(
        "slurm:", "aws:"
    ),
}


@pytest.mark.parametrize("backend", Backend)
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_template_is_an_error_that_names_it(monkeypatch, tmp_path, plain, archive, backend, name):
    (tmp_path / TEMPLATES[backend]).write_text(DAMAGES[name](template_path(backend).read_text()))
    assert_refused(monkeypatch, tmp_path, plain, archive, backend)


def test_a_template_that_is_no_text_is_an_error_that_names_it(monkeypatch, tmp_path, plain, archive):
    (tmp_path / TEMPLATES[Backend.SKY]).write_bytes(b"\xff")
    assert_refused(monkeypatch, tmp_path, plain, archive, Backend.SKY)


def assert_refused(monkeypatch, folder, plain, archive, backend):
    monkeypatch.setattr(templates, "templates_dir", lambda _backend: folder)
    templates.load_template.cache_clear()
    try:
        with pytest.raises(RenderError, match=r"template") as caught:
            render(backend, plain, archive=archive)
    finally:
        templates.load_template.cache_clear()
    assert caught.value.remedy
