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
from orchestrate.commands.selection import cell_selection_options, selected
from orchestrate.errors import UsageError
from orchestrate.lifecycle.run_directory import new_run_id
from orchestrate.render.image import parse_image
from orchestrate.render.ownership import removal
from orchestrate.render.rendered import Rendered, render
from orchestrate.render.request import Accelerators, Corpus, RenderRequest, Toleration
from orchestrate.render.templates import Backend, harness_dir, in_checkout
from orchestrate.user import user_name

__all__ = ["command"]

_GPU_KIND = "H200"
_EXPIRY_REMEDY = "give a time in the future, when nobody needs the run any more"


@click.command("render")
@click.option("--backend", type=click.Choice([backend.value for backend in Backend]), required=True, help="For whom.")
@cell_selection_options
@click.option("--run-id", metavar="ID", help="Name of the run; the output is then the same each time.  [default: new]")
@click.option(
    "-o", "--output", default="-", metavar="DIR|-", help="Folder to write to, or - for standard output.  [default: -]"
)
@click.option("--force", is_flag=True, help="Overwrite a file of other content.")
@click.option("--image", metavar="REF", help="Container image, NAME@sha256:DIGEST; a tag is taken with a warning.")
@click.option("--accelerators", default="H200:4", show_default=True, metavar="KIND:N", help="GPUs of the one node.")
@click.option("--repeat", type=click.IntRange(1, 10000), default=8, show_default=True, help="Measured rounds.")
@click.option("--deadline", type=DURATION, default="4h", show_default=True, help="Cap on everything, at most a day.")
@click.option("--ttl", type=DURATION, default="1h", show_default=True, help="k8s: life of the ended Job.")
@click.option("--expires", metavar="RFC3339", help="When what is left may be removed.")
@click.option("--owner", envvar="ORCHESTRATE_OWNER", metavar="NAME", help="Whose it is.  [default: you]")
@click.option("--corpus", metavar="PATH|pvc:CLAIM/PATH", help="Private corpus: a file here (sky), on a claim (k8s).")
@click.option("--corpus-sha256", metavar="HEX", help="Its digest.  [sky: default: of the file]")
@click.option("--cpus", type=click.IntRange(1, 9999), help="CPUs to ask for.")
@click.option("--memory", type=click.IntRange(1, 65536), metavar="GIB", help="Memory to ask for, in GiB.")
@click.option("--infra", metavar="INFRA", help="sky: where, for example k8s/CONTEXT or slurm/CLUSTER.")
@click.option("--workdir", metavar="DIR", help="sky: folder that holds the harness.  [default: . in a checkout]")
@click.option("--namespace", metavar="NAME", help="k8s: namespace.  [default: that of kubectl]")
@click.option("--node-selector", multiple=True, metavar="KEY=VALUE|none", help="k8s: instead of the GPU product.")
@click.option("--toleration", multiple=True, metavar="KEY[=VALUE][:EFFECT]|none", help="k8s: instead of GPU nodes'.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    backend: str,
    cell_set: str | None,
    groups: str | None,
    run_id: str | None,
    output: str,
    force: bool,
    image: str | None,
    accelerators: str,
    repeat: int,
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
    selection = selected(cell_set, groups)
    wanted = Accelerators.parse(accelerators)
    _check_accelerators(wanted, selection)
    request = RenderRequest(
        run_id=run_id if run_id is not None else new_run_id(now),
        cell_set=selection.cell_set.name,
        cells=tuple(cell.key for cell in selection.cells),
        group_variable=selection.cell_set.group_variable,
        groups=None if selection.groups is None else tuple(str(group) for group in selection.groups),
        repeat=repeat,
        deadline_s=deadline,
        ttl_s=ttl,
        owner=owner if owner is not None else user_name(),
        expires_at=_expiry(expires, now, None if run_id is not None else now + timedelta(seconds=deadline + ttl)),
        image=None if image is None else parse_image(image),
        accelerators=wanted,
        slots=wanted.count if selection.cell_set.device == "h200" else None,
        cpus=cpus,
        memory_gib=memory,
        corpus=_corpus(chosen, corpus, corpus_sha256),
        infra=infra,
        workdir=workdir,
        harness_mount=_harness_mount(chosen, workdir),
        namespace=namespace,
        node_selector=_node_selector(node_selector),
        tolerations=_tolerations(toleration),
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


def _check_accelerators(wanted: Accelerators, selection: Selection) -> None:
    """The node refuses a cell that it has too few GPUs for, and one of another kind. Ranks on a CPU need neither."""
    one = selection.cell_set
    if one.device != "h200":
        return
    if wanted.kind != _GPU_KIND:
        raise UsageError(
            f"--accelerators {wanted}: cell set {one.name!r} is for {_GPU_KIND} GPUs", remedy=f"give {_GPU_KIND}:N"
        )
    needed = max(cell.gpus for cell in selection.cells)
    if wanted.count < needed:
        raise UsageError(
            f"--accelerators {wanted}: the largest selected cell of set {one.name!r} takes {needed} GPUs",
            remedy=f"give at least {wanted.kind}:{needed}",
        )


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


def _corpus(backend: Backend, location: str | None, sha256: str | None) -> Corpus | None:
    if location == "":
        raise UsageError("--corpus is empty", remedy="name the corpus, or leave the option out")
    if location is None:
        if sha256 is not None:
            raise UsageError("--corpus-sha256 without --corpus", remedy="name the corpus as well")
        return None
    on_claim = location.startswith("pvc:")
    if on_claim != (backend is Backend.K8S):
        wanted = "pvc:CLAIM/PATH" if backend is Backend.K8S else "a path on this machine"
        raise UsageError(f"--corpus {location[:200]!r} does not suit the backend {backend}", remedy=f"give {wanted}")
    if on_claim:
        if sha256 is None:
            raise UsageError(
                "a corpus on a volume claim has no pinned digest", remedy="add --corpus-sha256 (sha256sum prints it)"
            )
        return Corpus(location.removeprefix("pvc:"), sha256)
    return Corpus(location, _checked_digest(Path(location), sha256))


def _checked_digest(path: Path, expected: str | None) -> str:
    try:
        if path.exists() and not path.is_file():  # to open a FIFO would wait for ever
            raise UsageError(f"the corpus {path} is not a regular file", remedy="give the path of its token file")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"the corpus {str(path)[:200]!r} can not be read: {why}", remedy="give the path of its token file"
        ) from error
    if expected is not None and expected != found:
        raise UsageError(
            f"the corpus {path} has the digest {found}, not {expected}", remedy="give the right file or digest"
        )
    return found


def _harness_mount(backend: Backend, workdir: str | None) -> str | None:
    """An installed harness has no checkout to travel in: its folder is mounted instead."""
    if backend is Backend.SKY and workdir is None and not in_checkout():
        return str(harness_dir())
    return None


def _node_selector(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...] | None:
    if not texts:
        return None
    if texts == ("none",):
        return ()
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--node-selector {text[:100]!r} is no KEY=VALUE", remedy="give KEY=VALUE, or none alone")
        if key in pairs:
            raise UsageError(
                f"--node-selector names {key[:100]!r} twice: a node has one value for it", remedy="name each key once"
            )
        pairs[key] = value
    return tuple(pairs.items())


def _tolerations(texts: tuple[str, ...]) -> tuple[Toleration, ...] | None:
    if not texts:
        return None
    if texts == ("none",):
        return ()
    if "none" in texts:
        raise UsageError("--toleration none stands beside others", remedy="give none alone, or leave it out")
    return tuple(Toleration.parse(text) for text in texts)


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
