"""One request to the file that is launched: the documents of a backend in order, and what to warn about."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrate.errors import UsageError
from orchestrate.render.archive import HarnessArchive, harness_archive
from orchestrate.render.document import Document
from orchestrate.render.image import ImageReference, parse_image
from orchestrate.render.kubernetes import render_job, template_image
from orchestrate.render.ownership import resource_name
from orchestrate.render.request import RenderRequest
from orchestrate.render.skypilot import render_task
from orchestrate.render.templates import Backend, harness_dir, load_template

__all__ = ["Rendered", "render"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """What `render` made. `image` is what will run: None is SkyPilot's default image of the node's infra."""

    backend: Backend
    filename: str
    documents: tuple[Document, ...]
    image: ImageReference | None
    warnings: tuple[str, ...]

    @property
    def text(self) -> str:
        """All documents as one YAML stream."""
        return "---\n".join(document.text for document in self.documents)


def render(backend: Backend, request: RenderRequest, *, archive: HarnessArchive | None = None) -> Rendered:
    """Render `request` for `backend` and check the result.

    `archive` is the harness that travels with a Job; the one beside this package when it is None.

    Raises:
        UsageError: a value of the request does not fit this backend.
        RenderError: the result does not hold the backend's schema, or a template is missing.
    """
    _refuse_foreign_fields(backend, request)
    template = load_template(backend)
    match backend:
        case Backend.SKY:
            image = request.image
            documents: tuple[Document, ...] = (render_task(request, template),)
        case Backend.K8S:
            image = request.image or parse_image(template_image(template))
            documents = render_job(request, template, archive or harness_archive(harness_dir()))
    warning = image.warning() if image is not None else None
    return Rendered(
        backend=backend,
        filename=f"{resource_name(request)}.{backend.value}.yaml",
        documents=documents,
        image=image,
        warnings=(warning,) if warning is not None else (),
    )


def _refuse_foreign_fields(backend: Backend, request: RenderRequest) -> None:
    foreign: dict[Backend, dict[str, object]] = {
        Backend.SKY: {
            "--namespace": request.namespace,
            "--node-selector": request.node_selector,
            "--toleration": request.tolerations,
            "--queue": request.queue,
            "--priority-class": request.priority_class,
        },
        Backend.K8S: {"--infra": request.infra, "--workdir": request.workdir, "--python": request.python},
    }
    for option, value in foreign[backend].items():
        if value is not None:
            raise UsageError(
                f"{option} means nothing to the backend {backend}", remedy=f"leave {option} out, or change --backend"
            )
