"""The corpora that the cells of a run read, each pinned by its SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from orchestrate.cells.cell import Cell
from orchestrate.cells.cell_set import SETS_DIR
from orchestrate.cells.documents import read_json
from orchestrate.errors import UsageError
from orchestrate.lifecycle.plan import Corpus

__all__ = ["check_corpus", "corpora_of"]


def corpora_of(
    cells: Iterable[Cell], private: Corpus | None, *, workloads: Path = SETS_DIR / "workloads.json"
) -> dict[str, str | None]:
    """Name to SHA-256 of each corpus that `cells` read; None for a private one that was not given.

    Raises `UsageError` when a private one is given and not needed, or the recipes are damaged.
    """
    document = read_json(workloads).fields(("schema", "workloads"))
    recipes = document["workloads"].members()
    pins: dict[str, str | None] = {}
    needs_private = False
    for name in sorted({cell.workload for cell in cells}):
        recipe = recipes.get(name)
        fields = {} if recipe is None else recipe.members()
        if "kind" not in fields or fields["kind"].value != "corpus":
            continue
        if fields["private"].value is not True:
            pins[fields["corpus"].text()] = fields["sha256"].text()
            continue
        needs_private = True
        pins[fields["corpus"].text()] = None if private is None else private.sha256
    if private is not None and not needs_private:
        raise UsageError("--corpus was given, but no selected cell reads a private corpus", remedy="drop --corpus")
    return pins


def check_corpus(path: Path | None, sha256: str | None) -> Corpus | None:
    """The private corpus at `path`, whose content must have that SHA-256; None when none is named.

    Raises `UsageError` when only one of the two is given, the file can not be read, or it is another file.
    """
    if path is None and sha256 is None:
        return None
    if path is None or sha256 is None:
        raise UsageError("a private corpus needs its path and its digest", remedy="give --corpus and --corpus-sha256")
    try:
        with path.open("rb") as stream:
            actual = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"the corpus can not be read: {error.strerror}", remedy="look at --corpus") from error
    if actual != sha256.lower():
        raise UsageError(
            f"the corpus has the digest {actual}, not the pinned {sha256}",
            remedy="give the file that was pinned, or the digest of the file that is meant",
        )
    return Corpus(path.resolve(), actual)
