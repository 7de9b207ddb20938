"""A cell set, or a qualification, as a SkyPilot task."""

from __future__ import annotations

import math

from orchestrate.errors import UsageError
from orchestrate.render.document import Document, Tree, clone, dump
from orchestrate.render.ownership import cloud_labels, kubernetes_labels, resource_name, slurm_comment
from orchestrate.render.request import RenderRequest
from orchestrate.render.schema import check_task

__all__ = ["render_task"]


def render_task(request: RenderRequest, template: Tree) -> Document:
    """The task for `request`; `RenderError` if the result does not hold SkyPilot's schema.

    Every duration is the run's deadline, in the unit its field wants: minutes of autodown, of the Slurm allocation,
    seconds of the pod. The payload's own limit is shorter.
    """
    tree = clone(template)
    name = resource_name(request)
    tree["name"] = name
    _set_paths(tree, request)
    _set_resources(tree["resources"], request)
    _set_envs(tree["envs"], request)
    _set_caps(tree["config"], request)
    check_task(tree, f"task {name}")
    return Document(name=f"{name}.sky.yaml", tree=tree, text=dump(tree))


def _set_paths(tree: Tree, request: RenderRequest) -> None:
    if request.harness_mount is not None:
        tree.pop("workdir", None)
        mount = _literal_path("the harness's folder", request.harness_mount)
        tree.setdefault("file_mounts", {})["~/orchestrate-harness/harness"] = mount
    elif request.workdir is not None:
        tree["workdir"] = _literal_path("--workdir", request.workdir)
    if request.corpus is not None:
        mount = _literal_path("--corpus", request.corpus.location)
        tree.setdefault("file_mounts", {})["~/orchestrate-corpus/tokens"] = mount

    if request.qualification is not None:
        files = request.qualification
        for name, file in (("groups.json", files.groups), ("source.tar", files.archive)):
            mount = _literal_path("the run directory", str(file))
            tree.setdefault("file_mounts", {})[f"~/orchestrate-source/{name}"] = mount


def _literal_path(option: str, path: str) -> str:
    """`path`, if SkyPilot takes it literally: in paths it replaces `$NAME` and `${NAME}` by the task's envs."""
    if "$" in path or "\n" in path:
        raise UsageError(
            f"{option} {path[:200]!r} holds a dollar sign or a line break, which SkyPilot does not take literally",
            remedy="use a path without them",
        )
    return path


def _set_resources(resources: Tree, request: RenderRequest) -> None:
    if request.accelerators.count == 0:
        resources.pop("accelerators", None)
    elif request.accelerators.of_any_kind:
        raise UsageError(
            f"--accelerators {request.accelerators}: SkyPilot asks for GPUs by their kind",
            remedy="give KIND:N; `sky show-gpus` lists the kinds",
        )
    else:
        resources["accelerators"] = str(request.accelerators)
    if request.infra is not None:
        resources["infra"] = request.infra
    if request.image is not None:
        resources["image_id"] = f"docker:{request.image.text}"
    if request.cpus is not None:
        resources["cpus"] = f"{request.cpus}+"
    if request.memory_gib is not None:
        resources["memory"] = f"{request.memory_gib}+"
    # With `wait_for: none` this is a limit on the life of the cluster, not on its idleness.
    resources["autostop"]["idle_minutes"] = math.ceil(request.deadline_s / 60)
    resources["labels"].update(cloud_labels(request))


def _set_envs(envs: Tree, request: RenderRequest) -> None:
    _set_payload(envs, request)
    envs["RUN_ID"] = request.run_id
    if request.slots is not None:
        envs["PROCS"] = str(request.slots)
    envs["JOB_LIMIT_S"] = str(request.job_limit_s)
    if request.python is not None:
        envs["PYTHON"] = request.python
    envs["EVIDENCE_DIR"] = f"evidence/{resource_name(request)}"
    if request.corpus is not None and request.corpus.sha256 is not None:
        envs["CORPUS_SHA256"] = request.corpus.sha256


def _set_payload(envs: Tree, request: RenderRequest) -> None:
    """What to run: cells, or command groups, which must not see the environment of cells."""
    files = request.qualification
    if files is not None:
        for name in ("CELL_SET", "REPEAT"):
            envs.pop(name, None)
        envs["GROUPS_SHA256"] = files.groups_sha256
        return
    envs["CELL_SET"] = request.cell_set
    if request.group_variable is not None and request.groups_text is not None:
        envs[request.group_variable] = request.groups_text
    if request.cell_keys is not None:
        envs["CELL_KEYS"] = " ".join(request.cell_keys)
    envs["REPEAT"] = str(request.repeat)
    if request.schedule != "fixed":
        envs["SCHEDULE"] = request.schedule


def _set_caps(config: Tree, request: RenderRequest) -> None:
    config["slurm"]["sbatch_options"]["time"] = math.ceil(request.deadline_s / 60)
    if request.token is not None and request.expires_at is not None:
        config["slurm"]["sbatch_options"]["comment"] = slurm_comment(request)
    config["kubernetes"]["pod_config"]["spec"]["activeDeadlineSeconds"] = request.deadline_s
    config["kubernetes"]["custom_metadata"]["labels"].update(kubernetes_labels(request))
