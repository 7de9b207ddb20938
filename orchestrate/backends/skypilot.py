"""A run through SkyPilot's API server, on any infra that it knows: one cluster, one job, everything by request id.

The cluster's name carries the ownership token and is on disk before anything is asked for, so whatever a lost answer
left behind can be found: at the server by that name, on Slurm by the job's. Where this machine has a login of the
Slurm cluster, or the credentials of the Kubernetes context, it looks for itself; elsewhere SkyPilot's server is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrate.backends.catalogue import BackendPlace
from orchestrate.backends.protocol import (
    Acquisition,
    CensusPath,
    Collection,
    Fact,
    JobStatus,
    Look,
    Outcome,
    Ownership,
    Preflight,
    Request,
    Resource,
    Step,
    Submission,
    Usage,
)
from orchestrate.backends.skypilot_answers import is_gone, said
from orchestrate.backends.skypilot_availability import look_for_free
from orchestrate.backends.skypilot_calls import Calls
from orchestrate.backends.skypilot_caps import read_caps
from orchestrate.backends.skypilot_census import Census
from orchestrate.backends.skypilot_files import Files, ServerFiles, SlurmFiles
from orchestrate.backends.skypilot_known import Known
from orchestrate.backends.skypilot_launch import Launching
from orchestrate.backends.skypilot_marks import cluster_name
from orchestrate.backends.skypilot_pods import Pods, open_pods
from orchestrate.backends.skypilot_preflight import PreflightCheck
from orchestrate.backends.skypilot_refusals import Asked
from orchestrate.backends.skypilot_sdk import Sdk, SkyPilotSdk
from orchestrate.backends.skypilot_settings import SkySettings
from orchestrate.backends.skypilot_survey import SkySurveyor
from orchestrate.backends.skypilot_teardown import Teardown
from orchestrate.backends.skypilot_watch import Watch
from orchestrate.backends.slurm_login import SlurmLogin, hosts_of, slurm_config
from orchestrate.clock import from_wire, to_wire, utc_now
from orchestrate.errors import BackendError
from orchestrate.render.rendered import Rendered

__all__ = ["SkyPilotBackend", "open_backend", "open_surveyor"]


def open_backend(ownership: Ownership, settings: Mapping[str, Any], place: BackendPlace) -> SkyPilotBackend:
    """The backend of one run; imports nothing of SkyPilot yet."""
    chosen = SkySettings.parse(settings)
    login = _login_of(chosen, place.home)

    def pods() -> Pods | None:
        in_kubernetes = chosen.kind == "kubernetes" and chosen.place
        return open_pods(chosen.place, ownership.token, place.environ) if in_kubernetes else None

    return SkyPilotBackend(ownership, chosen, SkyPilotSdk(), login, place.home, pods=pods)


def open_surveyor(settings: Mapping[str, Any], place: BackendPlace) -> SkySurveyor:
    """What an audit asks: SkyPilot's server, and every Slurm cluster that this machine has a login for."""
    infra = settings.get("infra")
    return SkySurveyor(Calls(SkyPilotSdk()), _logins(place.home, infra), str(infra or "any infra"))


