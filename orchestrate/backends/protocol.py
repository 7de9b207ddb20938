"""What the life cycle asks of a provider, and in which words it is answered.

The supervisor, the warden and the recovery know a provider only through `Backend`. One object serves one run. What a
later process needs to find or to prove gone what this one made, it must be told: `observed()` hands out facts, the
life cycle writes them to the journal, and `recall()` gives them back to a backend in another process. What can be
known beforehand (names, labels) is `intent()`: it is on disk before anything is asked for, so that a lost answer
loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

__all__ = [
    "Acquisition",
    "Answer",
    "Backend",
    "CensusPath",
    "Collection",
    "Fact",
    "JobState",
    "JobStatus",
    "Look",
    "Outcome",
    "Ownership",
    "Preflight",
    "Request",
    "Resource",
    "Step",
    "Submission",
    "Usage",
]

Fact = Mapping[str, Any]
"""Something a backend saw or made: plain JSON with a `kind`. Only the backend that wrote it reads it."""


class CensusPath(StrEnum):
    """Who was asked whether something of ours is left: the place itself, or a server that holds the credentials."""

    DIRECT = "direct"
    VIA_SERVER = "via-server"


class JobState(StrEnum):
    """Where the payload is. `ENDED` is the job's own terminal status, never guessed from a log stream."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Outcome(StrEnum):
    """What became of one step of a teardown."""

    DONE = "done"
    NOTHING_THERE = "nothing-there"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ownership:
    """The marks that every resource of a run carries, in the widest field that the provider keeps.

    `token` is 32 hex digits chosen at random; `expires_at` (RFC 3339) is when anybody may reap; `run_dir` is where the
    owner's lock lies.
    """

    run_id: str
    token: str
    owner: str
    expires_at: str
    run_dir: Path


@dataclass(frozen=True, slots=True)
class Request:
    """What a run asks for.

    Attributes:
        cell_set: name of the cell set.
        cells: the selected cell keys.
        device: `cpu` or `h200`.
        ranks: the most ranks that one cell needs; for `h200` also the GPUs to ask for.
        environment: the node's contract: `CELL_SET`, the group variable, `RUN_ID`, `REPEAT`, corpus, and `CELL_KEYS`
            where only some of the selected cells are to run: whoever renders must pass that on.
        evidence: the folder that the node writes, or that `collect` fills.
        logs: the folder for what the payload prints.
        corpora_not_given: private corpora that the cells read and that nobody named: without them nothing can run.
        deadline_s: the cap that the provider is given at creation: after so many seconds it ends what is left.
        reserve_s: how much of the deadline belongs to start, collection and teardown.
        groups, archive: of a qualification, the file that tells the node what to run and the source that it runs on;
            None where cells are measured.
    """

    cell_set: str
    cells: tuple[str, ...]
    device: str
    ranks: int
    environment: Mapping[str, str]
    evidence: Path
    logs: Path
    corpora_not_given: tuple[str, ...] = ()
    deadline_s: float = 0.0
    reserve_s: float = 0.0
    groups: Path | None = None
    archive: Path | None = None


@dataclass(frozen=True, slots=True)
class Preflight:
    """It can fit here. `facts` describe the place, `caps` what ends a run without us, `fingerprint` names the node."""

    device: str
    facts: Mapping[str, Any]
    caps: Mapping[str, Any]
    fingerprint: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that exists because we asked for it."""

    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class Acquisition:
    """What was given. `requested` is what had been asked for; the two are told apart in the receipt.

    `manifest_sha256` is the digest of the rendered document that was sent, None where nothing is rendered. `caps_read`
    are the caps as the provider gave them back after the creation.
    """

    resources: tuple[Resource, ...]
    requested: Mapping[str, Any]
    manifest_sha256: str | None = None
    caps_read: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Submission:
    """The payload was started as `job`; `cap_s` is after how many seconds it ends without us."""

    job: Resource
    cap_s: float


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How the payload is doing.

    `exit_code` or `signal` (a name) once it ended. `progress` are the lines of the node's `node.jsonl` since the last
    poll. `fault` says that the place itself, or somebody outside, ended it; `by_cap` that the cap of `submit` did.
    """

    state: JobState
    exit_code: int | None = None
    signal: str | None = None
    progress: tuple[Mapping[str, Any], ...] = ()
    fault: str | None = None
    by_cap: bool = False


