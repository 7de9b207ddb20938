"""`--corpus` of a launch: a file on this machine, a file on a volume claim, or an object in a bucket."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrate.errors import UsageError
from orchestrate.lifecycle.corpora import check_corpus
from orchestrate.lifecycle.plan import Corpus

__all__ = ["ChosenCorpus", "choose_corpus"]

_SHA256 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_CLAIM = re.compile(r"pvc:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/.+", re.ASCII)
_BUCKET = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+/.+", re.ASCII)


@dataclass(frozen=True, slots=True)
class ChosenCorpus:
    """The private corpus of a run; `settings` says where it lies, None where that is a path of this machine."""

    corpus: Corpus | None
    settings: dict[str, str] | None = None


def choose_corpus(backend: str, location: str | None, sha256: str | None) -> ChosenCorpus:
    """The corpus at `location`, pinned by `sha256`.

    A path suits the backends `local` and `sky`, `pvc:CLAIM/PATH` suits `k8s`, a bucket's `s3://BUCKET/PATH` suits
    `sky`. Raises `UsageError` for another form, for a missing digest, and for a file that has another one.
    """
    if location is None or not (location.startswith("pvc:") or "://" in location):
        if location is not None and backend == "k8s":
            raise _unsuitable(location, backend, "pvc:CLAIM/PATH")
        return ChosenCorpus(check_corpus(None if location is None else Path(location), sha256))
    if sha256 is None or not _SHA256.fullmatch(sha256):
        raise UsageError("a corpus that lies elsewhere needs its digest", remedy="give --corpus-sha256 (64 hex digits)")
    form, wanted = {
        "k8s": (_CLAIM, "pvc:CLAIM/PATH"),
        "sky": (_BUCKET, "a path of this machine, or SCHEME://BUCKET/PATH"),
    }.get(backend, (None, "a path of this machine"))
    if form is None or not form.fullmatch(location):
        raise _unsuitable(location, backend, wanted)
    digest = sha256.lower()
    return ChosenCorpus(Corpus(None, digest), {"location": location, "sha256": digest})


def _unsuitable(location: str, backend: str, wanted: str) -> UsageError:
    return UsageError(f"--corpus {location[:200]!r} does not suit the backend {backend}", remedy=f"give {wanted}")
