"""The values of the options that say where a run is and what it asks for, shared by `render` and `launch`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from orchestrate.cells.cell_set import Selection
from orchestrate.errors import UsageError
from orchestrate.qualify.group_file import Qualification
from orchestrate.render.request import Accelerators, Corpus, Toleration
from orchestrate.render.templates import Backend

__all__ = ["Needs", "parse_accelerators", "parse_corpus", "parse_node_selector", "parse_tolerations"]

_GPU_KIND = "H200"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs of the place that it is asked for.

    `what` is the run in words, `keys` its cells or groups, `gpus` the most that are used at a time where `device` is
    `h200`; `default` is asked for where nobody names accelerators.
    """

    what: str
    name: str
    keys: tuple[str, ...]
    device: str
    gpus: int
    default: Accelerators

    @classmethod
    def of_cells(cls, selection: Selection) -> Needs:
        """Those of cells: four H200s unless others are named, also where the ranks run on a CPU."""
        one = selection.cell_set
        keys, gpus = tuple(cell.key for cell in selection.cells), max(cell.gpus for cell in selection.cells)
        return cls(f"cell set {one.name!r}", one.name, keys, one.device, gpus, Accelerators())

    @classmethod
    def of_groups(cls, qualification: Qualification) -> Needs:
        """Those of a qualification: the GPUs of its slots, none where its device is a CPU."""
        device, slots = qualification.device, qualification.slots
        default = Accelerators(_GPU_KIND, slots) if device == "h200" else Accelerators.parse("none")
        keys = tuple(group.name for group in qualification.groups)
        return cls(f"qualification {qualification.name!r}", qualification.name, keys, device, slots, default)


def parse_accelerators(text: str | None, needs: Needs) -> Accelerators:
    """The GPUs to ask for, the default where none are named; `UsageError` where they are not what is needed.

    The node refuses a cell that it has too few GPUs for, and one of another kind. Ranks on a CPU need neither.
    """
    wanted = needs.default if text is None else Accelerators.parse(text)
    if needs.device != "h200":
        return wanted
    if wanted.kind != _GPU_KIND:
        raise UsageError(f"--accelerators {wanted}: {needs.what} is for {_GPU_KIND} GPUs", remedy=f"give {_GPU_KIND}:N")
    if wanted.count < needs.gpus:
        raise UsageError(
            f"--accelerators {wanted}: {needs.what} takes {needs.gpus} GPUs at a time",
            remedy=f"give at least {wanted.kind}:{needs.gpus}",
        )
    return wanted


def parse_node_selector(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...] | None:
    """The labels that a node must have; None keeps the template's, `none` alone is no label at all."""
    if not texts:
        return None
    if texts == ("none",):
        return ()
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--node-selector {text[:100]!r} is no KEY=VALUE", remedy="give KEY=VALUE, or none alone")
        if key in pairs:
            raise UsageError(
                f"--node-selector names {key[:100]!r} twice: a node has one value for it", remedy="name each key once"
            )
        pairs[key] = value
    return tuple(pairs.items())


def parse_tolerations(texts: tuple[str, ...]) -> tuple[Toleration, ...] | None:
    """The taints that are tolerated; None keeps the template's, `none` alone is none at all."""
    if not texts:
        return None
    if texts == ("none",):
        return ()
    if "none" in texts:
        raise UsageError("--toleration none stands beside others", remedy="give none alone, or leave it out")
    return tuple(Toleration.parse(text) for text in texts)


def parse_corpus(backend: Backend, location: str | None, sha256: str | None) -> Corpus | None:
    """The private corpus of a rendered document: a file on this machine for `sky`, one on a claim for `k8s`."""
    if location == "":
        raise UsageError("--corpus is empty", remedy="name the corpus, or leave the option out")
    if location is None:
        if sha256 is not None:
            raise UsageError("--corpus-sha256 without --corpus", remedy="name the corpus as well")
        return None
    on_claim = location.startswith("pvc:")
    if on_claim != (backend is Backend.K8S):
        wanted = "pvc:CLAIM/PATH" if backend is Backend.K8S else "a path on this machine"
        raise UsageError(f"--corpus {location[:200]!r} does not suit the backend {backend}", remedy=f"give {wanted}")
    if on_claim:
        if sha256 is None:
            raise UsageError(
                "a corpus on a volume claim has no pinned digest", remedy="add --corpus-sha256 (sha256sum prints it)"
            )
        return Corpus(location.removeprefix("pvc:"), sha256)
    return Corpus(location, _digest(Path(location), sha256))


def _digest(path: Path, expected: str | None) -> str:
    try:
        if path.exists() and not path.is_file():  # to open a FIFO would wait for ever
            raise UsageError(f"the corpus {path} is not a regular file", remedy="give the path of its token file")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"the corpus {str(path)[:200]!r} can not be read: {why}", remedy="give the path of its token file"
        ) from error
    if expected is not None and expected != found:
        raise UsageError(
            f"the corpus {path} has the digest {found}, not {expected}", remedy="give the right file or digest"
        )
    return found
