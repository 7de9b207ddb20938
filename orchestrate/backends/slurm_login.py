"""A Slurm cluster over ssh, by the machine's own credentials: the direct way to jobs, files and time limits.

The hosts are those of `~/.slurm/config`, the ssh configuration that SkyPilot itself goes by. Every command has a
deadline, and nothing that comes from elsewhere reaches a shell unquoted.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrate.backends.skypilot_marks import is_of_cluster
from orchestrate.errors import BackendError

__all__ = ["SlurmJob", "SlurmLogin", "SlurmNode", "fetch", "hosts_of", "read", "slurm_config"]

COMMAND_S = 30.0
COPY_S = 600.0
_FIELDS = ("%A", "%T", "%l", "%S", "%r", "%b", "%k", "%j")
_SEPARATOR = "\x1f"
_HOST = re.compile(r"^\s*Host\s+(.+)$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One line of `squeue`. `limit_s` is its time limit, None for none; `started_at` as Slurm writes it."""

    id: str
    name: str
    state: str
    limit_s: int | None
    started_at: str
    reason: str
    tres: str
    comment: str

    @property
    def is_there(self) -> bool:
        """Whether it still has, or may yet get, an allocation: `COMPLETING` still holds one."""
        return self.state not in _GONE

    @property
    def gpus(self) -> int | None:
        """GPUs on each node, None where the job says nothing."""
        match = re.search(r"gpu(?::[A-Za-z0-9_-]+)?:(\d+)", self.tres)
        return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One line of `sinfo`: a node's GPUs of one kind, in total and in use."""

    name: str
    state: str
    kind: str
    total: int
    used: int


@dataclass(frozen=True, slots=True)
class SlurmLogin:
    """The login node of `cluster`, as `config` (an ssh configuration) describes it."""

    config: Path
    cluster: str
    limit_s: float = COMMAND_S

    def jobs(self) -> tuple[SlurmJob, ...]:
        """Every job of the queue, whoever owns it; `BackendError` when it can not be asked."""
        form = _SEPARATOR.join(_FIELDS)
        answer = self.run(f"squeue --noheader --states=all --format={shlex.quote(form)}")
        return tuple(_job(line) for line in answer.splitlines() if line.count(_SEPARATOR) == len(_FIELDS) - 1)

    def jobs_of(self, cluster_name: str) -> tuple[SlurmJob, ...]:
        """The jobs of one SkyPilot cluster that are still there."""
        return tuple(job for job in self.jobs() if job.is_there and is_of_cluster(job.name, cluster_name))

    def nodes(self) -> tuple[SlurmNode, ...]:
        """GPUs node by node; a node without any, or that is in no state to run, is left out."""
        form = "NodeHost:64,StateCompact:32,Gres:256,GresUsed:256"
        answer = self.run(f"sinfo --Node --noheader --Format={shlex.quote(form)}")
        found = {node.name + node.kind: node for line in answer.splitlines() for node in _nodes(line)}
        return tuple(found.values())

    def cancel(self, jobs: Iterable[SlurmJob]) -> None:
        """End these jobs, by id; a job that has ended meanwhile is no error."""
        ids = [shlex.quote(job.id) for job in jobs]
        if ids:
            self.run(f"scancel {' '.join(ids)}")

    def folders_of(self, cluster_name: str) -> tuple[str, ...]:
        """What SkyPilot made for the cluster: on the shared disk (relative to the home folder), in `/tmp`, `/dev/shm`.

        The last two are the login node's own: a node that is another machine is reached only inside an allocation.
        """
        name = shlex.quote(cluster_name)
        shared = f".sky_clusters/{name} .sky_clusters/{name}-* .sky_provision/{name}.sh .sky_provision/{name}-*.sh"
        answer = self.run(
            f"cd && for each in {shared} /tmp/{name} /tmp/{name}-* /dev/shm/{name} /dev/shm/{name}-*; do "
            f'[ -e "$each" ] && printf "%s\\n" "$each"; done; true'
        )
        return tuple(sorted({line for line in answer.splitlines() if _is_folder_of(line, cluster_name)}))

    def remove(self, folders: Iterable[str]) -> None:
        """Remove what `folders_of` found."""
        quoted = [shlex.quote(folder if folder.startswith("/") else f"./{folder}") for folder in folders]
        if quoted:
            self.run(f"cd && rm -rf -- {' '.join(quoted)}", limit_s=120)

    def tail(self, path: str, offset: int, limit_bytes: int = 1 << 20) -> bytes:
        """What a file below the home folder holds from `offset` on; nothing where it is not there."""
        name = shlex.quote(path)
        command = f"cd && [ -f {name} ] && tail -c +{offset + 1} -- {name} 2>/dev/null | head -c {limit_bytes}; true"
        return self._run(command, self.limit_s)

    def fetch(self, path: str, to: Path, limit_s: float = COPY_S) -> None:
        """Copy a folder below the home folder; regular files and folders alone."""
        fetch(["-F", str(self.config), self.cluster], path, to, limit_s)

    def run(self, command: str, limit_s: float | None = None) -> str:
        """What `command` prints on the login node; `BackendError` when it fails or takes too long."""
        return self._run(command, self.limit_s if limit_s is None else limit_s).decode("utf-8", "replace")

    def _run(self, command: str, limit_s: float) -> bytes:
        arguments = ["ssh", *_SSH_OPTIONS, "-F", str(self.config), self.cluster, command]
        return _completed(arguments, limit_s, f"the login node of Slurm cluster {self.cluster}")


