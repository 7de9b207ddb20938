"""One container of one pod: its folders, its process, its log."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil

SCRIPT = Path(__file__).with_name("namespaces.py")
INTERPRETER = [sys.executable, "-I", "-S", str(SCRIPT)]
PATH = "/.image/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_ERROR = 250


def why_not():
    """Why containers can not run on this machine, or None."""
    done = subprocess.run([*INTERPRETER, "probe"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"no mount namespaces here: {done.stderr.strip().splitlines()[-1:]}"


class Container:
    """The process of `container` (a container spec) under `folder`; `volumes` are (source, path, readonly)."""

    def __init__(self, folder, container, env, volumes, security, *, log):
        self.folder = folder
        self.log = log
        self.process = None
        self.oom_killed = False
        (folder / "root").mkdir(parents=True)
        self.termination_file = folder / "termination"
        self.termination_file.touch()
        self.termination_file.chmod(0o666)
        command = [*(container.get("command") or []), *(container.get("args") or [])]
        own = {**security, **(container.get("securityContext") or {})}
        self._spec_file = folder / "spec.json"
        self._spec = {
            "argv": [expand(word, env) for word in command],
            "env": {"PATH": PATH, "HOME": "/", **env},
            "cwd": container.get("workingDir") or "/",
            "uid": own.get("runAsUser") or 0, "gid": own.get("runAsGroup") or 0,
            "readonly_root": bool(own.get("readOnlyRootFilesystem")),
            "root": str(folder / "root"), "pid_file": str(folder / "pid"), "error_file": str(folder / "error"),
            "prefixes": sorted({sys.prefix, sys.base_prefix}), "python": sys.executable,
            "volumes": [{"source": str(source), "path": path, "readonly": ro} for source, path, ro in volumes],
            "termination_file": str(self.termination_file),
            "termination_path": container.get("terminationMessagePath") or "/dev/termination-log",
        }  # fmt: skip
        self._spec_file.write_text(json.dumps(self._spec))

    async def start(self):
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *INTERPRETER, "run", str(self._spec_file), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={}, start_new_session=True,
            )  # fmt: skip

    async def wait(self):
        return await self.process.wait()

    @property
    def pid(self):
        """The pid of the container's process 1, None when it does not run."""
        try:
            return int((self.folder / "pid").read_text())
        except (OSError, ValueError):
            return None

    @property
    def runs(self):
        return self.process is not None and self.process.returncode is None

    def has_execed(self):
        """Whether process 1 is the command by now, and no longer the code that prepares for it."""
        try:
            words = (Path("/proc") / str(self.pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return any(words) and str(SCRIPT).encode() not in words  # one that has ended has no words

    def start_error(self):
        """What kept the command from being started, None when it was."""
        if self.process.returncode != START_ERROR:
            return None
        try:
            return (self.folder / "error").read_text() or None
        except OSError:
            return None

    def message(self):
        return self.termination_file.read_bytes()[:4096].decode("utf-8", "replace")

    def terminate(self):
        if self.runs:
            self.process.terminate()

    def kill(self):
        if self.runs and (pid := self.pid) is not None:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return
        elif self.runs:
            self.process.kill()

    def kill_for_memory(self):
        self.oom_killed = True
        self.kill()

    def rss(self):
        """Bytes that its processes hold together."""
        try:
            members = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
            return sum(member.memory_info().rss for member in members)
        except (psutil.Error, TypeError):
            return 0

    def exec_arguments(self, command):
        return [*INTERPRETER, "exec", str(self._spec_file), str(self.pid), *command]

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def expand(text, env):
    """`$(NAME)` and `$$`, as a kubelet expands them."""
    out, index = [], 0
    while index < len(text):
        if text.startswith("$$", index):
            out.append("$")
            index += 2
        elif text.startswith("$(", index) and (end := text.find(")", index)) > 0:
            name = text[index + 2 : end]
            out.append(env.get(name, text[index : end + 1]))
            index = end + 1
        else:
            out.append(text[index])
            index += 1
    return "".join(out)
