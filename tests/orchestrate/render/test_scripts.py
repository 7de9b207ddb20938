"""The scripts of both templates, run by a real bash with a program in the place of Python."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from orchestrate.backends.kubernetes_evidence import evidence_sha256
from orchestrate.render import Backend, harness_archive, harness_dir, load_template

HOSTILE = "r 1'\"\n$(touch owned) `touch owned` ${CELL_SET}"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


@pytest.fixture
def python(tmp_path):
    """A program that takes Python's place: records how it was called, then does what `payload` says."""

    def install(payload="exit 7"):
        path = tmp_path / "python"
        path.write_text(
            "#!/bin/bash\n"
            'if [ "$1" = -c ]; then exit 0; fi\n'
            f'printf "%s\\0" "$RUN_ID" "$PYTHONPATH" "$@" > "{tmp_path}/called"\n'
            f"{payload}\n"
        )
        path.chmod(0o755)
        return path

    return install


@pytest.fixture
def called(tmp_path):
    return lambda: (tmp_path / "called").read_text().split("\0")[:-1]


def sky_env(tmp_path, python, **values):
    template = load_template(Backend.SKY)
    return {**os.environ, "HOME": str(tmp_path), **template["envs"], "PYTHON": str(python), **values}


def run_sky(tmp_path, env):
    script = load_template(Backend.SKY)["run"]
    return subprocess.run(["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_a_task_runs_the_node_from_the_workdir_and_passes_its_exit_code_on(tmp_path, python, called):
    answer = run_sky(tmp_path, sky_env(tmp_path, python(), RUN_ID=HOSTILE))
    assert answer.returncode == 7, answer.stderr
    run_id, path, *arguments = called()
    assert run_id == HOSTILE
    assert path.split(":")[:2] == [str(tmp_path), f"{tmp_path}/orchestrate-harness"]
    assert arguments == ["-m", "harness", "node", "--procs", "4", "--evidence", "evidence"]
    assert not (tmp_path / "owned").exists()


def test_a_task_without_a_run_id_takes_skypilots(tmp_path, python, called):
    assert run_sky(tmp_path, sky_env(tmp_path, python(), SKYPILOT_TASK_ID="sky-1")).returncode == 7
    assert called()[0] == "sky-1"


def test_an_interpreter_with_torch_and_no_numpy_is_not_used(tmp_path):
    # torch's object collectives need numpy, which torch itself does not bring.
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/bash\n[ "$1" = -c ] && { [[ "$2" != *numpy* ]]; exit; }\n'
        f'printf "%s\\n" "$*" >> "{tmp_path}/calls"\n'
        '[ "$2" != venv ] || { mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; }\n'
    )
    python.chmod(0o755)
    env = sky_env(tmp_path, python, RUN_ID="x")
    subprocess.run(["bash", "-c", load_template(Backend.SKY)["setup"]], env=env, check=True)
    assert run_sky(tmp_path, env).returncode == 0
    made, installed, ran = (tmp_path / "calls").read_text().splitlines()
    assert made == f"-m venv {tmp_path}/orchestrate-venv"
    assert installed == f"-m pip install --quiet {env['REQUIREMENTS']}"
    assert ran.startswith("-m harness node")


@pytest.mark.parametrize("limit", ["0", "-1", "", "86401", "inf", "1; touch owned"])
def test_a_task_without_a_real_limit_does_not_run(tmp_path, python, limit):
    answer = run_sky(tmp_path, sky_env(tmp_path, python(), RUN_ID="x", JOB_LIMIT_S=limit))
    assert answer.returncode == 2
    assert "JOB_LIMIT_S" in answer.stderr
    assert not (tmp_path / "called").exists()
    assert not (tmp_path / "owned").exists()


def test_a_payload_that_ignores_sigterm_ends_anyway(tmp_path, python):
    stubborn = python("trap '' TERM; while true; do sleep 0.1; done")
    answer = run_sky(tmp_path, sky_env(tmp_path, stubborn, RUN_ID="x", JOB_LIMIT_S="1", KILL_AFTER_S="1"))
    assert answer.returncode in {128 + signal.SIGKILL, -signal.SIGKILL}


def job_script(tmp_path):
    """The script of the Job, with the pod's folders moved under `tmp_path`."""
    script = load_template(Backend.K8S)["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    for folder in ("harness", "tmp", "source"):
        (tmp_path / folder).mkdir(exist_ok=True)
    script, moved = re.subn(r"(?<= )/(?=(?:harness|tmp|source)(?:[/\s]|$))", f"{tmp_path}/", script, flags=re.MULTILINE)
    assert moved == 12
    return script


def job_env(tmp_path, python, **values):
    container = load_template(Backend.K8S)["spec"]["template"]["spec"]["containers"][0]
    (tmp_path / "evidence").mkdir(exist_ok=True)
    archive = harness_archive(harness_dir())
    for index, chunk in enumerate((archive.gz[:1000], archive.gz[1000:])):
        (tmp_path / "harness" / f"harness.tar.gz.{index:03d}").write_bytes(chunk)
    return {
        **os.environ,
        **{entry["name"]: entry["value"] for entry in container["env"]},
        "PYTHON": str(python),
        "EVIDENCE_DIR": str(tmp_path / "evidence"),
        "HARNESS_SHA256": archive.sha256,
        "COLLECT_WAIT_S": "0",
        "TERMINATION_LOG": str(tmp_path / "termination-log"),
        **values,
    }


def run_job(tmp_path, python, **values):
    script = job_script(tmp_path)
    env = job_env(tmp_path, python, **values)
    cwd = tmp_path / "tmp"
    return subprocess.run(["bash", "-c", script], env=env, cwd=cwd, capture_output=True, text=True, check=False)


def test_a_job_unpacks_the_harness_and_passes_the_exit_code_on(tmp_path, python, called):
    answer = run_job(tmp_path, python(), RUN_ID=HOSTILE)
    assert answer.returncode == 7, answer.stderr
    assert called()[0] == HOSTILE
    assert called()[2:] == ["-m", "harness", "node", "--procs", "4", "--evidence", str(tmp_path / "evidence")]
    unpacked = tmp_path / "tmp" / "harness" / "__main__.py"
    assert unpacked.read_bytes() == (harness_dir() / "__main__.py").read_bytes()
    assert not (tmp_path / "tmp" / "owned").exists()


def test_a_job_whose_harness_is_not_the_one_named_runs_nothing(tmp_path, python):
    answer = run_job(tmp_path, python(), HARNESS_SHA256=hashlib.sha256(b"other").hexdigest())
    assert answer.returncode == 5  # infrastructure
    assert "did not arrive whole" in answer.stderr
    assert not (tmp_path / "called").exists()
    assert not (tmp_path / "tmp" / "harness").exists()


@pytest.fixture
def source(tmp_path):
    """The files of a qualification as ConfigMaps and as a claim have them, and the variables that name them."""
    tar, groups = b"a tar" * 1000, b"{}"
    (tmp_path / "source").mkdir()
    packed = gzip.compress(tar)
    for index, chunk in enumerate((packed[:20], packed[20:])):
        (tmp_path / "source" / f"source.tar.gz.{index:03d}").write_bytes(chunk)
    (tmp_path / "source" / "groups.json").write_bytes(groups)
    (tmp_path / "on-claim.tar").write_bytes(tar)
    return {"GROUPS_SHA256": hashlib.sha256(groups).hexdigest(), "SOURCE_BYTES": str(len(tar))}


@pytest.mark.parametrize("where", ["in ConfigMaps", "on a claim"])
def test_a_job_of_a_qualification_runs_its_groups_on_the_source_that_was_named(tmp_path, python, called, source, where):
    claim = {"SOURCE_FILE": f"{tmp_path}/on-claim.tar"} if where == "on a claim" else {}
    answer = run_job(tmp_path, python(), **source, **claim)
    assert answer.returncode == 7, answer.stderr
    files = ["--plan", f"{tmp_path}/source/groups.json", "--archive", f"{tmp_path}/tmp/source.tar"]
    evidence = ["--procs", "4", "--evidence", f"{tmp_path}/evidence"]
    assert called()[2:] == ["-m", "harness", "qualify", *files, "--source", f"{tmp_path}/tmp/source", *evidence]
    assert (tmp_path / "tmp" / "source.tar").read_bytes() == b"a tar" * 1000


def test_a_job_takes_no_more_of_a_source_than_was_named_and_none_that_is_missing(tmp_path, python, source):
    archive = tmp_path / "tmp" / "source.tar"
    assert run_job(tmp_path, python(), **source | {"SOURCE_BYTES": "100"}).returncode == 7
    assert not archive.exists() or archive.stat().st_size == 100
    assert run_job(tmp_path, python(), **source | {"SOURCE_FILE": f"{tmp_path}/nowhere.tar"}).returncode == 7
    assert not archive.exists()


def test_a_job_whose_groups_are_others_runs_nothing(tmp_path, python, source):
    answer = run_job(tmp_path, python(), **source | {"GROUPS_SHA256": "0" * 64})
    assert answer.returncode == 5  # infrastructure
    assert "the groups did not arrive whole" in answer.stderr
    assert not (tmp_path / "called").exists()


def test_a_task_of_a_qualification_runs_the_groups_that_were_named(tmp_path, python, called, source):
    folder = tmp_path / "orchestrate-source"
    folder.mkdir()
    (tmp_path / "on-claim.tar").rename(folder / "source.tar")
    (tmp_path / "source" / "groups.json").rename(folder / "groups.json")
    (tmp_path / "evidence").mkdir()
    env = sky_env(tmp_path, python(), RUN_ID="x", EVIDENCE_DIR="evidence/one", **source)
    assert run_sky(tmp_path, env).returncode == 7
    files = ["--plan", f"{folder}/groups.json", "--archive", f"{folder}/source.tar", "--source", f"{folder}/work"]
    assert called()[2:] == ["-m", "harness", "qualify", *files, "--procs", "4", "--evidence", "evidence/one"]
    (tmp_path / "called").unlink()
    (folder / "groups.json").write_bytes(b"others")
    answer = run_sky(tmp_path, env)
    assert (answer.returncode, (tmp_path / "evidence" / "one.exit").read_text()) == (5, "5\n")
    assert not (tmp_path / "called").exists()


def test_a_job_waits_for_its_evidence_to_be_collected_and_no_longer(tmp_path, python):
    script, env = job_script(tmp_path), job_env(tmp_path, python("exit 3"), COLLECT_WAIT_S="600")
    with subprocess.Popen(["bash", "-c", script], env=env, cwd=tmp_path / "tmp", stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"payload ended with exit code 3\n"
        assert process.poll() is None
        (tmp_path / "evidence" / "collected").touch()
        assert process.wait(timeout=120) == 3


def test_a_job_passes_sigterm_on_and_does_not_wait_for_collection(tmp_path, python):
    payload = python(f"trap 'exit 9' TERM; touch {tmp_path}/ready; while true; do sleep 0.1; done")
    script, env = job_script(tmp_path), job_env(tmp_path, payload, COLLECT_WAIT_S="600")
    with subprocess.Popen(["bash", "-c", script], env=env, cwd=tmp_path / "tmp", stdout=subprocess.PIPE) as process:
        wait_for((tmp_path / "ready").exists)
        wait_for(lambda: has_trap(process.pid))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 9
        assert process.stdout.read() == b"payload ended with exit code 9\n"


def ended(tmp_path):
    return json.loads((tmp_path / "evidence" / "ended").read_text())


def test_a_job_seals_its_evidence_with_the_digest_that_the_collector_computes(tmp_path, python):
    payload = python(
        f'mkdir -p "{tmp_path}/evidence/cells/b c"; echo x > "{tmp_path}/evidence/cells/b c/rows.jsonl"\n'
        f'echo y > "{tmp_path}/evidence/cells/a.json"; echo z > "{tmp_path}/evidence/node.jsonl"; exit 3'
    )
    log = tmp_path / "last-words"
    answer = run_job(tmp_path, payload, TERMINATION_LOG=str(log))
    assert answer.returncode == 3, answer.stderr
    assert ended(tmp_path) == {"exit_code": 3, "evidence_sha256": evidence_sha256(tmp_path / "evidence")}
    assert json.loads(log.read_text()) == ended(tmp_path)
    (tmp_path / "evidence" / "cells" / "a.json").write_text("Y")
    assert ended(tmp_path)["evidence_sha256"] != evidence_sha256(tmp_path / "evidence")


def test_a_job_without_evidence_seals_nothing_as_nothing(tmp_path, python):
    run_job(tmp_path, python("exit 2"), TERMINATION_LOG=str(tmp_path / "last-words"))
    assert ended(tmp_path) == {"exit_code": 2, "evidence_sha256": hashlib.sha256(b"").hexdigest()}
    assert evidence_sha256(tmp_path / "evidence") == hashlib.sha256(b"").hexdigest()


def test_a_payload_that_is_told_to_end_leaves_the_container_waiting(tmp_path, python):
    payload = python(f"trap 'exit 9' TERM; touch {tmp_path}/ready; while true; do sleep 0.1; done")
    script, env = job_script(tmp_path), job_env(tmp_path, payload, COLLECT_WAIT_S="600")
    marks = tmp_path / "evidence"
    with subprocess.Popen(["bash", "-c", script], env=env, cwd=tmp_path / "tmp") as process:
        try:
            wait_for((tmp_path / "ready").exists)
            wait_for(lambda: (marks / "payload.pid").exists() and (marks / "payload.pid").read_text())
            os.kill(int((marks / "payload.pid").read_text()), signal.SIGTERM)
            wait_for((marks / "ended").exists)
            assert ended(tmp_path)["exit_code"] == 9
            assert process.poll() is None
            (marks / "collected").touch()
            assert process.wait(timeout=120) == 9
        finally:
            process.terminate()


def test_a_payload_whose_watcher_was_killed_ends_before_its_evidence_is_sealed(tmp_path, python):
    payload = python(
        f"trap 'sleep 0.3; touch {tmp_path}/evidence/last; exit 9' TERM; touch {tmp_path}/ready\n"
        "while true; do sleep 0.1; done"
    )
    script, env = job_script(tmp_path), job_env(tmp_path, payload)
    marks = tmp_path / "evidence"
    with subprocess.Popen(["bash", "-c", script], env=env, cwd=tmp_path / "tmp") as process:
        try:
            wait_for((tmp_path / "ready").exists)
            wait_for(lambda: (marks / "payload.pid").exists() and (marks / "payload.pid").read_text())
            os.kill(int((marks / "payload.pid").read_text()), signal.SIGKILL)
            assert process.wait(timeout=120) == 128 + signal.SIGKILL
        finally:
            process.terminate()
    assert (marks / "last").exists()
    assert ended(tmp_path) == {"exit_code": 137, "evidence_sha256": evidence_sha256(marks)}


def test_a_copy_that_outlives_the_pod_appears_whole_or_not_at_all(tmp_path, python):
    payload = python(f'echo y > "{tmp_path}/evidence/node.jsonl"')
    sink = {"SINK_DIR": str(tmp_path / "sink"), "RUN_ID": "r1", "TERMINATION_LOG": str(tmp_path / "last-words")}
    assert run_job(tmp_path, payload, **sink).returncode == 0
    assert sorted(path.name for path in (tmp_path / "sink" / "r1").iterdir()) == ["ended", "node.jsonl"]
    shutil.rmtree(tmp_path / "sink")
    (tmp_path / "sink").write_text("not a folder")
    answer = run_job(tmp_path, payload, **sink)
    assert answer.returncode == 0
    assert "could not be copied" in answer.stderr


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found


def has_trap(pid):
    """Whether a process has a handler of its own for SIGTERM."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)
