"""The plan: the frozen, hashed input of one run. What the run is judged by is in it, and it never changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrate.clock import from_wire, to_wire
from orchestrate.errors import ReceiptError
from orchestrate.lifecycle.deadline import Deadline
from orchestrate.lifecycle.payload import Payload
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.lifecycle.source import Source
from orchestrate.receipts.canonical import canonical_bytes, sha256_hex

__all__ = ["Corpus", "Plan", "make_plan", "read_plan"]

PLAN_SCHEMA = "orchestrate.plan/1"


@dataclass(frozen=True, slots=True)
class Corpus:
    """A private corpus: where it lies on this machine (never written down; None: elsewhere) and its SHA-256."""

    path: Path | None
    sha256: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that was frozen. `tree` is `plan.json`, `data` its bytes."""

    tree: Mapping[str, Any]
    data: bytes

    @property
    def sha256(self) -> str:
        """The digest of `plan.json`."""
        return sha256_hex(self.data)

    @property
    def run_id(self) -> str:
        """The run's name."""
        return str(self.tree["run_id"])

    @property
    def backend(self) -> str:
        """The name of the backend."""
        return str(self.tree["backend"])

    @property
    def settings(self) -> Mapping[str, Any]:
        """What was chosen for the backend at launch; empty for none."""
        settings: Mapping[str, Any] = self.tree.get("settings", {})
        return settings

    @property
    def places(self) -> tuple[Mapping[str, Any], ...]:
        """What makes each place that may be asked, in order: settings that stand above the others."""
        return tuple(self.tree.get("places") or ({},))

    @property
    def wait_s(self) -> float:
        """How long a place that is full is asked again."""
        return float(self.tree.get("wait_s", 0.0))

    @property
    def accelerators(self) -> str | None:
        """The GPUs that are asked for, `H200:4`; None for none."""
        return accelerators_of(self.settings, self.device, int(self.tree["ranks"]))

    @property
    def gpus(self) -> int:
        """How many GPUs are held while the run has its resources."""
        return gpu_count(self.accelerators)

    @property
    def payload_files(self) -> Mapping[str, str]:
        """Path in the run directory to SHA-256 of each file that travels; empty for cells, whose harness travels."""
        files: Mapping[str, str] = self.tree.get("payload_files", {})
        return files

    @property
    def cells(self) -> tuple[str, ...]:
        """The keys of the expected cells, or the names of the expected groups."""
        return tuple(self.tree["cells"])

    @property
    def device(self) -> str:
        """The device that the cell set needs."""
        return str(self.tree["device_required"])

    @property
    def deadline_at(self) -> datetime:
        """When the run must be over."""
        return from_wire(self.tree["deadline_at"])

    @property
    def gpu_hours_estimate(self) -> float:
        """The most GPU hours that the run can take; 0 where no GPU is asked for."""
        return float(self.tree["gpu_hours_estimate"])


def make_plan(
    *,
    run_id: str,
    token: str,
    owner: str,
    backend: str,
    payload: Payload,
    deadline: Deadline,
    source: Source,
    max_gpu_hours: float | None,
    settings: Mapping[str, Any],
    places: Sequence[Mapping[str, Any]],
    wait_s: float,
    expires_at: str,
    now: datetime,
) -> Plan:
    """Freeze the input of a run.

    `source` is that of this program. `settings` are what was chosen for the backend: plain JSON without a secret;
    `places` what makes each place that may be asked, and `wait_s` how long those that are full are asked again.
    `expires_at` is when anybody may reap what is left.
    Raises `UsageError` when the manifest does not expect a selected cell.
    """
    ranks, device = payload.ranks, payload.device
    deadline_at = now + timedelta(seconds=deadline.total_s)
    hours = gpu_count(accelerators_of(settings, device, ranks)) * deadline.total_s / 3600
    tree = {
        **payload.plan_facts(run_id, source),
        "schema": PLAN_SCHEMA,
        "run_id": run_id,
        "created_at": to_wire(now),
        "backend": backend,
        "settings": dict(settings),
        "places": [dict(place) for place in places],
        "wait_s": wait_s,
        "ranks": ranks,
        "deadline_s": deadline.total_s,
        "teardown_reserve_s": deadline.reserve_s,
        "deadline_at": to_wire(deadline_at),
        "expires_at": expires_at,
        "owner": owner,
        "token_sha256": sha256_hex(token.encode()),
        "device_required": device,
        "caps": {"deadline_s": deadline.total_s, "max_gpu_hours": max_gpu_hours},
        "gpu_hours_estimate": hours,
    }
    data = canonical_bytes(tree)
    return Plan(json.loads(data), data)


def accelerators_of(settings: Mapping[str, Any], device: str, ranks: int) -> str | None:
    """The GPUs that a run holds: what was asked for by name, else one for each rank of a set that needs them."""
    asked = settings.get("accelerators")
    return str(asked) if asked is not None else None if device == "cpu" else f"H200:{ranks}"


def gpu_count(accelerators: str | None) -> int:
    """How many GPUs `H200:4` is; 0 for None and for `none`."""
    return 0 if accelerators in {None, "none"} else int(str(accelerators).rpartition(":")[2])


def read_plan(run: RunDirectory) -> Plan:
    """The plan of a run; `ReceiptError` when it is missing or is not one."""
    try:
        data = run.plan.read_bytes()
        tree = json.loads(data)
    except (OSError, ValueError) as error:
        raise ReceiptError(f"the plan of run {run.run_id} can not be read: {error}", remedy=_REMEDY) from error
    if not isinstance(tree, dict) or tree.get("schema") != PLAN_SCHEMA:
        raise ReceiptError(f"the plan of run {run.run_id} is not an {PLAN_SCHEMA}", remedy=_REMEDY)
    return Plan(tree, data)


_REMEDY = "read the run with the version that wrote it, or restore plan.json from a copy"
