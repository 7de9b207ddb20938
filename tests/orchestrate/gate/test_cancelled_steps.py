"""Each step of the gate is cancelled as GitHub does it; a fresh machine reconciles, and the check is red."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

# Blocks where a test says so; a child of the step that ends with it.
GIT = """#!/bin/sh
if [ -n "$STAND_IN_BLOCKS" ]; then touch "$STAND_IN_BLOCKS"; exec sleep 60; fi
exec "{git}" "$@"
"""
STEPS = {
    "classify": [],
    "admit": ["--earlier", "EARLIER", "--earlier-expires", "2099-01-01T00:00:00Z"],
    "run": ["--runs-dir", "RUNS", "--", "qualify"],
    "conclude": ["--runs-dir", "RUNS", "--needs", json.dumps({"classify": {"result": "success"}})],
}


@pytest.fixture
def started(github):
    """Start a step as a process of its own; the answer is that process."""
    processes = []

    def start(step, arguments, **env):
        arguments = [str(github.runs) if each == "RUNS" else str(github.root / "earlier") if each == "EARLIER" else each
                     for each in arguments]  # fmt: skip
        command = [sys.executable, "-m", "orchestrate", "gate", step, "--records", str(github.records), *arguments]
        processes.append(subprocess.Popen(command, cwd=github.work, env={**os.environ, **env}, start_new_session=True,
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))  # fmt: skip
        return processes[-1]

    yield start
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        process.wait()


def wait_for(mark, within_s=120):
    deadline = time.monotonic() + within_s
    while not mark.exists():
        assert time.monotonic() < deadline, f"{mark.name} never came"
        time.sleep(0.02)


def cancel(process):
    """GitHub's sequence, without its waits where the process is quicker."""
    for signum, patience_s in ((signal.SIGINT, 7.5), (signal.SIGTERM, 2.5), (signal.SIGKILL, 60)):
        process.send_signal(signum)
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("it can not be killed")


def reconciled_and_red(github, step):
    code, answer = github.step("reconcile", "--", "--backend", "local", "--runs-dir", str(github.root / "none"))
    assert (code, answer["confirmed"]) == (0, True)
    results = {"classify": "success", "run": "success", "reconcile": "success"}
    results |= {{"admit": "run", "conclude": "reconcile"}.get(step, step): "cancelled"}
    code, answer = github.conclude(needs=results)
    assert (code, answer["green"]) == (answer["exit_code"], False)
    return answer


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_is_cancelled_leaves_a_fresh_machine_all_that_it_needs(github, started, step):
    github.change()
    for before in ("classify", "admit"):
        if step in {"classify", before}:
            break
        github.step(before)
    if step == "admit":
        github.step("classify")
        shutil.copytree(github.root / "gate", github.root / "earlier")
    tools = github.root / "tools"
    tools.mkdir()
    (tools / "git").write_text(GIT.format(git=shutil.which("git")))
    (tools / "git").chmod(0o755)
    mark = github.root / "blocked"
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    process = started(step, STEPS[step], PATH=path, STAND_IN_BLOCKS=str(mark))
    wait_for(mark)
    assert cancel(process) != 0
    answer = reconciled_and_red(github, step)
    assert answer["verdict"] in {"cancelled", "incomplete"}


def test_a_reconciliation_that_is_cancelled_confirms_nothing_and_the_next_one_finishes(github, started):
    github.change()
    github.step("classify")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        kubeconfig = github.root / "kubeconfig"
        kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "users": [{"name": "u", "user": {"token": "t"}}],
            "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        }))  # fmt: skip
        process = started("reconcile", ["--", "--backend", "k8s"], KUBECONFIG=str(kubeconfig))
        silent.settimeout(120)
        connection, _ = silent.accept()
        cancel(process)
        connection.close()
    assert not (github.records / "reconcile.json").exists()
    needs = {"classify": "success", "run": "cancelled", "reconcile": "cancelled"}
    assert github.conclude(needs=needs)[1]["verdict"] == "teardown-unconfirmed"
    assert reconciled_and_red(github, "run")["verdict"] == "cancelled"
