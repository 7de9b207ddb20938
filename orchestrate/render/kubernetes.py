"""A cell set, or a qualification, as a Kubernetes Job, and the ConfigMaps that carry the harness and a source to it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence

from orchestrate.errors import RenderError, UsageError
from orchestrate.render.archive import HarnessArchive
from orchestrate.render.document import Document, Tree, clone, dump
from orchestrate.render.ownership import kubernetes_annotations, kubernetes_labels, resource_name
from orchestrate.render.request import RenderRequest, Toleration
from orchestrate.render.schema import check_manifest
from orchestrate.render.text import escape_dollars

__all__ = ["GPU_RESOURCE", "QUEUE_LABEL", "SINK_MOUNT", "claim_and_folder", "render_job", "template_image"]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Names the LocalQueue of Kueue that a Job waits in."""

GPU_RESOURCE = "nvidia.com/gpu"
SINK_MOUNT = "/sink"
_CORPUS_MOUNT = "/corpus"
_SOURCE_MOUNT = "/source"
_SOURCE_CLAIM_MOUNT = "/source-claim"
_GPU_PRODUCT = "nvidia.com/gpu.product"
_CLAIM = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def render_job(request: RenderRequest, template: Tree, archive: HarnessArchive) -> tuple[Document, ...]:
    """The Job for `request`, then its ConfigMaps; `RenderError` if one does not hold the Kubernetes schema.

    The Job is first so that it can be made the owner of the rest: its pod waits until the ConfigMaps are there.
    """
    name = resource_name(request)
    harness_maps, source_maps = _harness_maps(request, archive, name), _source_maps(request, name)
    tree = clone(template)
    tree["metadata"]["name"] = name
    if request.namespace is not None:
        tree["metadata"]["namespace"] = request.namespace
    tree["metadata"]["labels"].update(kubernetes_labels(request))
    tree["metadata"]["annotations"].update(kubernetes_annotations(request))
    spec = tree["spec"]
    spec["activeDeadlineSeconds"] = request.deadline_s
    spec["ttlSecondsAfterFinished"] = request.ttl_s
    spec["template"]["metadata"]["labels"].update(kubernetes_labels(request))
    if request.queue is not None:  # Kueue lets it go on; without Kueue it would start unmanaged, so it is held
        tree["metadata"]["labels"][QUEUE_LABEL] = request.queue
        spec["suspend"] = True
    _set_pod(spec["template"]["spec"], request, _names(harness_maps), _names(source_maps))
    _set_container(spec["template"]["spec"]["containers"][0], request, archive)
    documents = []
    for document in (tree, *harness_maps, *source_maps):
        title = f"{document['kind']} {document['metadata']['name']}"
        check_manifest(document, title)
        documents.append(Document(name=title, tree=document, text=dump(document)))
    return tuple(documents)


def template_image(template: Tree) -> str:
    """The image that the template names, which runs unless the request names another."""
    return str(template["spec"]["template"]["spec"]["containers"][0]["image"])


def claim_and_folder(option: str, text: str) -> tuple[str, str]:
    """Claim and folder of `pvc:CLAIM[/FOLDER]`; the folder may be empty. `UsageError` for anything else."""
    claim, _, folder = text.removeprefix("pvc:").partition("/")
    parts = folder.split("/") if folder else []
    if not text.startswith("pvc:") or not _CLAIM.fullmatch(claim) or any(part in {"", ".", ".."} for part in parts):
        raise UsageError(f"{option} {text[:200]!r} names no volume claim", remedy=f"give {option} pvc:CLAIM[/FOLDER]")
    return claim, folder


def _harness_maps(request: RenderRequest, archive: HarnessArchive, job: str) -> list[Tree]:
    return _chunk_maps(request, job, "harness", archive.sha256, archive.chunks)


