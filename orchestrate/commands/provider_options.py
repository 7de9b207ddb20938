"""The options that say where a run is and what it asks for there: one set of them, each with the backends it suits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from orchestrate.commands.duration import DURATION
from orchestrate.commands.provider_values import Needs, parse_accelerators, parse_node_selector, parse_tolerations
from orchestrate.commands.saying import say
from orchestrate.errors import UsageError
from orchestrate.render.image import parse_image
from orchestrate.render.request import RenderRequest
from orchestrate.render.text import require_text

__all__ = [
    "ACCELERATORS_OPTION",
    "CPUS_OPTION",
    "CREDENTIALS_OPTION",
    "IMAGE_OPTION",
    "INFRA_OPTION",
    "MEMORY_OPTION",
    "NAMESPACE_OPTION",
    "NODE_SELECTOR_OPTION",
    "TOLERATION_OPTION",
    "places_of",
    "provider_options",
    "settings_of",
]

_Function = TypeVar("_Function", bound=Callable[..., object])

IMAGE_OPTION = click.option(
    "--image", metavar="REF", help="Container image, NAME@sha256:DIGEST; a tag is taken with a warning."
)
ACCELERATORS_OPTION = click.option(
    "--accelerators", metavar="KIND:N", help="GPUs of the one node, or none.  [sky, k8s: default: H200:4]"
)
CPUS_OPTION = click.option("--cpus", type=click.IntRange(1, 9999), help="CPUs to ask for.")
MEMORY_OPTION = click.option(
    "--memory", type=click.IntRange(1, 65536), metavar="GIB", help="Memory to ask for, in GiB."
)
CREDENTIALS_OPTION = click.option(
    "--credentials", type=click.Path(path_type=Path), metavar="FILE",
    help="A kubeconfig, or JSON with files and variables for another provider's client (docs/gate.md).",
)  # fmt: skip
INFRA_OPTION = click.option("--infra", metavar="INFRA", help="sky: where, for example k8s/CONTEXT or slurm/CLUSTER.")
NAMESPACE_OPTION = click.option("--namespace", metavar="NAME", help="k8s: namespace.  [default: that of kubectl]")
NODE_SELECTOR_OPTION = click.option(
    "--node-selector", multiple=True, metavar="KEY=VALUE|none", help="k8s: instead of the GPU product."
)
TOLERATION_OPTION = click.option(
    "--toleration", multiple=True, metavar="KEY[=VALUE][:EFFECT]|none", help="k8s: instead of GPU nodes'."
)

_DECORATORS = (
    ACCELERATORS_OPTION,
    IMAGE_OPTION,
    CPUS_OPTION,
    MEMORY_OPTION,
    click.option("--provision-timeout", type=DURATION, metavar="DURATION", help="sky, k8s: bound on one acquisition."),
    click.option("--sink", metavar="WHERE", help="k8s: durable copy of the evidence, pvc:CLAIM[/PATH]."),
    click.option("--accept-no-cap", is_flag=True, help="sky, k8s: also where nothing there would end a lost run."),
    click.option("--ttl", type=DURATION, metavar="DURATION", help="k8s: life of the ended Job."),
    INFRA_OPTION,
    click.option("--workdir", metavar="DIR", help="sky: a folder with `harness` that travels instead."),
    click.option("--python", metavar="PATH", help="sky: the node's interpreter.  [default: python3]"),
    click.option("--context", metavar="NAME", help="k8s: context of the kubeconfig.  [default: the current one]"),
    NAMESPACE_OPTION,
    NODE_SELECTOR_OPTION,
    TOLERATION_OPTION,
    click.option("--queue", metavar="NAME", help="k8s: the Kueue queue that admits the Job."),
    click.option("--priority-class", metavar="NAME", help="k8s: the PriorityClass of the pod."),
    click.option("--any-of", metavar="PLACE,PLACE",
                 help="Several places in order: infras (sky), k8s:CONTEXT/NAMESPACE (k8s)."),
)  # fmt: skip

_REMOTE = ("sky", "k8s")
_SUITS: Mapping[str, tuple[str, ...]] = {
    "accelerators": _REMOTE,
    "image": _REMOTE,
    "cpus": _REMOTE,
    "memory": _REMOTE,
    "provision_timeout": _REMOTE,
    "sink": ("k8s",),
    "accept_no_cap": _REMOTE,
    "ttl": ("k8s",),
    "infra": ("sky",),
    "workdir": ("sky",),
    "python": ("sky",),
    "context": ("k8s",),
    "namespace": ("k8s",),
    "node_selector": ("k8s",),
    "toleration": ("k8s",),
    "any_of": _REMOTE,
    "queue": ("k8s",),
    "priority_class": ("k8s",),
}
"""Which backends each option means something to."""

_OBJECT_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_CLAIM = re.compile(r"pvc:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?(?:/.*)?", re.ASCII)


def provider_options(function: _Function) -> _Function:
    """Add all of them; the function gets their values by keyword, for `settings_of`."""
    for decorator in reversed(_DECORATORS):
        function = decorator(function)
    return function


def settings_of(
    backend: str, given: Mapping[str, Any], needs: Needs, deadline_s: int, corpus: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """`settings` of the plan: what was chosen for the backend, checked, as plain JSON; only what is set is in it.

    Args:
        backend: the backend's name.
        given: the values of `provider_options`.
        needs: what the run needs there.
        deadline_s: the deadline of the run.
        corpus: where the private corpus lies (a claim or a bucket) and its digest; None for one that lies here.

    Raises:
        UsageError: an option does not suit the backend, or a value is none.
    """
    for name, value in given.items():
        if value in (None, (), False):
            continue
        if backend not in _SUITS[name]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} means nothing to the backend {backend}; it is for {' and '.join(_SUITS[name])}",
                remedy=f"leave {option} out, or change --backend",
            )
    if backend not in _REMOTE:
        return {}
    settings = _settings(given, needs)
    if corpus is not None:
        settings["corpus"] = dict(corpus)
    _check_as_rendered(settings, given, needs, deadline_s)
    return settings


def places_of(backend: str, given: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    """The places that may be asked, in order: settings that stand above the others; one without any by itself.

    Raises:
        UsageError: a place does not suit the backend, is named twice, or stands beside an option that names one.
    """
    text = given["any_of"]
    if text is None:
        return ({},)
    beside = [name for name in ("infra", "context", "namespace") if given[name] is not None]
    if beside:
        raise UsageError(f"--any-of and --{beside[0]} both say where to ask", remedy=f"leave --{beside[0]} out")
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise UsageError(f"--any-of {text[:200]!r} names a place twice, or none", remedy="name each place once")
    return tuple(_place(backend, name) for name in names)


def _place(backend: str, name: str) -> dict[str, str]:
    require_text("--any-of", name)
    if backend == "sky":
        return {"infra": name}
    context, slash, namespace = name.removeprefix("k8s:").rpartition("/")  # a context may have slashes of its own
    if not name.startswith("k8s:") or not slash or not context or not _NAMESPACE.fullmatch(namespace):
        raise UsageError(f"--any-of: {name[:200]!r} is no place of k8s", remedy="give k8s:CONTEXT/NAMESPACE")
    return {"context": context, "namespace": namespace}


def _settings(given: Mapping[str, Any], needs: Needs) -> dict[str, Any]:
    image = None if given["image"] is None else parse_image(given["image"])
    if image is not None and (warning := image.warning()) is not None:
        say(f"warning: {warning}", err=True)
    labels = parse_node_selector(given["node_selector"])
    tolerations = parse_tolerations(given["toleration"])
    settings = {
        "accelerators": str(parse_accelerators(given["accelerators"], needs)),
        "image": None if image is None else image.text,
        "cpus": given["cpus"],
        "memory_gib": given["memory"],
        "provision_timeout_s": given["provision_timeout"],
        "sink": _sink(given["sink"]),
        "accept_no_cap": True if given["accept_no_cap"] else None,
        "ttl_s": given["ttl"],
        "infra": given["infra"],
        "workdir": given["workdir"],
        "python": given["python"],
        "context": given["context"],
        "namespace": given["namespace"],
        "node_selector": None if labels is None else dict(labels),
        "tolerations": None if tolerations is None else [text for text in given["toleration"] if text != "none"],
        "queue": _object_name("--queue", given["queue"]),
        "priority_class": _object_name("--priority-class", given["priority_class"]),
    }
    if settings["context"] is not None:
        require_text("--context", given["context"])
    return {name: value for name, value in settings.items() if value is not None}


def _sink(sink: str | None) -> str | None:
    if sink is not None and not _CLAIM.fullmatch(sink):
        raise UsageError(f"--sink {sink[:200]!r} is no volume claim", remedy="give pvc:CLAIM or pvc:CLAIM/PATH")
    return sink


def _object_name(option: str, name: str | None) -> str | None:
    if name is not None and not _OBJECT_NAME.fullmatch(name):
        raise UsageError(f"{option} {name[:100]!r} is no object name", remedy="give a-z, 0-9, '-' and '.' alone")
    return name


def _check_as_rendered(settings: Mapping[str, Any], given: Mapping[str, Any], needs: Needs, deadline_s: int) -> None:
    """Refuse now, before anything is made, what rendering would refuse later."""
    RenderRequest(
        run_id="r0",
        cell_set=needs.name,
        cells=needs.keys,
        deadline_s=deadline_s,
        reserve_s=0,
        collect_wait_s=0,
        infra=settings.get("infra"),
        workdir=settings.get("workdir"),
        python=settings.get("python"),
        namespace=settings.get("namespace"),
        node_selector=parse_node_selector(given["node_selector"]),
    )
