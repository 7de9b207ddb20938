"""Evidence from the volume claim that outlives the pod (`--sink pvc:CLAIM`): read by a small Job of the same run.

The run's container copies its sealed evidence there beside waiting for collection. When its pod is gone before anybody
came, a Job without GPUs mounts the claim read-only for a few minutes. It carries the run's token, so that teardown and
census know it, and needs no right that the run itself does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrate.backends.kubernetes_acquire import Creation
from orchestrate.backends.kubernetes_api import Kind, Object, name_of, uid_of
from orchestrate.backends.kubernetes_evidence import Container, EvidenceError
from orchestrate.backends.kubernetes_job import Wanted, digest_of
from orchestrate.backends.kubernetes_watch import Watch
from orchestrate.render.document import clone
from orchestrate.render.kubernetes import GPU_RESOURCE, QUEUE_LABEL, SINK_MOUNT, claim_and_folder
from orchestrate.render.text import dns_label

__all__ = ["Sealed", "reader_job", "take_from_sink"]

_LIFE_S = 300
_START_S = 60.0
_FETCH_S = 60.0


@dataclass(frozen=True, slots=True)
class Sealed:
    """What the claim held of the run."""

    sha256: str
    exit_code: int | None


def take_from_sink(chosen: Wanted, creation: Creation, into: Path, sleep: Callable[[float], None]) -> Sealed:
    """Bring the copy on the claim to the new folder `into`, verified by the digest that lies with it.

    Raises:
        EvidenceError: there is no whole copy, or it is not what was sealed.
        ApiError: the API failed.
        BackendError: the reader could not be made.
    """
    job = creation.create(Kind.JOB, reader_job(chosen.job, chosen.names.sink))
    watch = Watch(creation.api, chosen.names, uid_of(job), name=name_of(job))
    budget = creation.api.budget(_START_S)
    while True:
        watch.look(budget, tries=3)
        pod = watch.running_pod()
        if pod is not None:
            break
        if budget.left() <= 0:
            raise EvidenceError(f"nothing could mount the claim of {chosen.names.sink} within {_START_S:g}s")
        sleep(min(1.0, max(0.1, budget.left())))
    root = f"{_folder(chosen.names.sink)}/{_value(chosen.job, 'RUN_ID')}"
    found = Container(creation.api, chosen.names.namespace, name_of(pod)).fetch(
        into, creation.api.budget(_FETCH_S), root=root
    )
    try:
        said, code = digest_of((into / "ended").read_text("utf-8"))
    except OSError as error:
        raise EvidenceError(f"{chosen.names.sink} holds no whole copy of the run's evidence") from error
    if said != found:
        raise EvidenceError(f"what {chosen.names.sink} holds has the digest {found}, what was sealed {said}")
    return Sealed(found, code)


def reader_job(job: Mapping[str, Any], sink: str) -> Object:
    """`job` made into one that holds no GPU, waits for nothing, and only keeps the claim mounted."""
    reader: dict[str, Any] = clone(job)
    reader["metadata"]["name"] = dns_label(f"{job['metadata']['name']}-reader")
    reader["metadata"]["labels"].pop(QUEUE_LABEL, None)
    spec = reader["spec"]
    spec.pop("suspend", None)
    spec.update(activeDeadlineSeconds=_LIFE_S, ttlSecondsAfterFinished=0)
    pod = spec["template"]["spec"]
    pod.pop("priorityClassName", None)
    pod["terminationGracePeriodSeconds"] = 1
    claim, _ = claim_and_folder("--sink", sink)
    pod["volumes"] = [{"name": "sink", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]
    container = pod["containers"][0]
    container["command"] = ["/bin/sh", "-c", f"sleep {_LIFE_S} & trap 'exit 0' TERM; wait"]
    container["workingDir"] = "/"
    container["volumeMounts"] = [{"name": "sink", "mountPath": SINK_MOUNT, "readOnly": True}]
    container["resources"]["limits"].pop(GPU_RESOURCE, None)
    return reader


def _folder(sink: str) -> str:
    _, folder = claim_and_folder("--sink", sink)
    return f"{SINK_MOUNT}/{folder}" if folder else SINK_MOUNT


def _value(job: Object, name: str) -> str:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return next(str(each["value"]) for each in container["env"] if each["name"] == name).replace("$$", "$")