def _source_maps(request: RenderRequest, job: str) -> list[Tree]:
    """The groups of a qualification, and its source unless that lies on a claim; none where cells run."""
    files = request.qualification
    if files is None:
        return []
    sha256 = files.groups_sha256
    groups = _config_map(request, f"{job}-groups-{sha256[:12]}", {"orchestrate/groups-sha256": sha256})
    groups["data"] = {"groups.json": files.groups_text()}
    return [groups, *_chunk_maps(request, job, "source", files.archive_sha256, files.chunks())]


def _chunk_maps(request: RenderRequest, job: str, what: str, sha256: str, chunks: Sequence[bytes]) -> list[Tree]:
    """One ConfigMap for each chunk; the content's hash is in the name, so that a name never means other bytes."""
    maps = []
    for index, chunk in enumerate(chunks):
        tree = _config_map(request, f"{job}-{what}-{sha256[:12]}-{index}", {f"orchestrate/{what}-sha256": sha256})
        tree["binaryData"] = {f"{what}.tar.gz.{index:03d}": base64.b64encode(chunk).decode("ascii")}
        maps.append(tree)
    return maps


def _config_map(request: RenderRequest, name: str, annotations: Mapping[str, str]) -> Tree:
    metadata: Tree = {"name": name, "labels": kubernetes_labels(request), "annotations": dict(annotations)}
    if request.namespace is not None:
        metadata["namespace"] = request.namespace
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True}


def _names(config_maps: Sequence[Tree]) -> list[str]:
    return [config_map["metadata"]["name"] for config_map in config_maps]


def _projected(name: str, config_maps: Sequence[str]) -> Tree:
    sources = [{"configMap": {"name": each}} for each in config_maps]
    return {"name": name, "projected": {"defaultMode": 0o444, "sources": sources}}


def _set_pod(pod: Tree, request: RenderRequest, harness_maps: Sequence[str], source_maps: Sequence[str]) -> None:
    if request.node_selector is not None:
        pod["nodeSelector"] = dict(request.node_selector)
    elif request.accelerators.of_any_kind:
        pod["nodeSelector"].pop(_GPU_PRODUCT, None)
    elif _GPU_PRODUCT in pod["nodeSelector"]:
        pod["nodeSelector"][_GPU_PRODUCT] = f"NVIDIA-{request.accelerators.kind}"
    if request.tolerations is not None:
        pod["tolerations"] = [_toleration(toleration) for toleration in request.tolerations]
    elif request.accelerators.count == 0:  # a Job without GPUs must not land on their nodes
        pod["tolerations"] = [each for each in pod.get("tolerations", []) if each.get("key") != GPU_RESOURCE]
    if request.priority_class is not None:
        pod["priorityClassName"] = request.priority_class
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    if "projected" not in volumes.get("harness", {}):
        raise RenderError(
            "the Job template has no projected volume 'harness'", remedy="restore the template, or correct it there"
        )
    volumes["harness"]["projected"]["sources"] = [{"configMap": {"name": name}} for name in harness_maps]
    if request.qualification is not None:
        pod["volumes"].append(_projected("source", source_maps))
        if request.qualification.claim is not None:
            claim, _ = claim_and_folder("--source-claim", request.qualification.claim)
            pod["volumes"].append(_claim_volume("source-claim", claim))
    if request.corpus is not None:
        claim, _ = _claim_and_path(request.corpus.location)
        pod["volumes"].append(_claim_volume("corpus", claim))
    if request.sink is not None:
        claim, _ = claim_and_folder("--sink", request.sink)
        pod["volumes"].append({"name": "sink", "persistentVolumeClaim": {"claimName": claim}})


def _claim_volume(name: str, claim: str) -> Tree:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


