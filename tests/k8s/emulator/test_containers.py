"""Containers really run: their files, their user, exec, logs, and that nothing of them is left."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from kubernetes.stream import stream

QUIET = {"securityContext": {"runAsUser": 10001, "runAsGroup": 10001}}


def execute(lab, pod, script):
    """(stdout, stderr, exit code) of a shell script beside the pod's container."""
    session = stream(
        lab.core.connect_get_namespaced_pod_exec, pod["metadata"]["name"], lab.namespace,
        command=["/bin/sh", "-c", script], stdout=True, stderr=True, stdin=False, tty=False, _preload_content=False,
    )  # fmt: skip
    while session.is_open():
        session.update(timeout=1)
    return session.read_stdout(), session.read_stderr(), session.returncode


def test_a_container_sees_its_volumes_and_not_the_machine(lab):
    lab.request("POST", lab.path("configmaps"), {"metadata": {"name": "src"}, "data": {"run": "hello"}})
    job = lab.job("sees", "cat /src/run; id -u; ls -d /work /home/*; echo done > /dev/termination-log", pod=QUIET)
    pod = job["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "src", "configMap": {"name": "src"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "src", "mountPath": "/src", "readOnly": True}]
    assert lab.request("POST", lab.jobs_path(), job)[0] == 201
    lab.until_condition("sees", "Complete")
    (pod,) = lab.pods("sees")
    log = lab.log(pod)
    if os.getuid() == 0:
        assert log.startswith("hello10001\n")
    assert "/home/" not in log.replace("/home/*", "")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "done\n"


def test_exec_gives_both_streams_whole_and_the_exit_code(lab):
    lab.start("exec", "trap 'exit 0' TERM; touch /tmp/here; while :; do sleep 0.1; done")
    pod = lab.until_running("exec")
    lab.until(lambda: execute(lab, pod, "ls /tmp/here")[0] == "/tmp/here\n", "the file")
    out, err, code = execute(lab, pod, "head -c 3000000 /dev/zero | tr '\\0' x; echo wrong >&2; exit 7")
    assert (len(out), err, code) == (3000000, "wrong\n", 7)


def test_nothing_is_run_beside_a_container_that_has_ended(lab):
    lab.start("over", "exit 3")
    lab.until_condition("over", "Failed")
    (pod,) = lab.pods("over")
    path = lab.path("pods", pod["metadata"]["name"]) + "/exec?command=true&stdout=1"
    code, answer = lab.request("GET", path)
    assert (code, answer["message"]) == (
        400,
        "cannot exec into a container in a completed pod; current phase is Failed",
    )


def test_a_claim_keeps_its_files(lab):
    lab.request("POST", lab.path("persistentvolumeclaims"), {"metadata": {"name": "keep"}, "spec": {}})
    job = lab.job("writes", "echo kept > /sink/file")
    pod = job["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "sink", "persistentVolumeClaim": {"claimName": "keep"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "sink", "mountPath": "/sink"}]
    lab.request("POST", lab.jobs_path(), job)
    lab.until_condition("writes", "Complete")
    lab.request("DELETE", lab.jobs_path("writes"), {"propagationPolicy": "Foreground"})
    lab.until(lambda: not lab.pods("writes"), "the pod to go")
    folder = Path(lab.pull("claim-folder", namespace=lab.namespace, name="keep"))
    assert (folder / "file").read_text() == "kept\n"


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_nothing_is_left_of_the_containers_when_the_server_is(make_lab, how):
    lab = make_lab()
    mark = f"sleep 98{os.getpid() % 10000:04d}"
    lab.start("stays", f"{mark} & {mark} & wait")
    lab.until_running("stays")
    lab.until(lambda: len(running(mark)) >= 2, "the processes")
    if how == "killed":
        os.kill(lab.bed.process.pid, signal.SIGKILL)
    else:
        lab.bed.process.stdin.close()
    lab.bed.process.wait(20)
    lab.until(lambda: not running(mark), lambda: f"{running(mark)} to end", limit_s=10)
    lab.bed.process.stdin.close()
    lab.bed.err.write_text("")


def running(mark):
    done = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.split(maxsplit=1)[-1] == mark]


def test_kubectl_works_with_it(lab):
    lab.start("for-kubectl", "echo printed; trap 'exit 0' TERM; while :; do sleep 0.1; done")
    pod = lab.until_running("for-kubectl")["metadata"]["name"]
    lab.until(lambda: kubectl(lab, "logs", "job/for-kubectl").stdout == "printed\n", "the log")
    assert kubectl(lab, "exec", pod, "--", "sh", "-c", "echo beside; exit 4").stdout == "beside\n"
    assert kubectl(lab, "exec", pod, "--", "sh", "-c", "exit 4").returncode == 4
    assert kubectl(lab, "get", "jobs", "-l", "app=for-kubectl", "-o", "name").stdout == "job.batch/for-kubectl\n"
    assert kubectl(lab, "delete", "job", "for-kubectl").returncode == 0
    lab.until(lambda: kubectl(lab, "get", "pods", "-o", "name").stdout == "", "the pod to go after its Job")


def kubectl(lab, *arguments):
    command = ["kubectl", "--kubeconfig", str(lab.bed.kubeconfig), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        pytest.skip("no kubectl on this machine")
