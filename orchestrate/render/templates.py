"""Where the templates and the harness source are: in a checkout, or inside an installed wheel."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from orchestrate.errors import RenderError
from orchestrate.render.document import Tree, load
from orchestrate.render.schema import check_manifest, check_task

__all__ = ["TEMPLATES", "Backend", "harness_dir", "in_checkout", "load_template", "template_path", "templates_dir"]


class Backend(StrEnum):
    """What a cell set is rendered for. The value is also the name of the folder of templates."""

    SKY = "sky"
    K8S = "k8s"


TEMPLATES = {Backend.SKY: "cost-calibration.sky.yaml", Backend.K8S: "cost-calibration.job.yaml"}
"""The template of each backend that a cell set is rendered from."""


_POD: tuple[str | int, ...] = ("spec", "template", "spec")
_SET_FIELDS: dict[Backend, tuple[tuple[str | int, ...], ...]] = {
    Backend.SKY: (
        ("resources", "autostop"),
        ("resources", "labels"),
        ("envs",),
        ("config", "slurm", "sbatch_options"),
        ("config", "kubernetes", "pod_config", "spec"),
        ("config", "kubernetes", "custom_metadata", "labels"),
    ),
    Backend.K8S: (
        ("metadata", "labels"),
        ("metadata", "annotations"),
        ("spec", "template", "metadata", "labels"),
        (*_POD, "nodeSelector"),
        (*_POD, "volumes"),
        (*_POD, "containers", 0, "env"),
        (*_POD, "containers", 0, "volumeMounts"),
        (*_POD, "containers", 0, "resources", "requests"),
        (*_POD, "containers", 0, "resources", "limits"),
    ),
}
"""The parts of a template that rendering sets fields in."""


def templates_dir(backend: Backend) -> Path:
    """The folder with the templates of `backend`.

    A wheel has them inside the package. In a checkout they are beside it; not looked for there unless the file is
    really ours, because `sky` beside an *installed* package is SkyPilot.
    """
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "templates" / backend.value, package.parent / backend.value)
    for folder in candidates:
        if (folder / TEMPLATES[backend]).is_file():
            return folder
    looked = " and ".join(str(folder) for folder in candidates)
    raise RenderError(
        f"the template {TEMPLATES[backend]} is neither in {looked}",
        remedy="install orchestrate from its wheel, or run it from a whole checkout",
    )


def template_path(backend: Backend) -> Path:
    """The template that a cell set is rendered from."""
    return templates_dir(backend) / TEMPLATES[backend]


@cache
def load_template(backend: Backend) -> Tree:
    """The template's tree, read once. It is shared: clone it before setting fields.

    Raises:
        RenderError: there is no template, it can not be read, or it lacks a field that rendering sets.
    """
    path = template_path(backend)
    try:
        tree = load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise _damaged(path, " ".join(str(error).split())[:200]) from error
    check = check_task if backend is Backend.SKY else check_manifest
    check(tree, f"the template {path}")
    for keys in _SET_FIELDS[backend]:
        spot: Any = tree
        for key in keys:
            spot = spot[0] if key == 0 and spot else spot.get(key) if isinstance(spot, dict) else None
        if spot is None:
            raise _damaged(path, f"has no {'.'.join(str(key) for key in keys)}")
    return tree


def _damaged(path: Path, what: str) -> RenderError:
    return RenderError(f"the template {path}: {what}", remedy="restore the template, or correct it there")


def in_checkout() -> bool:
    """Whether the templates come from a checkout, whose harness travels as SkyPilot's workdir."""
    return templates_dir(Backend.SKY).parent == harness_dir().parent


def harness_dir() -> Path:
    """The source of the harness: it is installed, or checked out, beside this package."""
    folder = Path(__file__).resolve().parents[2] / "harness"
    if not (folder / "__main__.py").is_file() and not (folder / "__init__.py").is_file():
        raise RenderError(
            f"no harness in {folder}", remedy="install orchestrate from its wheel, or run it from a whole checkout"
        )
    return folder
