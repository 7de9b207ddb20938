"""A run as one Job: what is rendered for it, under which names, and how what the API gives back is known as ours."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from orchestrate.backends.kubernetes_api import Object, labels_of
from orchestrate.backends.protocol import Fact, Ownership, Request
from orchestrate.clock import from_wire
from orchestrate.errors import BackendError, UnsatisfiableError
from orchestrate.render.archive import HarnessArchive
from orchestrate.render.image import parse_image
from orchestrate.render.kubernetes import QUEUE_LABEL
from orchestrate.render.ownership import PREFIX
from orchestrate.render.qualification import QualificationFiles
from orchestrate.render.rendered import Rendered, render
from orchestrate.render.request import Accelerators, Corpus, RenderRequest, Toleration
from orchestrate.render.templates import Backend

__all__ = ["KILL_AFTER_S", "Names", "Wanted", "accelerators_of", "digest_of", "owned_by", "provision_s", "wanted"]

KILL_AFTER_S = 30
"""How long the payload has between SIGTERM and SIGKILL: `KILL_AFTER_S` of the template."""

_KNOWN_ENVIRONMENT = frozenset({"CELL_SET", "RUN_ID", "REPEAT", "SCHEDULE", "CELL_KEYS", "CORPUS", "CORPUS_SHA256"})
_SEAL_S = 10
_LEAST_WAIT_S, _MOST_WAIT_S = 30.0, 600.0


@dataclass(frozen=True, slots=True)
class Names:
    """Where everything of a run is, and how it is called. `server` is the API server, `context` the way to it."""

    namespace: str
    job: str
    config_maps: tuple[str, ...]
    server: str
    context: str
    accelerators: str
    sink: str

    @property
    def gpus(self) -> int:
        """How many GPUs are held."""
        return Accelerators.parse(self.accelerators).count

    @property
    def where(self) -> str:
        """Context and namespace, for people."""
        return f"{self.context or 'in-cluster'}/{self.namespace}"

    def as_fact(self) -> Fact:
        """For the journal, before anything is asked for."""
        return {
            "kind": "names",
            "namespace": self.namespace,
            "job": self.job,
            "config_maps": list(self.config_maps),
            "server": self.server,
            "context": self.context,
            "accelerators": self.accelerators,
            "sink": self.sink,
        }

    @classmethod
    def of_fact(cls, fact: Fact) -> Names:
        """What `as_fact` wrote."""
        return cls(
            namespace=str(fact["namespace"]),
            job=str(fact["job"]),
            config_maps=tuple(fact["config_maps"]),
            server=str(fact["server"]),
            context=str(fact["context"]),
            accelerators=str(fact["accelerators"]),
            sink=str(fact["sink"]),
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is created: the Job first, then the ConfigMaps that it owns."""

    names: Names
    rendered: Rendered
    job_limit_s: int
    accelerators: Accelerators

    @property
    def job(self) -> Object:
        """The Job as it is sent."""
        return self.rendered.documents[0].tree

    @property
    def manifest_sha256(self) -> str:
        """Of the YAML of all documents."""
        return hashlib.sha256(self.rendered.text.encode("utf-8")).hexdigest()

    @property
    def asked(self) -> dict[str, Any]:
        """What is asked for, for a receipt or a case."""
        image, pod = self.rendered.image, self.job["spec"]["template"]["spec"]
        asked = {
            "namespace": self.names.namespace,
            "accelerators": self.names.accelerators,
            "image": None if image is None else image.text,
            "queue": self.job["metadata"]["labels"].get(QUEUE_LABEL),
            "priority_class": pod.get("priorityClassName"),
            "node_selector": pod.get("nodeSelector"),
        }
        return {name: value for name, value in asked.items() if value is not None}

    def config_maps(self, job: Object) -> tuple[Object, ...]:
        """The ConfigMaps, owned by `job` as the API gave it back: they go when it goes, also by its TTL."""
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job["metadata"]["name"],
            "uid": job["metadata"]["uid"],
        }
        return tuple(
            {**document.tree, "metadata": {**document.tree["metadata"], "ownerReferences": [owner]}}
            for document in self.rendered.documents[1:]
        )


