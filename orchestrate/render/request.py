"""What to render, checked once: every value in a request fits the fields it goes to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from orchestrate.errors import UsageError
from orchestrate.render.image import ImageReference
from orchestrate.render.qualification import QualificationFiles
from orchestrate.render.text import require_text

__all__ = ["SCHEDULES", "Accelerators", "Corpus", "RenderRequest", "Toleration"]

SCHEDULES = ("fixed", "racing")
"""Which layouts a round measures: all of them, or those that are not decided yet. The first is the default."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_QUALIFIED_NAME = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TOKEN = re.compile(r"[0-9a-f]{32}", re.ASCII)
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_KNOWN_KINDS = {"h200": "H200", "any": "any"}
_MAX_DEADLINE_S = 86400
_MIN_PAYLOAD_S = 60


@dataclass(frozen=True, slots=True)
class Accelerators:
    """`count` GPUs of `kind` on one node; `H200:4` as text.

    `any:4` is four GPUs of whatever kind, which only Kubernetes can be asked for; `none` (a count of 0) is no GPU at
    all, for cells of ranks on a CPU.
    """

    kind: str = "H200"
    count: int = 4

    @classmethod
    def parse(cls, text: str) -> Accelerators:
        """`KIND:COUNT`, `h200` in any case, or `none`; `UsageError` otherwise."""
        if text.lower() == "none":
            return cls("none", 0)
        kind, _, count = text.partition(":")
        if not _NAME.fullmatch(kind) or not re.fullmatch(r"[1-9][0-9]?", count, re.ASCII):
            raise UsageError(f"{text[:100]!r} names no accelerators", remedy="give KIND:COUNT, for example H200:4")
        # Kubernetes compares label values by the byte: what nodes carry is `NVIDIA-H200`.
        return cls(_KNOWN_KINDS.get(kind.lower(), kind), int(count))

    @property
    def of_any_kind(self) -> bool:
        """Whether any GPU will do, or none is needed: then no node is selected by its product."""
        return self.count == 0 or self.kind == "any"

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}" if self.count else "none"