def fetch(ssh: list[str], path: str, to: Path, limit_s: float) -> None:
    """Copy the folder `path` of the host at the end of `ssh` (options, then the host) into `to`."""
    to.mkdir(parents=True, exist_ok=True)
    *options, host = ssh
    shell = shlex.join(["ssh", *_SSH_OPTIONS, *options])
    arguments = ["rsync", "--recursive", "--times", "--protect-args", "-e", shell, f"{host}:{path}/", f"{to}/"]
    _completed(arguments, limit_s, f"copying {path} from {host}")


def read(ssh: list[str], path: str, limit_s: float = COMMAND_S, limit_bytes: int = 1 << 16) -> bytes:
    """The beginning of the file `path` of the host at the end of `ssh`; nothing where it is not there."""
    command = f"cd && head -c {limit_bytes} -- {shlex.quote(path)} 2>/dev/null; true"
    return _completed(["ssh", *_SSH_OPTIONS, *ssh, command], limit_s, f"reading {path} from {ssh[-1]}")


def slurm_config(home: Path | None) -> Path | None:
    """The ssh configuration of this machine's Slurm clusters, None where there is none."""
    path = None if home is None else home / ".slurm" / "config"
    return path if path is not None and path.is_file() else None


def hosts_of(config: Path) -> tuple[str, ...]:
    """The names of the Slurm clusters in an ssh configuration; patterns are none."""
    try:
        text = config.read_text("utf-8", "replace")
    except OSError:
        return ()
    names = [name for line in _HOST.findall(text) for name in line.split()]
    return tuple(name for name in names if not set("*?!") & set(name))


_SSH_OPTIONS = (
    "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "StrictHostKeyChecking=accept-new", "-o", "LogLevel=ERROR",
    "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
)  # fmt: skip
_GONE = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip
_FOLDERS = frozenset({".sky_clusters", ".sky_provision", "/tmp", "/dev/shm"})  # noqa: S108  # SkyPilot's, by name
_UNUSABLE = ("down", "drain", "fail", "boot", "inval", "maint", "no_resp", "unk", "powering")


def _completed(arguments: list[str], limit_s: float, where: str) -> bytes:
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise _unreachable(where, f"no answer within {limit_s:g}s") from error
    except OSError as error:
        raise _unreachable(where, f"{arguments[0]}: {error.strerror}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _unreachable(where, said[-1][:300] if said else f"exit code {done.returncode}")
    return done.stdout


def _unreachable(where: str, said: str) -> BackendError:
    return BackendError(
        f"{where} could not be asked: {said}",
        remedy="see that `ssh -F ~/.slurm/config CLUSTER squeue` works, and that the scheduler is up",
        answer=said,
    )


def _job(line: str) -> SlurmJob:
    job_id, state, limit, started_at, reason, tres, comment, name = line.split(_SEPARATOR)
    comment = "" if comment == "(null)" else comment
    return SlurmJob(job_id, name, state, _seconds(limit), started_at, reason, tres, comment)


def _seconds(limit: str) -> int | None:
    """`[days-][hours:]minutes:seconds` in seconds; None for `UNLIMITED` and the like."""
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _nodes(line: str) -> list[SlurmNode]:
    parts = line.split()
    if len(parts) != 4 or any(word in parts[1] for word in _UNUSABLE):
        return []
    name, state, gres, used = parts
    in_use = _gpus(used)
    return [SlurmNode(name, state, kind, total, in_use.get(kind, 0)) for kind, total in _gpus(gres).items()]


def _gpus(gres: str) -> dict[str, int]:
    """GPUs by kind of a Slurm GRES text: `gpu:H200:4(S:0-1),lustre:1` or `gpu:H200:2(IDX:0-1)`."""
    found: dict[str, int] = {}
    for kind, count in re.findall(r"\bgpu:(?:([A-Za-z][A-Za-z0-9._-]*):)?(\d+)", gres):
        found[kind] = found.get(kind, 0) + int(count)
    return found


def _is_folder_of(line: str, cluster_name: str) -> bool:
    folder, _, name = line.rpartition("/")
    return folder in _FOLDERS and is_of_cluster(name.removesuffix(".sh"), cluster_name)