def wanted(
    request: Request,
    settings: Mapping[str, Any],
    ownership: Ownership,
    *,
    namespace: str,
    server: str,
    context: str,
    archive: HarnessArchive | None = None,
) -> Wanted:
    """Render the Job of a run, with the harness in `archive` or the one beside this package.

    The same arguments give the same bytes.

    Raises:
        UsageError: an option does not fit its field, the deadline leaves no time for the cells, or the source of a
            qualification is too large for ConfigMaps.
        UnsatisfiableError: a corpus that is on this machine alone.
    """
    accelerators = accelerators_of(request, settings)
    known = dict(request.environment)
    variables = [name for name in known if name not in _KNOWN_ENVIRONMENT]
    waiting = provision_s(request, settings)
    collect_wait_s = _collect_wait_s(request, settings)
    reserve_s = max(request.reserve_s, KILL_AFTER_S + collect_wait_s + _SEAL_S) + waiting
    made = RenderRequest(
        run_id=ownership.run_id,
        cell_set=request.cell_set,
        cells=request.cells,
        group_variable=variables[0] if variables else None,
        groups=tuple(known[variables[0]].replace(",", " ").split()) if variables else None,
        repeat=int(known.get("REPEAT", "8")),
        schedule=known.get("SCHEDULE", "fixed"),
        cell_keys=tuple(known["CELL_KEYS"].split()) if "CELL_KEYS" in known else None,
        slots=accelerators.count if request.device != "cpu" else request.ranks,
        deadline_s=math.ceil(request.deadline_s),
        reserve_s=math.ceil(reserve_s),
        ttl_s=int(settings.get("ttl_s") or 3600),
        collect_wait_s=collect_wait_s,
        owner=ownership.owner,
        token=ownership.token,
        expires_at=from_wire(ownership.expires_at).astimezone(UTC),
        image=parse_image(str(settings["image"])) if settings.get("image") else None,
        accelerators=accelerators,
        cpus=settings.get("cpus"),
        memory_gib=settings.get("memory_gib"),
        corpus=_corpus(request, settings),
        namespace=namespace,
        node_selector=_pairs(settings.get("node_selector")),
        tolerations=_tolerations(settings.get("tolerations")),
        queue=settings.get("queue"),
        priority_class=settings.get("priority_class"),
        sink=settings.get("sink"),
        qualification=_qualification(request, settings),
    )
    rendered = render(Backend.K8S, made, archive=archive)
    documents = [document.tree["metadata"]["name"] for document in rendered.documents]
    names = Names(
        namespace=namespace,
        job=documents[0],
        config_maps=tuple(documents[1:]),
        server=server,
        context=context,
        accelerators=str(accelerators),
        sink=str(settings.get("sink") or ""),
    )
    return Wanted(names, rendered, made.job_limit_s, accelerators)


def accelerators_of(request: Request, settings: Mapping[str, Any]) -> Accelerators:
    """The GPUs to ask for: what was chosen; else as many H200 as the largest cell takes; none for ranks on a CPU.

    `UnsatisfiableError` where the cells need H200 and others, or too few, were chosen.
    """
    text = settings.get("accelerators")
    if not text:
        return Accelerators("none", 0) if request.device == "cpu" else Accelerators("H200", request.ranks)
    chosen = Accelerators.parse(str(text))
    if request.device != "cpu" and (chosen.kind != "H200" or chosen.count < request.ranks):
        raise UnsatisfiableError(
            f"--accelerators {chosen}: the cells of {request.cell_set!r} need at least H200:{request.ranks}",
            remedy=f"give --accelerators H200:{request.ranks}, or select other cells",
        )
    return chosen


def provision_s(request: Request, settings: Mapping[str, Any]) -> float:
    """How long one try may wait for GPUs: what was chosen, else a quarter of the time, at most 10 minutes."""
    chosen = settings.get("provision_timeout_s")
    if chosen is not None:
        return float(chosen)
    return min(_MOST_WAIT_S, max(_LEAST_WAIT_S, 0.25 * (request.deadline_s - request.reserve_s)))


def owned_by(thing: Object, token: str) -> bool:
    """Whether an object carries the ownership token of a run."""
    return labels_of(thing).get(f"{PREFIX}token") == token


def digest_of(message: str | None) -> tuple[str | None, int | None]:
    """Digest of the evidence and exit code of the payload, as the Job's script writes them; None where it did not."""
    try:
        tree = json.loads(message or "")
        digest, code = tree["evidence_sha256"], tree["exit_code"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, None
    return (digest if isinstance(digest, str) else None), (code if isinstance(code, int) else None)


def _collect_wait_s(request: Request, settings: Mapping[str, Any]) -> int:
    """How long the container holds its GPUs for whoever collects the evidence: an outage of the API may last."""
    chosen = settings.get("collect_wait_s")
    if chosen is not None:
        return int(chosen)
    return int(min(300.0, max(30.0, request.reserve_s - KILL_AFTER_S - _SEAL_S, 0.05 * request.deadline_s)))


def _corpus(request: Request, settings: Mapping[str, Any]) -> Corpus | None:
    chosen = settings.get("corpus")
    if chosen and str(chosen["location"]).startswith("pvc:"):
        return Corpus(str(chosen["location"]).removeprefix("pvc:"), chosen.get("sha256"))
    if chosen or request.environment.get("CORPUS"):
        raise UnsatisfiableError(
            "the corpus is not on a volume claim of the cluster, and private text travels no other way",
            remedy="put it on a claim and give --corpus pvc:CLAIM/PATH with --corpus-sha256",
        )
    return None


def _qualification(request: Request, settings: Mapping[str, Any]) -> QualificationFiles | None:
    if request.groups is None or request.archive is None:
        return None
    return QualificationFiles(request.groups, request.archive, settings.get("source_claim"))


def _pairs(selector: Mapping[str, str] | None) -> tuple[tuple[str, str], ...] | None:
    return None if selector is None else tuple((str(key), str(value)) for key, value in selector.items())


def _tolerations(texts: Any) -> tuple[Toleration, ...] | None:
    if texts is None:
        return None
    if not isinstance(texts, list | tuple):
        raise BackendError("`tolerations` of the plan is no list", remedy="launch again with this version")
    return tuple(Toleration.parse(str(text)) for text in texts)
