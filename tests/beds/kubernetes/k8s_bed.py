"""Starts the emulator for tests and hands out what they need of it; leaves no process behind."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml

HERE = Path(__file__).parent


class EmulatorBed:
    """One emulated cluster under `folder`.

    `kubeconfig` is a file for clients and `kubectl`; `pull(lever, **arguments)` works the levers of `control.py`.
    """

    def __init__(self, folder, *arguments, namespace="default", pace=0.0):
        self.folder = Path(folder)
        self.namespace = namespace
        self.folder.mkdir(parents=True, exist_ok=True)
        self.err = self.folder / "emulator.err"
        environ = {**os.environ, "PYTHONPATH": str(HERE)}
        command = [sys.executable, "-m", "k8s_emulator", "--folder", str(self.folder / "state"), "--pace", str(pace)]
        with self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, "--namespaces", *dict.fromkeys(["default", namespace]), *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, env=environ, start_new_session=True,
            )  # fmt: skip
        line = self.process.stdout.readline().decode().split()
        if len(line) != 2:
            raise RuntimeError(f"the emulator did not start: {self.err.read_text()}")
        self.url, self.admin_token = line
        self.kubeconfig = self.write_kubeconfig("admin", self.admin_token)

    def write_kubeconfig(self, name, token, *, url=None):
        """A kubeconfig for the holder of a token."""
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "emulated",
            "clusters": [{"name": "emulated", "cluster": {"server": url or self.url}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{
                "name": "emulated", "context": {"cluster": "emulated", "user": name, "namespace": self.namespace},
            }],
        }))  # fmt: skip
        return path

    def pull(self, lever, **arguments):
        """Pull a lever; returns its answer."""
        request = urllib.request.Request(
            f"{self.url}/emulator/{lever}", data=json.dumps(arguments).encode(), method="POST",
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return json.load(response)["answer"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{lever}: {error.read().decode()}; {self.err.read_text()[-2000:]}") from error

    def close(self):
        """End it and everything that runs in its containers; raises what went wrong in it."""
        failed = self.pull("failure") if self.process.poll() is None else self.err.read_text()
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            failed = failed or "the emulator had to be killed"
        self.process.stdout.close()
        if failed:
            raise RuntimeError(failed)


def why_no_containers():
    """Why containers can not run on this machine, or None."""
    script = HERE / "k8s_emulator" / "namespaces.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(script), "probe"], capture_output=True, text=True, check=False
    )
    return None if done.returncode == 0 else f"no mount namespaces on this machine: {done.stderr.strip()[-200:]}"


def why_real():
    """Why a test that needs the emulator's levers, but no containers, has nothing to do here, or None."""
    real = bool(os.environ.get("ORCHESTRATE_K8S_IMAGE"))
    return "only an emulator fails on demand, and this suite runs on a real cluster" if real else None


def why_no_emulator():
    """Why a test that needs the emulator's levers has nothing to do here, or None."""
    return why_real() or why_no_containers()


def until(condition, what, *, limit_s=30.0):
    """Wait until `condition()` is true and return it."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit_s}s for {what() if callable(what) else what}")
        time.sleep(0.02)
    return found
