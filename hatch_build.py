"""Build hook: a wheel or sdist carries the commit it was built from, since it has no git directory to ask."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RECORD = "orchestrate/_source.json"


class SourceRecordHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's generic is over builder configs
    """Write `orchestrate/_source.json`: commit, tree and whether the work tree differed from the commit."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the record to the files of the build."""
        root = Path(self.root)
        if version == "editable" or (root / RECORD).is_file():  # a checkout asks git; an unpacked sdist has its record
            return
        record = _source_record(root)
        if record is None:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="orchestrate-build-")
        path = Path(self._folder.name) / "_source.json"
        path.write_text(json.dumps(record, sort_keys=True) + "\n")
        build_data["force_include"][str(path)] = RECORD

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary record."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _source_record(root: Path) -> dict[str, object] | None:
    """The facts of the git checkout whose top is `root`, or None when `root` is not one."""
    try:
        if Path(_git(root, "rev-parse", "--show-toplevel")).resolve() != root.resolve():
            return None
        return {
            "commit": _git(root, "rev-parse", "HEAD"),
            "tree": _git(root, "rev-parse", "HEAD^{tree}"),
            "dirty": bool(_git(root, "status", "--porcelain")),
        }
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()