class SkyPilotBackend:
    """One run through SkyPilot.

    `login` is the direct way to its Slurm cluster, `pods` opens the one to its Kubernetes cluster; None for none.
    """

    name = "sky"
    teardown_reserve_s = 900.0
    poll_interval_s = 2.0

    def __init__(
        self,
        ownership: Ownership,
        settings: SkySettings,
        sdk: Sdk,
        login: SlurmLogin | None,
        home: Path | None,
        *,
        pods: Callable[[], Pods | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ownership = ownership
        self._settings = settings
        self._calls = Calls(sdk, clock)
        self._open_pods = pods
        self._pods: Pods | None = None
        self._clock = clock
        self._pause = pause
        self._known = Known(cluster_name(ownership.token, ownership.expires_at))
        self._login = login
        self._files: Files = (
            ServerFiles(self._calls, self._known, home) if self._login is None else SlurmFiles(self._login, self._known)
        )
        self._watch = Watch(self._calls, self._known, self._files, self._login, clock)
        self.census_path = CensusPath.VIA_SERVER if self._login is None else CensusPath.DIRECT
        self._asked = Asked(
            str(settings.accelerators),
            settings.infra or "any infra",
            lambda: look_for_free(settings, self._calls, self._login),
        )
        self._rendered: Rendered | None = None

    def spare(self, pid: int) -> None:
        """Nothing to spare: the run is on other machines."""

    def preflight(self, request: Request) -> Preflight:
        """See `Backend`."""
        check = PreflightCheck(self._calls, self._settings, self._login, self._asked)
        return check.run(request, self._render(request))

    def intent(self, request: Request) -> Fact:
        """The name of the cluster, and where its evidence will lie."""
        rendered = self._render(request)
        tree = rendered.documents[0].tree
        self._known.evidence = tree["envs"]["EVIDENCE_DIR"]
        self._known.job_limit_s = float(tree["envs"]["JOB_LIMIT_S"])
        return self._known.names(infra=self._settings.infra, manifest_sha256=rendered.documents[0].sha256)

    def acquire(self, request: Request, *, budget_s: float, pause: Callable[[float], None]) -> Acquisition:
        """Launch the cluster with its job, and read back the caps."""
        self.intent(request)
        rendered = self._render(request)
        wait_s = min(budget_s, self._settings.provision_timeout_s)
        launching = Launching(self._calls, self._known, self._login, self._asked, self._clock)
        upload_bytes = 0 if request.archive is None else request.archive.stat().st_size
        job, _ = launching.launch(
            rendered.documents[0].tree, wait_s=wait_s, budget_s=budget_s, pause=pause, upload_bytes=upload_bytes
        )
        read = read_caps(self._calls, self._known, self._login)
        resources = [Resource("sky-cluster", self._known.cluster), Resource("sky-job", str(job))]
        resources += [Resource("slurm-job", each) for each in read.slurm_jobs]
        return Acquisition(
            tuple(resources),
            requested={
                "accelerators": str(self._settings.accelerators),
                "infra": self._settings.infra,
                "device": request.device,
                "allocated": read.allocated,
            },
            manifest_sha256=rendered.documents[0].sha256,
            caps_read=read.caps,
        )

    def submit(self, request: Request, *, budget_s: float, lifeline_fd: int | None) -> Submission:
        """The job was submitted with the cluster; this says which it is."""
        del request, budget_s, lifeline_fd
        if self._known.job is None:
            raise BackendError("there is no job to wait for", remedy="launch again")
        job = Resource("sky-job", f"{self._known.cluster}/{self._known.job}")
        return Submission(job, self._known.job_limit_s)

    def poll(self) -> JobStatus:
        """See `Watch.poll`."""
        return self._watch.poll()

    def wake_fd(self) -> int | None:
        """There is none: the run is elsewhere."""
        return None

    def logs(self) -> str:
        """The last 4 KiB of what came home of the job's output."""
        texts = sorted(self._logs_folder().rglob("run.log"))
        if not texts:
            return ""
        return texts[-1].read_bytes()[-4096:].decode("utf-8", "replace")

    def stop(self) -> tuple[Step, ...]:
        """Cancel the job; the cluster keeps its evidence."""
        job = self._known.job
        if job is None:
            return (self._step("cancel-job", Outcome.NOTHING_THERE, "no job is known"),)
        if self._watch.ended:
            return (self._step("cancel-job", Outcome.NOTHING_THERE, "the job has ended"),)
        sdk, cluster = self._calls.sdk, self._known.cluster
        try:
            if self._login is not None and not self._login.jobs_of(self._known.name_there):
                return (self._step("cancel-job", Outcome.NOTHING_THERE, "the allocation is gone"),)
            self._calls.result("ending the job", lambda: sdk.cancel_job(cluster, job), STOP_S)
        except Exception as error:  # noqa: BLE001  # the release must follow
            outcome = Outcome.NOTHING_THERE if is_gone(error) else Outcome.FAILED
            return (self._step("cancel-job", outcome, said(error)),)
        return (self._step("cancel-job", Outcome.DONE, f"job {job}"),)

    def collect(self, request: Request) -> Collection:
        """Fetch evidence and logs; what can not be fetched is the problem of the collection."""
        problem = None
        try:
            self._files.evidence(request.evidence, COLLECT_S)
        except Exception as error:  # noqa: BLE001  # SkyPilot's exceptions have no common base
            problem = f"the evidence could not be fetched: {said(error)}"
        self._fetch_logs()
        return Collection(problem)

    def release(self) -> tuple[Step, ...]:
        """Logs first, for they go with the cluster; then the request, the cluster, and what is left of them."""
        self._fetch_logs()
        teardown = Teardown(
            self._calls,
            self._known.cluster,
            tuple(self._known.requests),
            self._login,
            on_slurm=self._known.name_there,
            pause=self._pause,
        )
        steps = teardown.release()
        if self._known.granted_at is not None and all(step.outcome is not Outcome.FAILED for step in steps):
            self._known.learn(released_at=to_wire(utc_now()))
        return steps

    def census(self) -> Look:
        """See `Census`. Which path it takes on Kubernetes is known once the cluster was asked what we may see there."""
        self._pods = self._pods or self._open_pods()
        more = () if self._pods is None else ((self._pods.what, self._pods.look),)
        if more:
            self.census_path = CensusPath.DIRECT
        return Census(self._calls, self._known.cluster, self._login, self._known.name_there, more).look()

    def usage(self) -> Usage:
        """GPU seconds from the grant to the end, and their price where SkyPilot knows one."""
        known = self._known
        image = {} if self._settings.image is None else {"asked": self._settings.image}
        if known.granted_at is None:
            return Usage(image=image)
        end = utc_now() if known.released_at is None else from_wire(known.released_at)
        held_s = max(0.0, (end - from_wire(known.granted_at)).total_seconds())
        cost = None if known.usd_per_hour is None else known.usd_per_hour * held_s / 3600
        return Usage(image=image, gpu_s=held_s * self._settings.accelerators.count, cost_usd=cost)

    def observed(self) -> tuple[Fact, ...]:
        """See `Known`."""
        return self._known.told()

    def recall(self, facts: Iterable[Fact]) -> None:
        """See `Known`."""
        self._known.recall(facts)

    def _render(self, request: Request) -> Rendered:
        if self._rendered is None:
            self._rendered = self._settings.render(self._ownership, request)
        return self._rendered

    def _logs_folder(self) -> Path:
        return self._ownership.run_dir / "logs" / "node"

    def _fetch_logs(self) -> None:
        """Best effort: a log is no result. They go where the run keeps its logs, also when only a recovery is left."""
        if self._logs_folder().exists() or (self._known.job is None and not self._known.requests):
            return
        with suppress(Exception):
            self._files.logs(self._logs_folder())

    def _step(self, step: str, outcome: Outcome, detail: str) -> Step:
        return Step(step, self._known.cluster, outcome, to_wire(utc_now()), detail)


STOP_S = 120.0
COLLECT_S = 600.0


def _login_of(settings: SkySettings, home: Path | None) -> SlurmLogin | None:
    if settings.kind != "slurm" or not settings.place:
        return None
    return next((login for login in _logins(home, settings.infra) if login.cluster == settings.place), None)


def _logins(home: Path | None, infra: str | None) -> tuple[SlurmLogin, ...]:
    """The Slurm clusters that this machine can log in to; of those alone that `infra` names, if it names one."""
    config = slurm_config(home)
    if config is None:
        return ()
    parts = (infra or "").split("/")
    if infra and parts[0].lower() != "slurm":
        return ()
    wanted = parts[1] if len(parts) > 1 else None
    return tuple(SlurmLogin(config, host) for host in hosts_of(config) if wanted in {None, "*", host})
