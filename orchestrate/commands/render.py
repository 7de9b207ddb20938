"""`orchestrate render`: a cell set as a SkyPilot task or a Kubernetes Job."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from orchestrate.cells.cell_set import Selection
from orchestrate.cells.manifest import load_manifest
from orchestrate.commands.duration import DURATION
from orchestrate.commands.provider_options import (
    ACCELERATORS_OPTION,
    CPUS_OPTION,
    IMAGE_OPTION,
    INFRA_OPTION,
    MEMORY_OPTION,
    NAMESPACE_OPTION,
    NODE_SELECTOR_OPTION,
    TOLERATION_OPTION,
)
from orchestrate.commands.provider_values import (
    Needs,
    parse_accelerators,
    parse_corpus,
    parse_node_selector,
    parse_tolerations,
)
from orchestrate.commands.selection import SCHEDULE_OPTION, cell_selection_options, check_race, selected
from orchestrate.errors import UsageError
from orchestrate.lifecycle.run_directory import new_run_id
from orchestrate.render.image import parse_image
from orchestrate.render.ownership import removal
from orchestrate.render.rendered import Rendered, render
from orchestrate.render.request import RenderRequest
from orchestrate.render.templates import Backend, harness_dir, in_checkout
from orchestrate.user import user_name

__all__ = ["command"]

_EXPIRY_REMEDY = "give a time in the future, when nobody needs the run any more"


@click.command("render")
@click.option("--backend", type=click.Choice([backend.value for backend in Backend]), required=True, help="For whom.")
@cell_selection_options
@click.option("--run-id", metavar="ID", help="Name of the run; the output is then the same each time.  [default: new]")
@click.option(
    "-o", "--output", default="-", metavar="DIR|-", help="Folder to write to, or - for standard output.  [default: -]"
)
@click.option("--force", is_flag=True, help="Overwrite a file of other content.")
@IMAGE_OPTION
@ACCELERATORS_OPTION
@click.option("--repeat", type=click.IntRange(1, 10000), default=8, show_default=True, help="Measured rounds.")
@SCHEDULE_OPTION
@click.option("--deadline", type=DURATION, default="4h", show_default=True, help="Cap on everything, at most a day.")
@click.option("--ttl", type=DURATION, default="1h", show_default=True, help="k8s: life of the ended Job.")
@click.option("--expires", metavar="RFC3339", help="When what is left may be removed.")
@click.option("--owner", envvar="ORCHESTRATE_OWNER", metavar="NAME", help="Whose it is.  [default: you]")
@click.option("--corpus", metavar="PATH|pvc:CLAIM/PATH", help="Private corpus: a file here (sky), on a claim (k8s).")
@click.option("--corpus-sha256", metavar="HEX", help="Its digest.  [sky: default: of the file]")
@CPUS_OPTION
@MEMORY_OPTION
@INFRA_OPTION
@click.option("--workdir", metavar="DIR", help="sky: folder that holds the harness.  [default: . in a checkout]")
@NAMESPACE_OPTION
@NODE_SELECTOR_OPTION
@TOLERATION_OPTION
@click.option("--queue", metavar="NAME", help="k8s: LocalQueue of Kueue that the Job waits in.")
@click.option("--priority-class", metavar="NAME", help="k8s: PriorityClass of the pod.")
@click.option("--sink", metavar="pvc:CLAIM[/DIR]", help="k8s: claim that gets a copy of the evidence.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    backend: str,
    cell_set: str | None,
    groups: str | None,
    run_id: str | None,
    output: str,
    force: bool,
    image: str | None,
    accelerators: str | None,
    repeat: int,
    schedule: str,
    deadline: int,
    ttl: int,
    expires: str | None,
    owner: str | None,
    corpus: str | None,
    corpus_sha256: str | None,
    cpus: int | None,
    memory: int | None,
    infra: str | None,
    workdir: str | None,
    namespace: str | None,
    node_selector: tuple[str, ...],
    toleration: tuple[str, ...],
    queue: str | None,
    priority_class: str | None,
    sink: str | None,
    as_json: bool,
) -> int:
    """Render a cell set as a SkyPilot task or as a Kubernetes Job with all that it needs.

    The result is checked against the schema of who will read it. With --run-id the same options give the same bytes.

    \b
    Example:
      orchestrate render --backend sky --cell-set ellavox --groups 1,4 --run-id r1 -o rendered
      orchestrate render --backend k8s --cell-set main --image NAME@sha256:DIGEST -o - | kubectl create -f -
    """
    if not output:
        raise UsageError("--output is empty", remedy="name a folder, or - for standard output")
    chosen = Backend(backend)
    now = datetime.now(UTC)
    check_race(schedule, repeat)
    selection = selected(cell_set, groups)
    wanted = parse_accelerators(accelerators, Needs.of_cells(selection))
    request = RenderRequest(
        run_id=run_id if run_id is not None else new_run_id(now),
        cell_set=selection.cell_set.name,
        cells=tuple(cell.key for cell in selection.cells),
        group_variable=selection.cell_set.group_variable,
        groups=None if selection.groups is None else tuple(str(group) for group in selection.groups),
        repeat=repeat,
        schedule=schedule,
        deadline_s=deadline,
        ttl_s=ttl,
        owner=owner if owner is not None else user_name(),
        expires_at=_expiry(expires, now, None if run_id is not None else now + timedelta(seconds=deadline + ttl)),
        image=None if image is None else parse_image(image),
        accelerators=wanted,
        slots=wanted.count if selection.cell_set.device == "h200" else None,
        cpus=cpus,
        memory_gib=memory,
        corpus=parse_corpus(chosen, corpus, corpus_sha256),
        infra=infra,
        workdir=workdir,
        harness_mount=_harness_mount(chosen, workdir),
        namespace=namespace,
        node_selector=parse_node_selector(node_selector),
        tolerations=parse_tolerations(toleration),
        queue=queue,
        priority_class=priority_class,
        sink=sink,
    )
    rendered = render(chosen, request)
    warnings = (*rendered.warnings, *_corpus_warnings(selection, corpus))
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    path = None if output == "-" else _write(Path(output), rendered, force=force)
    if as_json:
        click.echo(json.dumps(_answer(rendered, request, selection, warnings, path), sort_keys=True))
    elif path is None:
        click.echo(rendered.text, nl=False)
    else:
        click.echo(str(path))
    if chosen is Backend.K8S:
        remove = removal(request.run_id, request.namespace)
        click.echo(f"note: its ConfigMaps outlive the Job; remove all of it with: {remove}", err=True)
    return 0


def _expiry(text: str | None, now: datetime, default: datetime | None) -> datetime | None:
    if text is None:
        return default
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--expires {text[:100]!r} is not a time", remedy="give RFC 3339, for example 2099-01-31T18:00:00Z"
        ) from error
    if parsed.tzinfo is None:
        raise UsageError(f"--expires {text!r} has no time zone", remedy="end it with Z for UTC")
    try:
        expiry = parsed.astimezone(UTC)
    except OverflowError as error:
        raise UsageError(f"--expires {text!r} is before year 1 or after 9999 in UTC", remedy=_EXPIRY_REMEDY) from error
    if expiry <= now:
        raise UsageError(f"--expires {text!r} has passed", remedy=_EXPIRY_REMEDY)
    return expiry


def _harness_mount(backend: Backend, workdir: str | None) -> str | None:
    """An installed harness has no checkout to travel in: its folder is mounted instead."""
    if backend is Backend.SKY and workdir is None and not in_checkout():
        return str(harness_dir())
    return None


def _corpus_warnings(selection: Selection, corpus: str | None) -> tuple[str, ...]:
    """Only who holds a private corpus knows its candidates, so the manifest names none for its cells."""
    keys = [cell.key for cell in selection.cells]
    candidates = load_manifest().candidates(selection.cell_set.name, keys)
    private = sum(labels is None for labels in candidates.values())
    if corpus is None and private:
        return (f"{private} of {len(keys)} cells need a private corpus: without --corpus the node runs nothing at all",)
    return ()


def _write(folder: Path, rendered: Rendered, *, force: bool) -> Path:
    path = folder / rendered.filename
    data = rendered.text.encode("utf-8")
    try:
        if path.exists() and not force and path.read_bytes() != data:
            raise UsageError(f"{path} exists with other content", remedy="add --force, or choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        _replace(path, data)
    except OSError as error:
        raise UsageError(
            f"{path} can not be written: {error.strerror}", remedy="choose a folder that you can write"
        ) from error
    return path


def _replace(path: Path, data: bytes) -> None:
    """All or nothing, also when the machine stops in the middle."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _answer(
    rendered: Rendered,
    request: RenderRequest,
    selection: Selection,
    warnings: tuple[str, ...],
    path: Path | None,
) -> dict[str, object]:
    image = rendered.image
    return {
        "backend": rendered.backend.value,
        "run_id": request.run_id,
        "cell_set": request.cell_set,
        "device": selection.cell_set.device,
        "groups": None if selection.groups is None else list(selection.groups),
        "cells": list(request.cells),
        "image": None if image is None else {"reference": image.text, "pinned": image.pinned, "digest": image.digest},
        "documents": [
            {"name": document.name, "kind": document.tree.get("kind", "SkyPilot task"), "sha256": document.sha256}
            for document in rendered.documents
        ],
        "sha256": hashlib.sha256(rendered.text.encode("utf-8")).hexdigest(),
        "files": [] if path is None else [str(path)],
        "text": rendered.text if path is None else None,
        "warnings": list(warnings),
    }
