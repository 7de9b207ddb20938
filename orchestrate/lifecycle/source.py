"""Which source runs: a digest of every harness file, and the commit that git or the wheel names."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrate.receipts.canonical import canonical_bytes, sha256_hex

__all__ = ["Source", "changed_files", "pin_files", "read_source"]


@dataclass(frozen=True, slots=True)
class Source:
    """`commit`, `tree` and `dirty` are None where neither git nor a build record can tell. `pins`: path to SHA-256."""

    commit: str | None
    dirty: bool | None
    tree: str | None
    pins: Mapping[str, str]

    @property
    def pins_sha256(self) -> str:
        """One digest that stands for all pins."""
        return sha256_hex(canonical_bytes(self.pins))

    def as_json(self) -> dict[str, Any]:
        """The `source` member of a plan."""
        return {
            "commit": self.commit,
            "dirty": self.dirty,
            "tree": self.tree,
            "pins": dict(self.pins),
            "pins_sha256": self.pins_sha256,
        }


def read_source(harness: Path, build_record: Path, environ: Mapping[str, str]) -> Source:
    """The source of a run from here.

    Args:
        harness: the folder of the harness package.
        build_record: the file in which a wheel keeps the commit it was built from.
        environ: the environment to run git in; `GIT_*` in it is not passed on, it could name another repository.
    """
    known = _from_git(harness, environ) or _from_build(build_record) or {}
    commit, tree, dirty = known.get("commit"), known.get("tree"), known.get("dirty")
    return Source(
        commit=commit if isinstance(commit, str) else None,
        dirty=dirty if isinstance(dirty, bool) else None,
        tree=tree if isinstance(tree, str) else None,
        pins=pin_files(harness),
    )


def pin_files(harness: Path) -> dict[str, str]:
    """SHA-256 of every file of the harness package, by its path from the package's parent."""
    pins = {}
    for folder, names, files in os.walk(harness):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in files:
            path = Path(folder, name)
            if path.suffix not in {".pyc", ".pyo"}:
                pins[path.relative_to(harness.parent).as_posix()] = sha256_hex(path.read_bytes())
    return dict(sorted(pins.items()))


def changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The paths whose digest is not the same in both."""
    return tuple(sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)))


def _from_git(harness: Path, environ: Mapping[str, str]) -> dict[str, Any] | None:
    env = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1"}

    def git(*arguments: str) -> str:
        answer = subprocess.run(
            ["git", "-C", str(harness.parent), *arguments],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
        return answer.stdout.strip()

    try:
        # An installation inside somebody else's repository is not that repository's source.
        git("ls-files", "--error-unmatch", f"{harness.name}/__init__.py")
        commit, tree = git("rev-parse", "HEAD", "HEAD^{tree}").split()
        return {"commit": commit, "tree": tree, "dirty": bool(git("status", "--porcelain"))}
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _from_build(record: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
