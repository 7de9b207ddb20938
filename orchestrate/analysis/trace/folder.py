"""The traces of one job: which files of a folder they are, whose rank each is, and what could not be read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrate.analysis.trace.flight_recorder import FlightRecorderTrace, Raw, read_dump
from orchestrate.analysis.trace.model import Block, End, Ended, Frame, Interned, RankTrace
from orchestrate.analysis.trace.slots import SlotTrace, is_slot_trace
from orchestrate.errors import UsageError

__all__ = ["Job", "LostTrace", "open_job"]

_NO_TRACES = {".jsonl", ".open", ".log", ".md", ".txt", ".html", ".py", ".csv", ".svg"}
_PICKLES = {b"\x80", b"}", b"(", b""}
_SUFFIXES = (".json", ".pickle", ".pkl", ".trace", ".bin", ".dump")


@dataclass(frozen=True, slots=True)
class Job:
    """The traces of a folder by rank, how many ranks the job had as far as they say, and notes about the files."""

    folder: Path
    traces: Mapping[int, RankTrace]
    world_size: int
    interned: Interned
    notes: tuple[str, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the job that have no file here."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.traces)


class LostTrace:
    """A rank's file that can not be read at all: nothing is known of what the rank did."""

    format = "unreadable"
    world_size: int | None = None
    starts_late = False
    gapless = True
    groups: Sequence[int] = ()

    def __init__(self, path: Path, rank: int, why: str) -> None:
        self.path = path
        self.rank = rank
        place = re.match(r"byte (\d+)", why)
        self.end = End(Ended.CUT, int(place[1]) if place else 0, why)

    def blocks(self, records: int) -> Iterator[Block]:  # noqa: ARG002 - the protocol's
        """Nothing."""
        return iter(())

    def frames(self, record: np.void) -> tuple[Frame, ...]:  # noqa: ARG002 - the protocol's
        """Nothing."""
        return ()


def open_job(folder: Path, *, prefix: str | None = None) -> Job:
    """The traces in `folder`, or in its `trace` folder: ours, or flight recorder dumps as torch names them.

    A dump is a file whose name ends with its rank, whatever stands before (`nccl_trace_rank_3`, `fr_host-2_3.json`).
    Where several files claim one rank, `prefix` chooses those whose names begin with it.

    Raises:
        UsageError: there are no traces, none can be read, two claim the same rank, or they are of several jobs.
    """
    files = _files(folder, prefix)
    if not files and (folder / "trace").is_dir():
        return open_job(folder / "trace", prefix=prefix)
    if not files:
        raise UsageError(
            f"{folder} holds no trace", remedy="name the folder of rank<r>.trace files or of flight recorder dumps"
        )
    interned = Interned()
    chosen, notes = _chosen(folder, files)
    traces: dict[int, RankTrace] = {}
    dumps: dict[int, tuple[Path, Raw]] = {}
    for named, path in sorted(chosen.items()):
        try:
            if _head(path)[12:20] == b"RNKTRACE" or path.suffix == ".trace":
                trace: RankTrace = SlotTrace(path, interned)
                if trace.rank in traces:
                    raise UsageError(f"{path} is of rank {trace.rank}, as another is", remedy="keep one file per rank")
                traces[trace.rank] = trace
            else:
                dumps[named] = path, read_dump(path.read_bytes())
        except ValueError as error:
            traces[named] = LostTrace(path, named, str(error))
        except OSError as error:
            raise UsageError(f"{path} can not be read: {error.strerror}", remedy="mind its rights") from error
    _of_one_job(folder, traces)
    traces |= _dumps(dumps, interned)
    if all(isinstance(trace, LostTrace) for trace in traces.values()):
        first = traces[min(traces)]
        raise UsageError(f"{first.path} is no trace: {first.end.why}", remedy="name the folder of the traces")
    return Job(folder, dict(sorted(traces.items())), _world_size(traces, dumps), interned, tuple(notes))


