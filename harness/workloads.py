"""Workloads: the token rows of each named workload, made from a recipe or read from a corpus.

Recipes are data, in `sets/workloads.json`. Synthetic rows are pseudo-random tokens in a prescribed shape of shared
prefixes. Stretches that are meant to differ differ at their first token, so that the shape holds exactly.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness import corpus
from harness.documents import Place, read_json
from harness.errors import InputError
from harness.prefix_tree import Row

__all__ = [
    "SETS_DIR",
    "WORKLOADS_SCHEMA",
    "Corpus",
    "Families",
    "Grpo",
    "Workload",
    "load_rows",
    "load_workloads",
    "workload",
]

SETS_DIR = Path(__file__).parent / "sets"
"""The data that the harness owns: cell sets, workloads, manifest, public corpora."""

WORKLOADS_SCHEMA = "orchestrate.workloads/1"


@dataclass(frozen=True, slots=True)
class Grpo:
    """`groups` prompt groups of `rows` rows each: shared system + the group's prompt + own completion, in tokens."""

    groups: int
    rows: int
    system: int
    prompt: int
    completion: int
    seed: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Families:
    """Families of (prefix length, completion lengths) and rows of their own (`singles`), in tokens."""

    families: tuple[tuple[int, tuple[int, ...]], ...]
    singles: tuple[int, ...]
    seed: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """Groups of a corpus. A public one lies beside the sets and is pinned by `sha256`; a private one is named by path.

    `groups` is how many groups it has, numbered from 0.
    """

    name: str
    private: bool
    groups: int
    sha256: str | None


Workload = Grpo | Families | Corpus


def load_rows(
    workload_name: str, group: int | None, corpus_path: Path | None = None, corpus_sha256: str | None = None
) -> tuple[Row, ...]:
    """The token rows of a workload.

    `group` chooses a group of a corpus and must be None for a synthetic workload. `corpus_path` and `corpus_sha256`
    name and pin a private corpus; other workloads ignore them.

    Raises:
        InputError: no such workload or group, or a corpus that is missing, damaged or not the pinned one.
    """
    match workload(workload_name):
        case Corpus() as recipe:
            return _corpus_rows(workload_name, recipe, group, corpus_path, corpus_sha256)
        case recipe if group is not None:
            raise InputError(
                f"workload {workload_name!r} is synthetic and has no group {group}", remedy="leave the group out"
            )
        case Grpo() as recipe:
            return tuple(_grpo_rows(recipe))
        case Families() as recipe:
            return tuple(_family_rows(recipe))


def workload(name: str, sets_dir: Path = SETS_DIR) -> Workload:
    """The recipe of workload `name`; `InputError` lists the workloads that exist."""
    known = load_workloads(sets_dir)
    if name not in known:
        raise InputError(f"no workload {name!r}", remedy=f"choose one of {', '.join(known)}")
    return known[name]


def load_workloads(sets_dir: Path = SETS_DIR) -> Mapping[str, Workload]:
    """Every workload by name, in the order of the file.

    Raises:
        InputError: `workloads.json` is damaged; file and place are named.
    """
    document = read_json(sets_dir / "workloads.json").fields(("schema", "workloads"))
    document["schema"].schema(WORKLOADS_SCHEMA)
    return {name: _workload(place) for name, place in document["workloads"].members().items()}


def _workload(place: Place) -> Workload:
    kind = place.members().get("kind", Place(place.file, None, place.path + ".kind"))
    match kind.text():
        case "grpo":
            recipe = place.fields(("kind", "shape", "seed", "vocabulary"))
            shape = recipe["shape"].integers(1)
            if len(shape) != 5:
                raise recipe["shape"].error("must be [groups, rows, system, prompt, completion]")
            _refuse_crowd(recipe["shape"], max(shape[:2]))
            made: Workload = Grpo(*shape, recipe["seed"].integer(0), _vocabulary(recipe["vocabulary"]))
        case "families":
            recipe = place.fields(("kind", "families", "singles", "seed", "vocabulary"))
            families = tuple(_family(family) for family in recipe["families"].items())
            singles = recipe["singles"].integers(1)
            _refuse_crowd(place, max(len(families) + len(singles), *(len(rows) for _, rows in families)))
            made = Families(families, singles, recipe["seed"].integer(0), _vocabulary(recipe["vocabulary"]))
        case "corpus":
            recipe = place.fields(("kind", "corpus", "private", "groups", "sha256"))
            made = _corpus(recipe)
        case other:
            raise kind.error(f"unknown kind {other!r}; known are corpus, families, grpo")
    return made