@dataclass(frozen=True, slots=True)
class Toleration:
    """One Kubernetes toleration: of `key`, with any value or with `value`, for `effect` or for all."""

    key: str
    value: str | None = None
    effect: str | None = None

    @classmethod
    def parse(cls, text: str) -> Toleration:
        """`KEY[=VALUE][:EFFECT]`, as `kubectl taint` spells it; `UsageError` otherwise."""
        rest, colon, effect = text.rpartition(":") if ":" in text else (text, "", "")
        key, equals, value = rest.partition("=")
        known = ("NoSchedule", "PreferNoSchedule", "NoExecute")
        if (
            not _QUALIFIED_NAME.fullmatch(key)
            or (value and not _NAME.fullmatch(value))
            or (colon and effect not in known)
        ):
            raise UsageError(
                f"{text[:100]!r} is not a toleration",
                remedy=f"give KEY[=VALUE][:EFFECT] with EFFECT one of {', '.join(known)}",
            )
        return cls(key, value if equals else None, effect or None)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A private corpus: where it is, and the digest the node checks. It is mounted, never rendered.

    For SkyPilot `location` is a path on this machine; for Kubernetes it is `CLAIM/PATH`, a file on a volume claim.
    """

    location: str
    sha256: str | None = None

    def __post_init__(self) -> None:
        require_text("--corpus", self.location)
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise UsageError(f"{self.sha256[:100]!r} is not a SHA-256", remedy="give 64 lower-case hex digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderRequest:
    """Everything a rendered document depends on besides its template.

    `deadline_s` bounds the whole run and is what the provider enforces. The payload gets `deadline_s - reserve_s`, so
    that there is time to start, to fetch the evidence and to tear down. `expires_at` is when `audit --reap` may take
    what is left. `infra` is SkyPilot's alone; `namespace`, `node_selector`, `tolerations`, `ttl_s`, `collect_wait_s`,
    `queue` (of Kueue) and `priority_class` are Kubernetes' alone. `sink` is where a copy of the evidence outlives the
    node: `pvc:CLAIM[/FOLDER]` on Kubernetes. `node_selector` and `tolerations` replace the template's; None keeps
    them, with the GPU product that `accelerators` names. `cell_keys` are the cells to run of those that set and groups
    select; None runs all of them. `slots` is how many GPUs the node must have, or ranks at a time on a CPU; None keeps
    the template's. `python` is the interpreter on the node, SkyPilot's alone. `qualification` runs command groups on a
    source of their own instead of cells: then `cells` are the names of the groups.

    Raises `UsageError` where a value does not fit its field.
    """

    run_id: str
    cell_set: str
    cells: tuple[str, ...]
    group_variable: str | None = None
    groups: tuple[str, ...] | None = None
    cell_keys: tuple[str, ...] | None = None
    repeat: int = 8
    schedule: str = "fixed"
    slots: int | None = None
    deadline_s: int = 14400
    reserve_s: int = 900
    ttl_s: int = 3600
    collect_wait_s: int = 300
    owner: str = "unknown"
    token: str | None = None
    expires_at: datetime | None = None
    image: ImageReference | None = None
    accelerators: Accelerators = field(default_factory=Accelerators)
    cpus: int | None = None
    memory_gib: int | None = None
    corpus: Corpus | None = None
    infra: str | None = None
    workdir: str | None = None
    harness_mount: str | None = None
    python: str | None = None
    namespace: str | None = None
    node_selector: tuple[tuple[str, str], ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    queue: str | None = None
    priority_class: str | None = None
    sink: str | None = None
    qualification: QualificationFiles | None = None

    def __post_init__(self) -> None:
        if not _RUN_ID.fullmatch(self.run_id):  # the node's own rule: it would refuse the run after GPUs were paid for
            raise UsageError(
                f"--run-id {self.run_id[:100]!a} is no run id",
                remedy="give at most 100 letters, digits, '.', '_' and '-', the first of them a letter or a digit",
            )
        require_text("--owner", self.owner)
        require_text("--cell-set", self.cell_set)
        self._check_selection()
        self._check_times()
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise UsageError("the ownership token is not 32 hex digits", remedy="let orchestrate make it")
        if self.slots is not None and self.slots < 1:
            raise UsageError(f"{self.slots} slots are not possible", remedy="give 1 or more")
        if self.cpus is not None and not 1 <= self.cpus <= 9999:
            raise UsageError(f"--cpus {self.cpus} is not possible", remedy="give 1 to 9999")
        if self.memory_gib is not None and not 1 <= self.memory_gib <= 65536:
            raise UsageError(f"--memory {self.memory_gib} GiB is not possible", remedy="give 1 to 65536")
        if self.infra is not None:
            require_text("--infra", self.infra)
        if self.namespace is not None and not _NAMESPACE.fullmatch(self.namespace):
            raise UsageError(
                f"{self.namespace[:100]!r} is not a namespace", remedy="give a DNS label: a-z, 0-9, -; at most 63"
            )
        if self.queue is not None and not _NAME.fullmatch(self.queue):
            raise UsageError(f"--queue {self.queue[:100]!r} is not a queue", remedy="give the name of a LocalQueue")
        if self.priority_class is not None and not _DNS_SUBDOMAIN.fullmatch(self.priority_class):
            raise UsageError(
                f"--priority-class {self.priority_class[:100]!r} is not a name",
                remedy="give the name of a PriorityClass; `kubectl get priorityclass` lists them",
            )
        if self.sink is not None:
            require_text("--sink", self.sink)
        for key, value in self.node_selector or ():
            if not _QUALIFIED_NAME.fullmatch(key) or (value and not _NAME.fullmatch(value)):
                raise UsageError(
                    f"node selector {key[:100]!r}={value[:100]!r} is no label", remedy="give KEY=VALUE in label syntax"
                )
        for option, path in (
            ("--workdir", self.workdir),
            ("the harness's folder", self.harness_mount),
            ("--python", self.python),
        ):
            if path is not None:
                require_text(option, path)

    @property
    def job_limit_s(self) -> int:
        """Seconds the payload may take."""
        return self.deadline_s - self.reserve_s

    @property
    def groups_text(self) -> str | None:
        """The value of the group variable: `1 4`."""
        return None if self.groups is None else " ".join(self.groups)

    def _check_selection(self) -> None:
        if not self.cells:
            raise UsageError(
                f"cell set {self.cell_set[:100]!r}: the selection is empty", remedy="select at least one cell"
            )
        if self.cell_keys is not None and not (self.cell_keys and set(self.cell_keys) <= set(self.cells)):
            raise UsageError("the keys of the cells to run are not among the cells", remedy="select them")
        if self.groups is None:
            return
        if self.group_variable is None or not _ENV_NAME.fullmatch(self.group_variable):
            raise UsageError(
                f"cell set {self.cell_set[:100]!r} has no group variable, so no group can be selected",
                remedy="leave --groups out",
            )
        if not self.groups:
            raise UsageError("the selection of groups is empty", remedy="name a group, or leave --groups out")
        for group in self.groups:
            if not re.fullmatch(r"[0-9]{1,6}", group, re.ASCII):
                raise UsageError(f"{group[:100]!r} is not a group", remedy="groups are numbers, for example 1,4")

    def _check_times(self) -> None:
        if not 1 <= self.repeat <= 10000:
            raise UsageError(f"--repeat {self.repeat} is not possible", remedy="give 1 to 10000 measured rounds")
        if self.schedule not in SCHEDULES:
            raise UsageError(f"--schedule {self.schedule[:100]!r} is none", remedy=f"give {' or '.join(SCHEDULES)}")
        if self.deadline_s > _MAX_DEADLINE_S:
            raise UsageError(
                f"a deadline of {self.deadline_s} s is more than a day", remedy=f"give at most {_MAX_DEADLINE_S} s"
            )
        if self.collect_wait_s < 0 or self.ttl_s < 0 or self.reserve_s < self.collect_wait_s:
            raise UsageError(
                f"{self.reserve_s} s in reserve do not hold {self.collect_wait_s} s of waiting for collection",
                remedy="make the reserve longer or the wait shorter",
            )
        if self.job_limit_s < _MIN_PAYLOAD_S:
            raise UsageError(
                f"a deadline of {self.deadline_s} s leaves {self.job_limit_s} s for the cells after {self.reserve_s} s "
                "are kept for starting, collecting and tearing down",
                remedy=f"give --deadline at least {self.reserve_s + _MIN_PAYLOAD_S} s",
            )
        if self.expires_at is not None and self.expires_at.utcoffset() != UTC.utcoffset(None):
            raise UsageError(f"the expiry {self.expires_at.isoformat()} is not in UTC", remedy="give it in UTC")
