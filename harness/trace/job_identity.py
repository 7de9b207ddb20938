"""Which job a rank belongs to: a command may start one after the other, or the same one again.

Of two jobs a comparison would find what neither did. So each attempt has a folder of its own, which the launcher's
environment tells apart before there is a group, and each head has a word that the job's ranks share.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from .format import trace_path

__all__ = ["OWNER", "Store", "free_place", "launch_identity", "shared_identity"]

OWNER = "job.txt"
"""The file of a folder that says whose traces it holds."""
_LAUNCH = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
_KEY = "orchestrate/trace/job"


class Store(Protocol):
    """What is used of torch's stores."""

    def compare_set(self, key: str, expected_value: str, desired_value: str, /) -> bytes | str:
        """Set `key` if nobody has; what it holds then."""


def launch_identity(environ: Mapping[str, str]) -> str:
    """What a launcher's ranks of one attempt have in common, and another attempt's have not, as far as it says."""
    said = json.dumps([environ.get(name) for name in _LAUNCH])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def shared_identity(store: Store) -> str | None:
    """The word that the ranks of a process group share: the first to ask makes it, and nobody waits for anyone.

    None where the store can not say. The attempts of a restarted job may share their store, and so the word.
    """
    with contextlib.suppress(Exception):  # stores are of many makes: a trace without the word is better than none
        said = store.compare_set(_KEY, "", secrets.token_hex(8))
        word = said.decode() if isinstance(said, bytes) else said
        return word or None
    return None


def free_place(directory: Path, rank: int, job: str) -> Path:
    """`directory`, or the first of its folders `job2`, `job3`, ... that is `job`'s and has no trace of `rank` yet."""
    place, number = directory, 1
    while trace_path(place, rank).exists() or not _is_of(place, job):
        number += 1
        place = directory / f"job{number}"
    return place


def _is_of(place: Path, job: str) -> bool:
    """Whether `place` is this job's; it becomes so if it is nobody's."""
    owner, mine = place / OWNER, place / f".{OWNER}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        mine.write_text(job + "\n")
        try:
            with contextlib.suppress(FileExistsError):
                os.link(mine, owner)  # at once whole, and only one rank's
            return owner.read_text().strip() == job
        finally:
            mine.unlink()
    except OSError:
        return True  # whether anything can be written here, the trace itself will show
