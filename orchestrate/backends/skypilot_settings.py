"""What was chosen for a run on SkyPilot, and the task that follows from it: pure and deterministic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrate.backends.protocol import Ownership, Request
from orchestrate.cells.cell_set import load_cell_set
from orchestrate.clock import from_wire
from orchestrate.render.image import parse_image
from orchestrate.render.qualification import QualificationFiles
from orchestrate.render.rendered import Rendered, render
from orchestrate.render.request import Accelerators, Corpus, RenderRequest
from orchestrate.render.templates import Backend as Template
from orchestrate.render.templates import harness_dir

__all__ = ["SkySettings"]

PROVISION_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class SkySettings:
    """The settings of one run, parsed.

    Attributes:
        infra: `slurm/CLUSTER[/PARTITION]`, `k8s/CONTEXT`, a cloud; None lets SkyPilot choose.
        accelerators: the GPUs to hold.
        provision_timeout_s: how long to wait for them.
        workdir: a folder that travels instead of this package's harness; it holds a folder `harness`.
        python: the interpreter on the node, None for the template's.
        accept_no_cap: whether a run is wanted where no cap of the provider would end it.
    """

    infra: str | None
    accelerators: Accelerators
    image: str | None
    cpus: int | None
    memory_gib: int | None
    provision_timeout_s: float
    workdir: str | None
    python: str | None
    corpus: Mapping[str, Any]
    accept_no_cap: bool

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> SkySettings:
        """The settings in a plan."""
        return cls(
            infra=settings.get("infra"),
            accelerators=Accelerators.parse(str(settings.get("accelerators") or "H200:4")),
            image=settings.get("image"),
            cpus=settings.get("cpus"),
            memory_gib=settings.get("memory_gib"),
            provision_timeout_s=float(settings.get("provision_timeout_s") or PROVISION_TIMEOUT_S),
            workdir=settings.get("workdir"),
            python=settings.get("python"),
            corpus=settings.get("corpus") or {},
            accept_no_cap=bool(settings.get("accept_no_cap")),
        )

    @property
    def kind(self) -> str:
        """Which kind of infra: `slurm`, `kubernetes`, the name of a cloud; empty where SkyPilot chooses."""
        name = (self.infra or "").partition("/")[0].lower()
        return "kubernetes" if name in {"k8s", "kubernetes"} else "" if name == "*" else name

    @property
    def place(self) -> str:
        """The Slurm cluster, the Kubernetes context or the region; empty where SkyPilot chooses."""
        parts = (self.infra or "").split("/")
        # A context may hold slashes, a Slurm cluster may be followed by its partition.
        rest = "/".join(parts[1:]) if self.kind == "kubernetes" else parts[1] if len(parts) > 1 else ""
        return "" if rest == "*" else rest

    def render(self, ownership: Ownership, request: Request) -> Rendered:
        """The task of the run, with its caps and marks."""
        environment = request.environment
        files = None
        if request.groups is not None and request.archive is not None:
            files = QualificationFiles(request.groups, request.archive)
        variable = None if files is not None else load_cell_set(request.cell_set).group_variable
        chosen = None if variable is None else environment.get(variable)
        groups = None if chosen is None else tuple(chosen.replace(",", " ").split())
        return render(
            Template.SKY,
            RenderRequest(
                run_id=ownership.run_id,
                cell_set=request.cell_set,
                cells=request.cells,
                group_variable=variable,
                groups=groups,
                repeat=int(environment.get("REPEAT", "8")),
                schedule=environment.get("SCHEDULE", "fixed"),
                cell_keys=tuple(environment["CELL_KEYS"].split()) if "CELL_KEYS" in environment else None,
                slots=None if request.device == "cpu" else self.accelerators.count,
                deadline_s=int(request.deadline_s),
                reserve_s=int(request.reserve_s),
                collect_wait_s=0,
                owner=ownership.owner,
                token=ownership.token,
                expires_at=from_wire(ownership.expires_at),
                image=None if self.image is None else parse_image(self.image),
                accelerators=self.accelerators,
                cpus=self.cpus,
                memory_gib=self.memory_gib,
                corpus=self._corpus(environment),
                infra=self.infra,
                workdir=self.workdir,
                harness_mount=None if self.workdir is not None else str(harness_dir()),
                python=self.python,
                qualification=files,
            ),
        )

    def _corpus(self, environment: Mapping[str, str]) -> Corpus | None:
        location = self.corpus.get("location") or environment.get("CORPUS")
        if not location:
            return None
        return Corpus(str(location), self.corpus.get("sha256") or environment.get("CORPUS_SHA256"))
