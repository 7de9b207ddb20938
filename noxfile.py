"""How this project is checked. `nox` runs lint, tests, wheel and docs; `nox -s bench` prints the benchmarks."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "tests", "wheel", "docs"]
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
CONSTRAINTS = str(ROOT / "constraints.txt")


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, formatting, strict mypy, import contracts; the workflows against GitHub's schema and for what leaks."""
    install(session, "-e", ".", "--group", "lint", "--group", "test", "torch>=2.11", "nox", "hatchling")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    session.run("lint-imports", "--no-cache")
    workflows = [str(path) for path in sorted((ROOT / ".github/workflows").glob("*.yml"))]
    session.run("zizmor", "--offline", *workflows)
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)


@nox.session
def tests(session: nox.Session) -> None:
    """The test suite; arguments go to pytest: `nox -s tests -- tests/orchestrate`."""
    install(session, "-e", ".[all]", "--group", "test", "--group", "docs")
    session.run("pytest", *session.posargs)


@nox.session
def k8s(session: nox.Session) -> None:
    """The integration suite on the cluster that KUBECONFIG names, with the image in ORCHESTRATE_K8S_IMAGE.

    In the namespace ORCHESTRATE_K8S_NAMESPACE (`orchestrate-it`); without an image on the emulator, as `tests` does.
    """
    install(session, "-e", ".[all]", "--group", "test")
    session.run("pytest", "-p", "no:cacheprovider", "tests/k8s", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """The long part of the fault matrix, on real servers: a Slurm on loopback (root), SkyPilot's API server."""
    install(session, "-e", ".[all]", "--group", "test")
    session.run("pytest", "-m", "faults", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel, install it in an empty venv outside the repository, render and launch from there."""
    install(session, "hatchling")
    outside = Path(tempfile.mkdtemp(prefix="orchestrate-wheel-"))
    try:
        session.run("hatchling", "build", "-t", "wheel", "-d", str(outside / "dist"))
        (built,) = (outside / "dist").glob("*.whl")
        shipped = set(zipfile.ZipFile(built).namelist())
        wanted = [path for folder in ("k8s", "sky") for path in (ROOT / folder).iterdir()]
        missing = [
            path.name for path in wanted if f"orchestrate/templates/{path.parent.name}/{path.name}" not in shipped
        ]
        if missing:
            session.error(f"the wheel lacks {', '.join(missing)}")
        session.run("python", "-m", "venv", str(outside / "venv"), external=True)
        programs = outside / "venv" / "bin"
        session.run(str(programs / "pip"), "install", "--quiet", "-c", CONSTRAINTS, f"{built}[harness]", external=True)
        session.chdir(outside)
        orchestrate = str(programs / "orchestrate")
        env = {"ORCHESTRATE_RUNS_DIR": str(outside / "runs"), "PYTHONPATH": ""}
        for backend in ("sky", "k8s"):
            session.run(
                orchestrate, "render", "--backend", backend, "--cell-set", "ellavox", "--groups", "1,4",
                "-o", str(outside / backend), external=True, env=env,
            )  # fmt: skip
        session.run(orchestrate, "cells", "check", external=True, env=env)
        answer = session.run(
            orchestrate, "launch", "--repeat", "2", "--json", external=True, env=env, silent=True, stderr=None
        )
        run = json.loads(str(answer))
        session.log(f"launched from the wheel: {run}")
        session.run(
            orchestrate, "verify", run["run_id"], "--expect-closure", run["closure_sha256"], external=True, env=env
        )
        # Four cells hold no corpus cell of an odd group: not enough evidence for a certificate, and nothing else wrong.
        session.run(
            orchestrate, "calibrate", "certify", "--run", run["run_dir"], external=True, env=env, success_codes=[4]
        )
    finally:
        session.chdir(ROOT)
        shutil.rmtree(outside)


@nox.session
def docs(session: nox.Session) -> None:
    """Every link and anchor inside README.md, CHANGELOG.md and docs/ leads somewhere."""
    install(session, "--group", "docs", "hypothesis", "pytest", "pytest-timeout")
    session.run("pytest", "-p", "no:cacheprovider", "tests/docs")


@nox.session
def mutants(session: nox.Session) -> None:
    """Flip each decision of memory admission and have its tests find it; prints the table."""
    install(session, "-e", ".[harness]", "--group", "test")
    session.run("python", "tests/harness/admission/mutants.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Ratios against a peer in the same run; prints, never judges a test."""
    install(session, "-e", ".[all]")
    for script in sorted((ROOT / "benchmarks").glob("bench_*.py")):
        session.run("python", str(script), *session.posargs)


def install(session: nox.Session, *arguments: str) -> None:
    """`pip install` with the pinned versions."""
    session.install("-c", CONSTRAINTS, *arguments)