def _refuse_crowd(place: Place, siblings: int) -> None:
    if siblings > 256:
        raise place.error("at most 256 siblings can differ at their first token")


def _vocabulary(place: Place) -> int:
    size = place.integer(256)
    if size > 1 << 16 or size & (size - 1):
        raise place.error("must be a power of two from 256 to 65536")
    return size


def _family(place: Place) -> tuple[int, tuple[int, ...]]:
    parts = place.items()
    if len(parts) != 2:
        raise place.error("must be [prefix, [completion, ...]]")
    return parts[0].integer(1), parts[1].integers(1)


def _corpus(recipe: Mapping[str, Place]) -> Corpus:
    private, sha256 = recipe["private"].value, recipe["sha256"].value
    if not isinstance(private, bool):
        raise recipe["private"].error("must be true or false")
    if private and sha256 is not None:
        raise recipe["sha256"].error("must be null: a private corpus is pinned where it is named")
    if not private and not (isinstance(sha256, str) and corpus.is_sha256(sha256)):
        raise recipe["sha256"].error("must be the 64 lower-case hexadecimal digits of a SHA-256")
    pinned = sha256 if isinstance(sha256, str) else None
    return Corpus(recipe["corpus"].text(), private, recipe["groups"].integer(1), pinned)


def _corpus_rows(
    workload_name: str, recipe: Corpus, group: int | None, path: Path | None, sha256: str | None
) -> tuple[Row, ...]:
    if group is None or not 0 <= group < recipe.groups:
        wrong = "needs a group" if group is None else f"has no group {group}"
        raise InputError(f"workload {workload_name!r} {wrong}", remedy=f"choose a group from 0 to {recipe.groups - 1}")
    if recipe.private:
        rows = corpus.private_group(recipe.name, group, path, sha256)
    else:
        rows = corpus.public_group(SETS_DIR / "corpus" / f"{recipe.name}.json", group, recipe.sha256 or "")
    return rows


def _grpo_rows(recipe: Grpo) -> Iterator[Row]:
    system = _stretch(recipe, "system", 0, recipe.system)
    for group in range(recipe.groups):
        prompt = _stretch(recipe, f"prompt {group}", group, recipe.prompt)
        for row in range(recipe.rows):
            yield system + prompt + _stretch(recipe, f"completion {group} {row}", row, recipe.completion)


def _family_rows(recipe: Families) -> Iterator[Row]:
    for family, (prefix_length, completions) in enumerate(recipe.families):
        prefix = _stretch(recipe, f"prefix {family}", family, prefix_length)
        for row, length in enumerate(completions):
            yield prefix + _stretch(recipe, f"completion {family} {row}", row, length)
    for single, length in enumerate(recipe.singles):
        yield _stretch(recipe, f"single {single}", len(recipe.families) + single, length)


def _stretch(recipe: Grpo | Families, name: str, sibling: int, length: int) -> Row:
    """`length` tokens that depend on seed and name alone; the first one tells `sibling` from its siblings."""
    stream = hashlib.shake_256(f"{recipe.seed}/{name}".encode()).digest(2 * length)
    tokens = array("H", stream)
    if sys.byteorder == "big":
        tokens.byteswap()
    first = (tokens[0] & -256 | sibling) % recipe.vocabulary
    return (first, *(token % recipe.vocabulary for token in tokens[1:]))
