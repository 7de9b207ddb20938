"""Cell set plus template to a SkyPilot task or a Kubernetes Job: pure functions.

    request = RenderRequest(run_id="r1", cell_set="smoke", cells=("cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4",))
    render(Backend.SKY, request).text

Fields are set on the template's tree and the tree is dumped, so that no value can change the structure. The same
request, template and harness give the same bytes.
"""

from __future__ import annotations

from orchestrate.render.archive import HarnessArchive, harness_archive
from orchestrate.render.document import Document
from orchestrate.render.image import ImageReference, parse_image
from orchestrate.render.ownership import expiry_label, resource_name, selector
from orchestrate.render.rendered import Rendered, render
from orchestrate.render.request import Accelerators, Corpus, RenderRequest, Toleration
from orchestrate.render.schema import check_manifest, check_task
from orchestrate.render.templates import Backend, harness_dir, load_template, template_path, templates_dir

__all__ = [
    "Accelerators",
    "Backend",
    "Corpus",
    "Document",
    "HarnessArchive",
    "ImageReference",
    "RenderRequest",
    "Rendered",
    "Toleration",
    "check_manifest",
    "check_task",
    "expiry_label",
    "harness_archive",
    "harness_dir",
    "load_template",
    "parse_image",
    "render",
    "resource_name",
    "selector",
    "template_path",
    "templates_dir",
]