def _set_container(container: Tree, request: RenderRequest, archive: HarnessArchive) -> None:
    if request.image is not None:
        container["image"] = request.image.text
    requests = container["resources"]["requests"]
    if request.cpus is not None:
        requests["cpu"] = str(request.cpus)
    if request.memory_gib is not None:
        requests["memory"] = f"{request.memory_gib}Gi"
    if request.accelerators.count:
        container["resources"]["limits"][GPU_RESOURCE] = request.accelerators.count
    else:
        del container["resources"]["limits"][GPU_RESOURCE]
    values = {
        **_payload_values(container, request),
        "RUN_ID": request.run_id,
        "JOB_LIMIT_S": str(request.job_limit_s),
        "COLLECT_WAIT_S": str(request.collect_wait_s),
        "HARNESS_SHA256": archive.sha256,
    }
    if request.slots is not None:
        values["PROCS"] = str(request.slots)
    if request.corpus is not None:
        _, path = _claim_and_path(request.corpus.location)
        values["CORPUS"] = f"{_CORPUS_MOUNT}/{path}"
        if request.corpus.sha256 is not None:
            values["CORPUS_SHA256"] = request.corpus.sha256
        container["volumeMounts"].append({"name": "corpus", "mountPath": _CORPUS_MOUNT, "readOnly": True})
    if request.sink is not None:
        _, folder = claim_and_folder("--sink", request.sink)
        values["SINK_DIR"] = f"{SINK_MOUNT}/{folder}" if folder else SINK_MOUNT
        values["SINK_LIMIT_S"] = str(max(1, request.collect_wait_s))
        container["volumeMounts"].append({"name": "sink", "mountPath": SINK_MOUNT})
    _set_env(container["env"], values)


def _payload_values(container: Tree, request: RenderRequest) -> dict[str, str]:
    """What to run: cells, or command groups, which must not see the environment of cells."""
    files = request.qualification
    if files is None:
        values = {"CELL_SET": request.cell_set, "REPEAT": str(request.repeat)}
        if request.schedule != "fixed":
            values["SCHEDULE"] = request.schedule
        if request.group_variable is not None and request.groups_text is not None:
            values[request.group_variable] = request.groups_text
        if request.cell_keys is not None:
            values["CELL_KEYS"] = " ".join(request.cell_keys)
        return values
    container["env"] = [entry for entry in container["env"] if entry["name"] not in {"CELL_SET", "REPEAT"}]
    container["volumeMounts"].append({"name": "source", "mountPath": _SOURCE_MOUNT, "readOnly": True})
    values = {"GROUPS_SHA256": files.groups_sha256, "SOURCE_BYTES": str(files.archive_bytes)}
    if files.claim is not None:
        _, folder = claim_and_folder("--source-claim", files.claim)
        values["SOURCE_FILE"] = "/".join(filter(None, (_SOURCE_CLAIM_MOUNT, folder, f"{files.archive_sha256}.tar")))
        container["volumeMounts"].append({"name": "source-claim", "mountPath": _SOURCE_CLAIM_MOUNT, "readOnly": True})
    return values


def _set_env(env: list[Tree], values: dict[str, str]) -> None:
    entries = {entry["name"]: entry for entry in env}
    for name, value in values.items():
        literal = escape_dollars(value)
        if name in entries:
            entries[name]["value"] = literal
        else:
            env.append({"name": name, "value": literal})
    missing = [entry["name"] for entry in env if "value" not in entry]
    if missing:
        raise RenderError(
            f"the Job template leaves {', '.join(missing)} without a value", remedy="give it one in the template"
        )


def _toleration(toleration: Toleration) -> Tree:
    tree: Tree = {"key": toleration.key, "operator": "Exists" if toleration.value is None else "Equal"}
    if toleration.value is not None:
        tree["value"] = toleration.value
    if toleration.effect is not None:
        tree["effect"] = toleration.effect
    return tree


def _claim_and_path(location: str) -> tuple[str, str]:
    claim, _, path = location.partition("/")
    if not claim or not path or ".." in path.split("/"):
        raise UsageError(
            f"corpus {location[:200]!r} does not name a file on a volume claim", remedy="give --corpus pvc:CLAIM/PATH"
        )
    return claim, path
