"""The Kubernetes backend: a run is one Job, through the official client.

`acquire` creates the Job, then the ConfigMaps that it owns, and waits until its container runs. The container waits for
its evidence to be fetched; `poll` does that. `release` deletes the Job with its UID as a precondition, and `census`
asks the API for everything that carries the run's token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrate.backends.catalogue import BackendPlace
from orchestrate.backends.kubernetes_acquire import Creation, Start, caps_read
from orchestrate.backends.kubernetes_api import Api, Kind, Object, name_of, uid_of
from orchestrate.backends.kubernetes_census import Holdings, InFlight
from orchestrate.backends.kubernetes_client import ApiError, Transport, connect
from orchestrate.backends.kubernetes_collect import Collector
from orchestrate.backends.kubernetes_evidence import Container
from orchestrate.backends.kubernetes_job import KILL_AFTER_S, Names, Wanted, owned_by, provision_s, wanted
from orchestrate.backends.kubernetes_log import KeptLog
from orchestrate.backends.kubernetes_preflight import Site, look_around
from orchestrate.backends.kubernetes_sink import Sealed, take_from_sink
from orchestrate.backends.kubernetes_status import Held, status_of
from orchestrate.backends.kubernetes_survey import KubernetesSurveyor
from orchestrate.backends.kubernetes_watch import Watch
from orchestrate.backends.protocol import (
    Acquisition,
    Answer,
    CensusPath,
    Collection,
    Fact,
    JobState,
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
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import BackendError, OrchestrateError, UnsatisfiableError
from orchestrate.render.archive import HarnessArchive

__all__ = ["KubernetesBackend", "open_backend", "open_surveyor"]

_POLL_S = 8.0
_STOP_S = 15.0
_YOUNG_S = 300.0


def open_backend(ownership: Ownership, settings: Mapping[str, Any], place: BackendPlace) -> KubernetesBackend:
    """The backend of one run; nothing is asked of a cluster yet."""
    return KubernetesBackend(ownership, settings, lambda context: connect(context, place.environ))


def open_surveyor(settings: Mapping[str, Any], place: BackendPlace) -> KubernetesSurveyor:
    """What an audit asks. Raises `UnsatisfiableError` where no cluster is configured."""
    context = settings.get("context")
    transport = connect(None if context is None else str(context), place.environ)
    return KubernetesSurveyor(Api(transport), settings.get("namespace"))


class KubernetesBackend:
    """One run on one cluster. See `protocol.Backend` for what each call means."""

    name = "k8s"
    census_path = CensusPath.DIRECT
    teardown_reserve_s = 150.0
    """Ending the payload and fetching its evidence, up to 90 s for its pod to go, and a census of two looks."""

    def __init__(
        self,
        ownership: Ownership,
        settings: Mapping[str, Any],
        connecting: Callable[[str | None], Transport],
        *,
        archive: HarnessArchive | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._ownership = ownership
        self._settings = settings
        self._connecting = connecting
        self._archive = archive
        self._clock = clock
        self._sleep = sleep
        self._api: Api | None = None
        self._names: Names | None = None
        self._wanted: Wanted | None = None
        self._site: Site | None = None
        self._watch: Watch | None = None
        self._uids: dict[str, str] = {}
        self._in_flight = InFlight(now=now)
        self._news: list[Fact] = []
        self._collector = Collector(self._news.append, sleep)
        self._held = Held()
        self._recalled = self._stopped = False
        self._log = KeptLog(clock)
        self._submitted_at = 0.0

    @property
    def poll_interval_s(self) -> float:
        """Two seconds, five in a long run; half of one once only the Job's own condition is waited for."""
        if self._collector.sealed is not None:
            return 0.5
        return 2.0 if self._clock() - self._submitted_at < _YOUNG_S else 5.0

    def spare(self, pid: int) -> None:
        """Nothing of a run on a cluster is a process here."""

    def preflight(self, request: Request) -> Preflight:
        """Version, namespace, rights, quota and nodes, without creating anything."""
        if request.corpora_not_given:
            raise UnsatisfiableError(
                f"the cells need the private corpus {', '.join(request.corpora_not_given)}, which was not given",
                remedy="give --corpus pvc:CLAIM/PATH with --corpus-sha256, or leave those cells out",
            )
        chosen = self._render(request)
        names = chosen.names
        self._site = look_around(
            self._connected(),
            chosen.job,
            namespace=names.namespace,
            queue=self._settings.get("queue"),
            asked=chosen.asked,
        )
        image = chosen.rendered.image
        return Preflight(
            device=request.device,
            facts={
                "kubernetes": self._site.version,
                "context": names.context,
                "namespace": names.namespace,
                "gpus": list(self._site.gpus),
                "image": None if image is None else {"reference": image.text, "pinned": image.pinned},
            },
            caps={
                "job": f"timeout -k {KILL_AFTER_S} {chosen.job_limit_s}",
                "activeDeadlineSeconds": chosen.job["spec"]["activeDeadlineSeconds"],
                "ttlSecondsAfterFinished": chosen.job["spec"]["ttlSecondsAfterFinished"],
                "owner": "the Job owns the ConfigMaps by its UID",
            },
            fingerprint={
                "server": names.server,
                "kubernetes": self._site.version,
                "namespace": names.namespace,
                "namespace_uid": self._site.namespace_uid,
            },
        )

    def intent(self, request: Request) -> Fact:
        """The names of the Job and its ConfigMaps, and the server that will be asked."""
        self._names = self._render(request).names
        return self._names.as_fact()

    def acquire(self, request: Request, *, budget_s: float, pause: Callable[[float], None]) -> Acquisition:
        """Create the Job, then what it owns; wait until the container runs."""
        chosen = self._render(request)
        self._names = chosen.names
        self._collector.into(request.evidence)
        creation = self._creation(chosen, pause)
        began = self._clock()
        job = creation.create(Kind.JOB, chosen.job)
        self._watch = self._watching(uid_of(job))
        caps = caps_read(chosen.job, job, accept_no_cap=bool(self._settings.get("accept_no_cap")))
        maps = [creation.create(Kind.CONFIG_MAP, each) for each in chosen.config_maps(job)]
        patience_s = min(budget_s, provision_s(request, self._settings)) - (self._clock() - began)
        Start(self._watch, chosen.asked, chosen.names.where, pause, self._clock).wait(max(0.0, patience_s))
        made = [(Kind.JOB, job), *((Kind.CONFIG_MAP, each) for each in maps)]
        pod = self._watch.pod()
        if pod is not None:
            self._note(pod)
            made.append((Kind.POD, pod))
        return Acquisition(
            resources=tuple(Resource(kind.singular, self._target(each)) for kind, each in made),
            requested={**chosen.asked, "device": request.device, "ranks": request.ranks},
            manifest_sha256=chosen.manifest_sha256,
            caps_read=caps,
        )

    def submit(self, request: Request, *, budget_s: float, lifeline_fd: int | None) -> Submission:  # noqa: ARG002  # the Job has started already, under its own limit
        """The Job runs already; nothing is created."""
        self._submitted_at = self._clock()
        chosen = self._render(request)
        return Submission(Resource("job", f"{chosen.names.namespace}/{chosen.names.job}"), chosen.job_limit_s)

    def poll(self) -> JobStatus:
        """Look at Job and pod; fetch the evidence when the payload has ended. An outage is no end."""
        watch = self._watch
        if watch is None:
            return JobStatus(JobState.WAITING)
        progress: tuple[Mapping[str, Any], ...] = ()
        try:
            watch.look(watch.api.budget(_POLL_S))
            pod = watch.pod()
            if pod is not None:
                self._note(pod)
            self._log.keep(watch)
            progress = self._collector.advance(watch)
            return status_of(watch, progress, told_to_stop=self._stopped)
        except ApiError:
            return JobStatus(JobState.RUNNING, progress=progress)

    def wake_fd(self) -> int | None:
        """There is none."""
        return None

    def logs(self) -> str:
        """The last 4 KiB of what the container printed, as far as they were read while it could be."""
        return self._log.text[-4096:]

    def stop(self) -> tuple[Step, ...]:
        """Tell the payload to end; its container seals the evidence and waits for it to be fetched."""
        try:
            watch = self._found()
            if watch is None:
                return (self._step("end-payload", Outcome.NOTHING_THERE, "there is no Job"),)
            budget = watch.api.budget(_STOP_S)
            watch.look(budget, tries=3)
            pod = watch.running_pod()
            if pod is None:
                return (self._step("end-payload", Outcome.NOTHING_THERE, "no container runs"),)
            self._stopped = True
            told = Container(watch.api, watch.names.namespace, name_of(pod)).end_payload(budget)
        except (ApiError, OrchestrateError) as error:
            self._collector.must_end = True
            return (self._step("end-payload", Outcome.FAILED, str(error)),)
        said = "got SIGTERM" if told else "had ended before"
        return (self._step("end-payload", Outcome.DONE if told else Outcome.NOTHING_THERE, f"the payload {said}"),)

    def collect(self, request: Request) -> Collection:
        """The evidence, verified, to `request.evidence`, and the log beside it."""
        if self._recalled:
            self._collector.verify_recalled(request.evidence)
        try:
            watch = self._found()
        except (ApiError, OrchestrateError) as error:
            self._collector.problem = f"the Job can not be looked for: {error}"
            watch = self._watch
        if watch is not None:
            self._log.keep(watch, now=True)
        self._log.save(request.logs)
        sink = None if self._names is None or not self._names.sink else lambda into: self._take_from_sink(request, into)
        return Collection(self._collector.bring_home(watch, request.evidence, sink))

    def release(self) -> tuple[Step, ...]:
        """Delete the Job and whatever else carries the run's token."""
        if self._names is None:
            return ()
        try:
            return self._holdings().release()
        except OrchestrateError as error:
            return (self._step("delete-job", Outcome.FAILED, error.cause),)

    def census(self) -> Look:
        """Ask the API for every kind by token, and for every name."""
        if self._names is None:
            return Look(to_wire(utc_now()), (Answer("names of the run", "none were chosen"),), (), ())
        try:
            return self._holdings().look()
        except OrchestrateError as error:
            return Look(to_wire(utc_now()), (), (), (error.cause,))

    def usage(self) -> Usage:
        """The image that ran, the node, and for how long the GPUs were held."""
        reference = self._settings.get("image")
        if reference is None and self._wanted is not None and self._wanted.rendered.image is not None:
            reference = self._wanted.rendered.image.text
        return Usage(
            notes={"pod": self._held.pod, "node": self._held.node},
            image={"asked": reference, "ran": self._held.image_id},
            gpu_s=self._held.seconds(utc_now()) * (0 if self._names is None else self._names.gpus),
        )

    def observed(self) -> tuple[Fact, ...]:
        """Creates begun and answered, UIDs, the pod, and that the evidence was fetched."""
        news = tuple(self._news)
        self._news.clear()
        return news

    def recall(self, facts: Iterable[Fact]) -> None:
        """Names, UIDs, creates without an answer, the pod, and the fetched evidence."""
        self._recalled = True
        for fact in facts:
            match fact.get("kind"):
                case "names":
                    self._names = Names.of_fact(fact)
                case "asking":
                    self._in_flight.until[str(fact["what"])] = float(fact["until"])
                case "answered":
                    self._in_flight.until.pop(str(fact["what"]), None)
                case "made":
                    self._uids[str(fact["uid"])] = str(fact["what"])
                case "held":
                    self._held = Held.of_fact(fact)
                case "evidence":
                    self._collector.recall(fact)
                case _:
                    continue

    def _render(self, request: Request) -> Wanted:
        if self._wanted is None:
            transport = self._connected().transport
            self._wanted = wanted(
                request,
                self._settings,
                self._ownership,
                namespace=str(self._settings.get("namespace") or transport.namespace),
                server=transport.server,
                context=transport.context,
                archive=self._archive,
            )
        return self._wanted

    def _connected(self) -> Api:
        """The connection, by the way that the run was launched on; never to another server than the run is on."""
        if self._api is None:
            context = self._settings.get("context") or (self._names.context if self._names is not None else None)
            transport = self._connecting(str(context) if context else None)
            if self._names is not None and transport.server != self._names.server:
                raise BackendError(
                    f"the run is on {self._names.server}, but the kubeconfig here leads to {transport.server}",
                    remedy="point KUBECONFIG at the cluster that the run was launched on",
                )
            self._api = Api(transport, clock=self._clock, sleep=self._sleep)
        return self._api

    def _watching(self, uid: str) -> Watch:
        names = self._names
        if names is None:
            raise BackendError("the run has no names yet", remedy="report this: a Job was made before its names were")
        rights = self._site.rights if self._site is not None else None
        return Watch(
            self._connected(),
            names,
            uid,
            sees_nodes=rights is not None and rights.nodes,
            sees_foreign_pods=rights is not None and rights.foreign_pods,
            sees_quotas=rights is not None and rights.quotas,
            sees_workloads=rights is not None and rights.workloads,
        )

    def _creation(self, chosen: Wanted, pause: Callable[[float], None]) -> Creation:
        return Creation(self._connected(), chosen, self._ownership.token, self._in_flight, self._tell, pause)

    def _take_from_sink(self, request: Request, into: Path) -> Sealed:
        chosen = self._render(request)
        return take_from_sink(chosen, self._creation(chosen, self._sleep), into, self._sleep)

    def _found(self) -> Watch | None:
        """The run's Job: known, or looked for by name and token. None where there is none."""
        if self._watch is None and self._names is not None:
            api = self._connected()
            known = next((uid for uid, kind in self._uids.items() if kind == Kind.JOB.singular), None)
            job = api.find(Kind.JOB, self._names.namespace, self._names.job, api.budget(_STOP_S))
            if job is not None and (uid_of(job) == known or owned_by(job, self._ownership.token)):
                self._watch = self._watching(uid_of(job))
                self._watch.look(api.budget(_STOP_S), tries=3)
        return self._watch

    def _holdings(self) -> Holdings:
        names = self._names
        if names is None:
            raise BackendError("the run has no names", remedy="its journal ends before anything was asked for")
        return Holdings(
            self._connected(),
            names,
            self._ownership.token,
            self._in_flight,
            frozenset(self._uids),
            self._sleep,
        )

    def _tell(self, fact: Fact) -> None:
        if fact["kind"] == "made":
            self._uids[str(fact["uid"])] = str(fact["what"])
        self._news.append(fact)

    def _note(self, pod: Object) -> None:
        held = Held.of_pod(pod)
        if held != self._held:
            self._held = held
            self._news.append(held.as_fact())

    def _target(self, thing: Object) -> str:
        namespace = self._names.namespace if self._names is not None else ""
        return f"{namespace}/{name_of(thing)} uid {uid_of(thing)}"

    def _step(self, step: str, outcome: Outcome, detail: str) -> Step:
        target = "the run" if self._names is None else f"{self._names.namespace}/{self._names.job}"
        return Step(step, target, outcome, to_wire(utc_now()), detail)
