"""A container's own view of the machine: mounts, processes, user. Stands alone: `python -I -S namespaces.py ...`.

    namespaces.py run SPEC.json       build the root, run the command as process 1; forwards SIGTERM to it
    namespaces.py exec SPEC.json PID COMMAND...   run a command beside process PID
    namespaces.py probe               exit 0 where this machine lets us

The root is a file system in memory: the system's folders and the interpreter's appear in it, the volumes are bound
over it, and nothing else of the machine is seen. Everything dies with the process that started it.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

NEWNS, NEWUSER, NEWPID = 0x00020000, 0x10000000, 0x20000000
RDONLY, NOSUID, REMOUNT, BIND, REC, PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
LIBC = ctypes.CDLL(None, use_errno=True)
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/sys")
START_ERROR = 250
"""The exit code of the supervisor when the command could not be started; the reason is in SPEC's `error` file."""


def main():
    match sys.argv[1:]:
        case ["run", spec]:
            run(json.loads(Path(spec).read_bytes()))
        case ["exec", spec, pid, *command]:
            execute(json.loads(Path(spec).read_bytes()), int(pid), command)
        case ["probe"]:
            die_with_parent()
            unshare()


def run(spec):
    die_with_parent()
    unshare()
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        try:
            build_root(spec)
            become(spec)
            os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
        except OSError as error:
            # Only the file can carry the reason out: the command's own streams are its log.
            os.write(spec_error, f"{error.strerror}".encode())
            os._exit(START_ERROR)
    Path(spec["pid_file"]).write_text(str(pid))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    sys.exit(code_of(pid))


def execute(spec, pid, command):
    die_with_parent()
    kinds = ["pid", "mnt"] if os.getuid() == 0 else ["user", "pid", "mnt"]
    descriptors = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY)
    for descriptor in descriptors:
        call("setns", descriptor, 0)
    child = os.fork()
    if child == 0:
        os.fchdir(root)
        os.chroot(".")
        try:
            become(spec)
            os.execvpe(command[0], command, spec["env"])
        except OSError as error:
            os.write(2, f"exec: {command[0]!r}: {error.strerror}\n".encode())
            os._exit(126 if isinstance(error, PermissionError) else 127)
    sys.exit(code_of(child))


def unshare():
    flags = NEWNS | NEWPID
    uid, gid = os.getuid(), os.getgid()
    call("unshare", flags if uid == 0 else flags | NEWUSER)
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def build_root(spec):
    global spec_error  # noqa: PLW0603  # opened before the root goes out of sight
    spec_error = os.open(spec["error_file"], os.O_WRONLY | os.O_CREAT)
    root = Path(spec["root"])
    call("mount", None, b"/", None, REC | PRIVATE, None)
    call("mount", b"tmpfs", bytes(root), b"tmpfs", NOSUID, b"mode=0755")
    for path in map(Path, SYSTEM):
        if path.is_symlink():
            (root / path.name).symlink_to(path.readlink())
        elif path.is_dir():
            bind(path, root)
    for prefix in map(Path, spec["prefixes"]):
        if not any(prefix.is_relative_to(path) for path in SYSTEM):
            bind(prefix, root)
    for name, mode in (("tmp", 0o1777), ("var/tmp", 0o1777), ("run", 0o755), ("root", 0o755), ("home", 0o755)):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(mode)
    (root / "proc").mkdir()
    call("mount", b"proc", bytes(root / "proc"), b"proc", NOSUID, None)
    devices(root / "dev")
    image_programs(root / ".image" / "bin", spec["python"])
    for volume in sorted(spec["volumes"], key=lambda volume: volume["path"]):
        bind(Path(volume["source"]), root, at=volume["path"], readonly=volume["readonly"])
    for prefix in map(Path, spec["prefixes"]):  # a volume at /tmp must not hide an interpreter that lies there
        if any(prefix.is_relative_to(volume["path"]) for volume in spec["volumes"]):
            bind(prefix, root)
    bind(Path(spec["termination_file"]), root, at=spec["termination_path"])
    if spec["readonly_root"]:
        call("mount", None, bytes(root), None, REMOUNT | BIND | RDONLY, None)
    os.chroot(root)
    os.chdir("/")


def bind(source, root, *, at=None, readonly=False):
    target = root / str(at or source).lstrip("/")
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.touch()
    call("mount", bytes(source), bytes(target), None, BIND | REC, None)
    if readonly:
        call("mount", None, bytes(target), None, REMOUNT | BIND | RDONLY, None)


def devices(folder):
    folder.mkdir()
    for name in ("null", "zero", "full", "random", "urandom"):
        bind(Path("/dev") / name, folder, at=name)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (folder / name).symlink_to(target)
    (folder / "shm").mkdir()
    (folder / "shm").chmod(0o1777)


def image_programs(folder, python):
    """What the image has and the system has not: the interpreter with its packages."""
    folder.mkdir(parents=True)
    for name in ("python3", "python"):
        (folder / name).write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        (folder / name).chmod(0o755)


def become(spec):
    if spec["uid"] and os.getuid() == 0 and Path("/proc/self/uid_map").read_text().split()[2] != "1":
        os.setgroups([spec["gid"]])
        os.setgid(spec["gid"])
        os.setuid(spec["uid"])
    die_with_parent()  # a change of user had cleared it
    os.umask(0o022)
    os.chdir(spec["cwd"])


def code_of(pid):
    while True:
        try:
            _, status = os.waitpid(pid, 0)
            break
        except InterruptedError:
            continue
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def die_with_parent():
    call("prctl", 1, signal.SIGKILL, 0, 0, 0)


def call(name, *arguments):
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"{name}{arguments}")


if __name__ == "__main__":
    main()