@dataclass(frozen=True, slots=True)
class Collection:
    """The evidence is home. `problem` says what could not be fetched, None when all of it is there."""

    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a teardown: what was done to which target, and what became of it."""

    step: str
    target: str
    outcome: Outcome
    at: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One question of a census and the provider's answer, in words."""

    what: str
    answer: str


@dataclass(frozen=True, slots=True)
class Look:
    """One look for whatever the run may own. A question that could not be answered is `unknown`, never absence."""

    at: str
    asked: tuple[Answer, ...]
    remaining: tuple[Resource, ...]
    unknown: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Every question was answered, and every answer was: not there."""
        return not self.remaining and not self.unknown


@dataclass(frozen=True, slots=True)
class Usage:
    """The process family of the payload, as far as it was seen. On a remote provider everything may be None.

    `image` is the container image that was asked for and the digest that really ran; empty where there is none.
    `gpu_s` are the GPU seconds that were held, from the grant to the end; `cost_usd` where the provider knows a price.
    """

    processes: Mapping[str, int] = field(default_factory=dict)
    peak_rss_bytes: int | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    image: Mapping[str, Any] = field(default_factory=dict)
    gpu_s: float | None = None
    cost_usd: float | None = None


class Backend(Protocol):
    """One provider, for one run.

    Every call that talks to a provider has its own deadline, and is repeated only where it is idempotent. A failure is
    a `BackendError` that keeps the provider's answer, a lack of GPUs a `CapacityError`, a wish that can never be
    granted an `UnsatisfiableError`. `stop`, `release` and `census` never raise for what they find: a step that failed
    is a step with `Outcome.FAILED`, a question without an answer is `unknown`.
    """

    name: str
    census_path: CensusPath
    teardown_reserve_s: float

    @property
    def poll_interval_s(self) -> float:
        """How long to wait between two polls, as things are now."""

    def spare(self, pid: int) -> None:
        """The process `pid` on this machine serves the run (a warden) but is not the run's to be ended."""

    def preflight(self, request: Request) -> Preflight:
        """Whether the request can ever fit, and what the place is like. Creates nothing."""

    def intent(self, request: Request) -> Fact:
        """The names of what `acquire` will create, for the journal."""

    def acquire(self, request: Request, *, budget_s: float, pause: Callable[[float], None]) -> Acquisition:
        """Get the resources, waiting for them at most `budget_s`.

        Whatever happens after this call was entered, something of ours may exist. `pause(seconds)` is how the call
        waits: it writes what was observed to the journal first, and raises when the run is told to stop; that
        exception goes through. After a side effect whose answer a later process needs, `pause(0)` is called at once.
        """

    def submit(self, request: Request, *, budget_s: float, lifeline_fd: int | None) -> Submission:
        """Start the payload; it ends by itself after `budget_s`, and when the pipe behind `lifeline_fd` closes."""

    def poll(self) -> JobStatus:
        """How the payload is doing; returns at once."""

    def wake_fd(self) -> int | None:
        """A descriptor that becomes readable when polling is worth while, where the provider has one."""

    def logs(self) -> str:
        """The last lines of what the payload printed."""

    def stop(self) -> tuple[Step, ...]:
        """End the payload, keep what holds its evidence. Idempotent."""

    def collect(self, request: Request) -> Collection:
        """Bring the evidence to `request.evidence`."""

    def release(self) -> tuple[Step, ...]:
        """Give back everything that carries this run's token. Idempotent; goes on past a failing step."""

    def census(self) -> Look:
        """Look once for everything that this run may own."""

    def usage(self) -> Usage:
        """What the payload used."""

    def observed(self) -> tuple[Fact, ...]:
        """The facts that were learnt since the last call."""

    def recall(self, facts: Iterable[Fact]) -> None:
        """Learn what another process of ours observed."""