def _of_one_job(folder: Path, traces: Mapping[int, RankTrace]) -> None:
    """Ours say how many ranks their job has and which it is: of several, a comparison finds what none of them did."""
    by_size = {trace.world_size: trace.path.name for trace in traces.values() if isinstance(trace, SlotTrace)}
    if len(by_size) > 1:
        said = ", ".join(f"{name} of {size} ranks" for size, name in sorted(by_size.items()))
        raise UsageError(f"{folder} holds traces of several jobs: {said}", remedy="keep those of one job")
    heads = [(trace.path.name, trace.read_head()) for trace in traces.values() if isinstance(trace, SlotTrace)]
    heads = [(name, head) for name, head in heads if head]  # one that is damaged says nothing
    named = all(str(head.get("job") or "").isalnum() for _, head in heads)  # a trace without the word may be any job's
    by_job = {
        (str(head["job"])[:40] if named else "?", int(restart)): name
        for name, head in heads
        if isinstance(restart := head.get("restart", 0), int)
    }
    if len(by_job) > 1:
        said = ", ".join(f"{name} of {job}, restart {restart}" for (job, restart), name in sorted(by_job.items())[:4])
        raise UsageError(f"{folder} holds traces of several jobs: {said}", remedy="keep those of one job and attempt")


def _dumps(dumps: Mapping[int, tuple[Path, Raw]], interned: Interned) -> dict[int, RankTrace]:
    traces: dict[int, RankTrace] = {}
    for rank, (path, raw) in dumps.items():
        known = dict(raw.groups)
        # NCCL configures a group when it first uses it: what this rank's dump lacks, a fellow's may have.
        for _, fellow in dumps.values():
            for name, group in fellow.groups.items():
                if name not in known and group.ranks is not None and rank in group.ranks:
                    known[name] = group
        try:
            traces[rank] = FlightRecorderTrace(path, rank, raw, interned, known)
        except ValueError as error:
            traces[rank] = LostTrace(path, rank, str(error))
    return traces


def _world_size(traces: Mapping[int, RankTrace], dumps: Mapping[int, tuple[Path, Raw]]) -> int:
    said = [trace.world_size for trace in traces.values() if trace.world_size is not None]
    configured = [max(group.ranks) + 1 for _, raw in dumps.values() for group in raw.groups.values() if group.ranks]
    return max([*said, *configured, max(traces) + 1])


def _files(folder: Path, prefix: str | None) -> list[tuple[Path, str, int]]:
    """(path, what stands before the rank in its name, rank) of what may be a trace."""
    found, others = [], []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix in _NO_TRACES or not path.is_file():
            continue
        stem = path.name
        while stem.endswith(_SUFFIXES):
            stem = stem[: stem.rindex(".")]
        name = re.fullmatch(r"(.*?)(\d{1,9})", stem, re.DOTALL)
        if name is None or (prefix is not None and not path.name.startswith(prefix)):
            continue
        head = _head(path)
        if path.suffix == ".trace" or is_slot_trace(head) or head[:1] in _PICKLES or _is_json(head):
            found.append((path, name[1], int(name[2])))
        else:
            others.append((path, name[1], int(name[2])))
    # A file that is named as the others are and looks like no trace is a rank's whose trace is damaged, not no rank's.
    names = {before for _, before, _ in found}
    ranks = {rank for _, _, rank in found}
    return found + [other for other in others if other[1] in names and other[2] not in ranks]


def _is_json(head: bytes) -> bool:
    return head.lstrip()[:1] in {b"{", b"["}


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def _chosen(folder: Path, files: Sequence[tuple[Path, str, int]]) -> tuple[dict[int, Path], list[str]]:
    """One file per rank: ours before pickles before JSON of the same name; several names for a rank are an error."""
    own = [file for file in files if file[0].suffix == ".trace"]
    considered = own or list(files)
    notes = [f"{len(files) - len(own)} other files in {folder} are left out"] if own and len(own) < len(files) else []
    by_rank: dict[int, list[tuple[Path, str]]] = {}
    for path, before, rank in considered:
        by_rank.setdefault(rank, []).append((path, before))
    chosen: dict[int, Path] = {}
    for rank, claims in by_rank.items():
        if len({before for _, before in claims}) > 1:
            names = Counter(before for _, before, _ in considered)
            raise UsageError(
                f"{folder} holds several traces of rank {rank}: " + ", ".join(path.name for path, _ in claims[:4]),
                remedy="choose with --prefix, one of: " + ", ".join(sorted(names)),
            )
        pickles = [path for path, _ in claims if path.suffix != ".json"]
        chosen[rank] = (pickles or [path for path, _ in claims])[0]
    if len(chosen) < len(considered):
        notes.append("a dump stands beside its JSON: the pickles are read, which have the callers")
    return chosen, notes
