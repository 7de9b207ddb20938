"""What a run runs: the cells of a set, or the command groups of a qualification over the source of one commit.

A payload says its part of the plan; all else about a run is the same for both.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrate.cells.cell_set import Selection
from orchestrate.cells.manifest import Manifest
from orchestrate.lifecycle.source import Source
from orchestrate.lifecycle.source_archive import ArchivedSource
from orchestrate.qualify.group_file import Qualification
from orchestrate.receipts.canonical import sha256_hex

__all__ = ["ARCHIVE", "GROUPS", "CellsPayload", "GroupsPayload", "Payload"]

ARCHIVE = "payload/source.tar"
GROUPS = "payload/groups.json"
"""The files of a qualification in the run directory; the plan has their digests."""


class Payload(Protocol):
    """One kind of payload."""

    @property
    def device(self) -> str:
        """`cpu` or `h200`."""

    @property
    def ranks(self) -> int:
        """The most ranks, or GPUs, that are needed at a time."""

    def plan_facts(self, run_id: str, source: Source) -> dict[str, Any]:
        """Its members of the plan. `source` is that of this program."""

    def write_files(self, run_dir: Path, run_id: str) -> None:
        """Put the files that travel into the directory of a run."""


@dataclass(frozen=True, slots=True)
class CellsPayload:
    """Selected cells, each candidate measured in `repeat` rounds by `schedule`.

    `corpora` maps each corpus that the cells read to its SHA-256, None where nobody gave it.
    """

    selection: Selection
    manifest: Manifest
    repeat: int
    schedule: str
    corpora: Mapping[str, str | None]

    @property
    def device(self) -> str:
        """That of the cell set."""
        return self.selection.cell_set.device

    @property
    def ranks(self) -> int:
        """Those of the largest cell."""
        return max(cell.gpus for cell in self.selection.cells)

    def plan_facts(self, run_id: str, source: Source) -> dict[str, Any]:
        """Raises `UsageError` when the manifest does not expect a selected cell."""
        selection = self.selection
        keys = [cell.key for cell in selection.cells]
        return {
            "cell_set": selection.cell_set.name,
            "groups": None if selection.groups is None else list(selection.groups),
            "cells": keys,
            "exclusions": [{"key": cell.key, "reason": reason} for cell, reason in selection.excluded],
            "repeat": self.repeat,
            "schedule": self.schedule,
            "environment": {
                **selection.node_environment,
                "RUN_ID": run_id,
                "REPEAT": str(self.repeat),
                "SCHEDULE": self.schedule,
            },
            "source": source.as_json(),
            "manifest_sha256": self.manifest.sha256,
            "candidates": self.manifest.candidates(selection.cell_set.name, keys),
            "corpora": [{"name": name, "sha256": sha256} for name, sha256 in sorted(self.corpora.items())],
        }

    def write_files(self, run_dir: Path, run_id: str) -> None:
        """None: the harness of this installation travels."""


@dataclass(frozen=True, slots=True)
class GroupsPayload:
    """The groups of a qualification. Its commit is the run's: this program, which runs them, is named beside it."""

    qualification: Qualification
    archive: ArchivedSource

    @property
    def device(self) -> str:
        """What the groups need."""
        return self.qualification.device

    @property
    def ranks(self) -> int:
        """The slots that they need."""
        return self.qualification.slots

    def plan_facts(self, run_id: str, source: Source) -> dict[str, Any]:
        """The groups stand where cells do, by their names."""
        tool = source.as_json()
        return {
            "payload": "groups",
            "cell_set": self.qualification.name,
            "groups": None,
            "cells": [group.name for group in self.qualification.groups],
            "exclusions": [],
            "repeat": 1,
            "schedule": "fixed",
            "environment": {"RUN_ID": run_id},
            "source": {**tool, "commit": self.archive.commit, "tree": self.archive.tree, "dirty": False},
            "tool": {name: tool[name] for name in ("commit", "tree", "dirty")},
            "manifest_sha256": None,
            "candidates": {},
            "corpora": [],
            "qualification": self.qualification.for_node(run_id, self.archive.sha256),
            "qualified": self.archive.as_json(),
            "payload_files": {ARCHIVE: self.archive.sha256, GROUPS: sha256_hex(self.groups_json(run_id))},
        }

    def write_files(self, run_dir: Path, run_id: str) -> None:
        """The archive and the groups, as the plan has their digests."""
        (run_dir / ARCHIVE).parent.mkdir(mode=0o700)
        shutil.copyfile(self.archive.path, run_dir / ARCHIVE)
        (run_dir / GROUPS).write_bytes(self.groups_json(run_id))

    def groups_json(self, run_id: str) -> bytes:
        """The file that tells the node what to run."""
        tree = self.qualification.for_node(run_id, self.archive.sha256)
        return (json.dumps(tree, sort_keys=True, indent=1) + "\n").encode()
