"""What the Slurm bed asks of the machine: programs, ports, users, processes by id; never one by its name alone."""

import os
import pwd
import re
import shutil
import socket
import sys
import time
from pathlib import Path

SBIN = "/usr/sbin:/sbin"


def wait(condition, what, *, limit_s=30):
    """Wait until `condition()` is true and return it; `AssertionError` names `what` after `limit_s`."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"no {what} within {limit_s}s")
        time.sleep(0.1)


def program_path(name):
    """Where a program is, also one that only root's PATH has."""
    return shutil.which(name) or shutil.which(name, path=SBIN)


def uv_path():
    """uv beside this interpreter, or on the PATH."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.is_file() else shutil.which("uv")


def node_python():
    """An interpreter of the system, which every user can run."""
    return shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable


def script(path, text):
    path.write_text(f"#!/bin/bash\n{text}")
    path.chmod(0o755)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def port_is_open(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def same_disk(one, other):
    return one.stat().st_dev == other.stat().st_dev


def user_exists(name):
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def owner_of(path):
    """Who owns a file, None where it is gone or nobody's."""
    try:
        return path.owner()
    except (OSError, KeyError):
        return None


def all_pids():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def pids_of_user(uid):
    found = []
    for pid in all_pids():
        try:
            status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
        except OSError:
            continue
        if re.search(rf"^Uid:\s+{uid}\s", status, re.MULTILINE) and not re.search(r"^State:\s+Z", status, re.MULTILINE):
            found.append(pid)
    return found


def pids_titled(titles):
    """sshd's sessions, which outlive their listener; by how the titles that they give themselves begin."""
    found = []
    for pid in all_pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if command.startswith(titles):
            found.append(pid)
    return found


def environ_of(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def is_server(pid):
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"sky" in command.lower() and b"orchestrate" not in command


def strike(pid, signum):
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return
