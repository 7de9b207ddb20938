"""The files of a run on its cluster: evidence and logs come home before the cluster goes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrate.backends.skypilot_calls import Calls
from orchestrate.backends.skypilot_known import Known
from orchestrate.backends.slurm_login import SlurmLogin, fetch, read
from orchestrate.errors import BackendError

__all__ = ["Files", "ServerFiles", "SlurmFiles"]

LOGS_S = 120.0
READ_S = 120.0
WORKDIR = "sky_workdir"


class Files(Protocol):
    """How the files of one cluster are reached."""

    def evidence(self, to: Path, limit_s: float) -> None:
        """Copy what the node wrote into `to`; `BackendError` when that is not possible."""

    def logs(self, to: Path) -> None:
        """Copy what SkyPilot kept of the job's output into `to`."""

    def progress(self, offset: int) -> bytes | None:
        """What the node's `node.jsonl` holds from `offset` on, None where that takes too long to ask."""

    def exit_code(self) -> int | None:
        """The exit code that the payload's wrapper wrote down, None where there is none."""


@dataclass(slots=True)
class SlurmFiles:
    """Over the login node of the Slurm cluster, whose disk is also the nodes': it works when the allocation is gone."""

    login: SlurmLogin
    known: Known

    def evidence(self, to: Path, limit_s: float) -> None:
        """See `Files`."""
        self.login.fetch(f"{self._home()}/{WORKDIR}/{self.known.evidence}", to, limit_s)

    def logs(self, to: Path) -> None:
        """See `Files`."""
        self.login.fetch(f"{self._home()}/sky_logs", to, LOGS_S)

    def progress(self, offset: int) -> bytes | None:
        """See `Files`."""
        if self.known.on_cloud is None:
            return None
        return self.login.tail(f"{self._home()}/{WORKDIR}/{self.known.evidence}/node.jsonl", offset)

    def exit_code(self) -> int | None:
        """See `Files`."""
        return _number(self.login.tail(f"{self._home()}/{WORKDIR}/{self.known.evidence}.exit", 0, 16))

    def _home(self) -> str:
        if self.known.on_cloud is None:
            found = [each for each in self.login.folders_of(self.known.cluster) if each.startswith(_CLUSTERS)]
            if len(found) != 1:
                raise BackendError(
                    f"{len(found)} folders of {self.known.cluster} lie on the Slurm cluster: nothing to fetch",
                    remedy="the cluster was deleted before its evidence was fetched; launch again",
                )
            self.known.learn(on_cloud=found[0].removeprefix(_CLUSTERS))
        return f"{_CLUSTERS}{self.known.on_cloud}"


@dataclass(slots=True)
class ServerFiles:
    """Through SkyPilot's server, for a cluster that only it can reach. `home` is where ssh's configuration lies."""

    calls: Calls
    known: Known
    home: Path | None
    _reachable: bool = False

    def evidence(self, to: Path, limit_s: float) -> None:
        """See `Files`."""
        fetch(self._ssh(), f"{WORKDIR}/{self.known.evidence}", to, limit_s)

    def logs(self, to: Path) -> None:
        """See `Files`."""
        job = self.known.job
        if job is None:
            return
        found = self.calls.call("the logs", lambda: self.calls.sdk.download_logs(self.known.cluster, job), LOGS_S)
        for folder in found.values():
            source = Path(folder.replace("~", str(self.home), 1) if self.home is not None else folder)
            shutil.copytree(source, to, dirs_exist_ok=True)
            shutil.rmtree(source, ignore_errors=True)

    def progress(self, offset: int) -> bytes | None:
        """See `Files`."""
        del offset
        return None

    def exit_code(self) -> int | None:
        """See `Files`."""
        return _number(read(self._ssh(), f"{WORKDIR}/{self.known.evidence}.exit", READ_S))

    def _ssh(self) -> list[str]:
        if not self._reachable:
            self.calls.call("the way to the node", lambda: self.calls.sdk.write_ssh_config(self.known.cluster), 120.0)
            self._reachable = True
        config = [] if self.home is None else ["-F", str(self.home / ".ssh" / "config")]
        return [*config, self.known.cluster]


_CLUSTERS = ".sky_clusters/"


def _number(data: bytes) -> int | None:
    text = data.strip()
    return int(text) if text.isdigit() else None
