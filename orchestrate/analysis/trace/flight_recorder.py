"""PyTorch's flight recorder: its dumps as pickle or JSON, of NCCL, gloo and the others, whatever the version wrote.

Fields come and go with the version (1.x to 2.10 are known), so each has a default; what the dump does not say stays
unknown. gloo's dumps say neither the ranks of a group nor the state of an entry, only whether it is retired, and leave
out point-to-point operations.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orchestrate.analysis.trace.calls import canonical_dtype, canonical_op, numel
from orchestrate.analysis.trace.model import RECORD, Block, Call, Context, End, Ended, Frame, Group, Interned, State
from orchestrate.analysis.trace.strict_pickle import PickleError, load_flat

__all__ = ["KEYS", "FlightRecorderTrace", "Raw", "read_dump"]

KEYS = 4096
"""Records that may share one sequence number."""
_MOST_TENSORS, _MOST_DIMENSIONS = 4096, 64
_FIELDS = (
    "profiling_name", "process_group", "collective_seq_id", "seq_id", "record_id", "state",
    "retired", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "time_created_ns",
    "time_discovered_completed_ns", "thread_id", "frames", "orchestrate", "pg_name", "pg_id",
)  # fmt: skip


class Raw(NamedTuple):
    """A dump as read: its version, the groups that it configures (name -> desc, ranks), and its entries."""

    version: str
    groups: Mapping[str, Group]
    entries: list[Any]
    format: str


def read_dump(data: bytes) -> Raw:
    """Read a dump. Nothing in it is run, whatever it holds.

    Raises:
        ValueError: it is cut, damaged or no dump; the message names the place.
    """
    collecting = gc.isenabled()
    gc.disable()  # a dump is millions of containers, none of them garbage: looking through them is half of the time
    try:
        if data[:1] == b"{" or data[:64].lstrip()[:1] in {b"{", b"["}:
            return _raw(_json(data), "flight-recorder-json")
        return _raw(load_flat(data), "flight-recorder")
    except PickleError as error:
        raise ValueError(str(error)) from error
    finally:
        if collecting:
            gc.enable()


class FlightRecorderTrace:
    """One rank's dump, with the groups that other ranks' dumps know better in `known`.

    Raises:
        ValueError: an entry is not one; the message names it.
    """

    def __init__(self, path: Path, rank: int, raw: Raw, interned: Interned, known: Mapping[str, Group]) -> None:
        self.path = path
        self.rank = rank
        self.format = raw.format
        self.world_size: int | None = None
        self.version = raw.version
        self.end = End(Ended.DUMP)
        self._interned = interned
        self._known = known
        self._groups: dict[tuple[Any, ...], int] = {}
        self._stacks: list[Any] = []
        self.implied: dict[int, int] = {}
        """Group -> how many ranks it has, as the sizes of a gathered result say."""
        self.gapless = True
        self._block, self.starts_late = self._columns(raw.entries)

    @property
    def groups(self) -> Sequence[int]:
        """The groups that this rank has used."""
        return list(dict.fromkeys(self._groups.values()))

    def blocks(self, records: int) -> Iterator[Block]:
        """The records: a dump is in memory whole."""
        for at in range(0, len(self._block), records):
            yield self._block[at : at + records]

    def frames(self, record: np.void) -> tuple[Frame, ...]:
        """The code that made `record`, innermost first; torch's own is left out where other code is known."""
        frames = [_frame(frame) for frame in self._stacks[int(record["local"])] or ()]
        user = [frame for frame in frames if "/torch/" not in frame.file and "typing_extensions" not in frame.file]
        return tuple(user or frames)

    def _columns(self, entries: Sequence[Any]) -> tuple[Block, bool]:
        columns: list[tuple[Any, ...]] = []
        read = _Entries()
        threads: dict[Any, int] = {}
        last: dict[int, tuple[int, int]] = {}
        channels: dict[int, int] = {}
        calls: dict[Any, tuple[int, str, bool]] = {}
        first_id: int | None = None
        for place, entry in enumerate(entries):
            try:
                (
                    name, process_group, sequence, old_sequence, record_id, state,
                    retired, in_sizes, in_dtypes, out_sizes, out_dtypes, created,
                    completed, thread, frames, extra, pg_name, pg_id,
                ) = read.fields(entry)  # fmt: skip
                id_ = None if record_id is None else _integer(record_id)
                if first_id is None:
                    first_id = -1 if id_ is None else id_
                self.gapless &= id_ == first_id + place
                inputs, outputs = _sizes(in_sizes), _sizes(out_sizes)
                shape = (_name(name), inputs, _texts(in_dtypes), outputs, _texts(out_dtypes))
                more = None if extra is None else _extra(extra)
                known = calls.get(shape) if more is None else None
                if known is None:
                    known = self._call(shape, more)
                    if more is None:
                        calls[shape] = known
                number, op, gloo = known
                if op == "coalesced":
                    continue  # it closes a batch of operations that are entries themselves
                group_name = process_group if process_group is not None else pg_name if pg_name is not None else pg_id
                peers = name.partition(" ")[2] if op in {"send", "recv"} else ""
                group = self._group(group_name, op, peers)
                if op.startswith("all_gather") and (share := numel(inputs)) and group not in self.implied:
                    self.implied[group] = numel(outputs) // share
                if peers:
                    key = channels[group] = channels.get(group, -1) + 1
                else:
                    seq = _integer(sequence if sequence is not None else old_sequence, default=-1)
                    before, index = last.get(group, (-1, 0))
                    index = index + 1 if seq == before else 0
                    last[group] = (seq, index)
                    key = _key(seq, index, before)
                how = more.state if more is not None and more.state is not None else _state(state, retired, gloo=gloo)
                columns.append((
                    group, number, self._context(more), key, -1 if more is None else more.forward, how, bool(peers),
                    threads.setdefault(_scalar(thread), len(threads)), len(self._stacks),
                    _integer(created), _integer(completed), place if id_ is None else id_,
                ))  # fmt: skip
                self._stacks.append(frames)
            except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
                raise ValueError(f"entry {place} is not one of the flight recorder: {error}") from error
        block = np.array(columns, RECORD) if columns else np.zeros(0, RECORD)
        return block, first_id is not None and first_id > 0

    def _call(self, shape: tuple[Any, ...], more: _Extra | None) -> tuple[int, str, bool]:
        name, inputs, input_dtypes, outputs, output_dtypes = shape
        backend, _, rest = name.rpartition(":")
        op = canonical_op(rest.partition(" ")[0]) if more is None or more.op is None else more.op
        call = Call(
            op=op,
            input_sizes=inputs,
            input_dtypes=tuple(map(canonical_dtype, input_dtypes)),
            output_sizes=outputs,
            output_dtypes=tuple(map(canonical_dtype, output_dtypes)),
            **({} if more is None else more.call),
        )
        return self._interned.calls.number(call), op, backend == "gloo"

    def _context(self, more: _Extra | None) -> int:
        return 0 if more is None else self._interned.contexts.number(more.context)

    def _group(self, named: Any, op: str, peers: str) -> int:
        name, desc = (named[0], named[1]) if isinstance(named, (tuple, list)) and len(named) == 2 else (named, None)
        if not isinstance(name, (str, int)) or not isinstance(desc, (str, type(None))):
            raise TypeError("its process group has no name")
        known = self._groups.get((name, desc, peers))
        if known is None:
            group = self._known.get(str(name)) or Group(str(name), None, desc)
            if desc is not None and desc != group.desc:
                group = Group(group.name, group.ranks, desc)
            if peers:
                group = Group(group.name, group.ranks, group.desc, _pair(peers, op, group.ranks))
            known = self._groups[name, desc, peers] = self._interned.groups.number(group)
        return known


class _Extra(NamedTuple):
    """What an export of ours says beyond the flight recorder's own fields."""

    op: str | None
    call: dict[str, Any]
    context: Context
    forward: int
    state: State | None


class _Entries:
    """The fields of entries, whose keys are nearly always those of the entry before."""

    def __init__(self) -> None:
        self._keys: list[Any] | None = None
        self._get: Callable[[list[Any]], tuple[Any, ...]] = tuple

    def fields(self, entry: Any) -> tuple[Any, ...]:
        """The values of `_FIELDS` in `entry`, None for what it lacks. A flat list gets a None at its end."""
        if isinstance(entry, dict):
            return tuple(map(entry.get, _FIELDS))
        if not isinstance(entry, list) or len(entry) % 2 or (entry and isinstance(entry[0], tuple)):
            entry = [item for pair in as_dict(entry).items() for item in pair]
        keys = entry[::2]
        entry.append(None)
        if keys != self._keys:
            if not all(isinstance(key, str) for key in keys):
                raise TypeError("a key is no text")
            self._get = itemgetter(*(2 * keys.index(name) + 1 if name in keys else -1 for name in _FIELDS))
            self._keys = keys
        return self._get(entry)


def as_dict(value: Any) -> dict[str, Any]:
    """A dict, whether it came as one or as a flat list (`strict_pickle`)."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, (list, tuple)):
        raise TypeError("not a mapping")
    found: dict[str, Any] = {}
    at = 0
    while at < len(value):
        if isinstance(value[at], tuple) and len(value[at]) == 2:
            key, item = value[at]
            at += 1
        else:
            key, item = value[at], value[at + 1]
            at += 2
        if not isinstance(key, (str, int)):
            raise TypeError("a key is neither text nor integer")
        found[str(key)] = item
    return found


def _json(data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"byte {error.pos}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start}: it is no UTF-8") from error
    except RecursionError as error:
        raise ValueError("byte 0: it is nested too deeply") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _raw(value: Any, form: str) -> Raw:
    try:
        top = as_dict(value)
        entries = list(top["entries"])
        configured = as_dict(top.get("pg_config") or {})
        groups = {name: _configured(name, config) for name, config in configured.items()}
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise ValueError(f"it is no dump of the flight recorder ({error})") from error
    # gloo configures one group without a name and without ranks: nothing is known.
    groups = {name: group for name, group in groups.items() if group.ranks}
    return Raw(_scalar(top.get("version")), groups, entries, form)


def _configured(name: str, config: Any) -> Group:
    facts = as_dict(config)
    ranks, desc = facts.get("ranks"), facts.get("desc")
    if isinstance(ranks, str):
        ranks = [int(number) for number in ranks.strip("[](){} \n").split(",") if number.strip()]
    if ranks is not None and (not isinstance(ranks, (list, tuple)) or any(type(rank) is not int for rank in ranks)):
        raise TypeError(f"the ranks of group {name[:40]} are no list of numbers")
    return Group(name, tuple(ranks) if ranks else None, desc if isinstance(desc, str) else None)


def _pair(peers: str, op: str, ranks: tuple[int, ...] | None) -> tuple[int, int]:
    """(sender, receiver) as global ranks, from `1->2` of a send or `2<-1` of a receive."""
    first, arrow, second = peers.partition("->" if op == "send" else "<-")
    if not arrow:
        raise ValueError(f"{peers[:40]!r} names no two ranks")
    sender, receiver = (int(first), int(second)) if op == "send" else (int(second), int(first))
    if ranks is None:
        return sender, receiver
    if not (0 <= sender < len(ranks) and 0 <= receiver < len(ranks)):
        raise ValueError(f"{peers[:40]!r} is beyond a group of {len(ranks)}")
    return ranks[sender], ranks[receiver]


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    if value is None:
        return ()
    if len(value) > _MOST_TENSORS:
        raise ValueError(f"{len(value)} tensors in one entry")
    sizes = []
    for size in value:
        if type(size) is not list and type(size) is not tuple:
            raise TypeError("sizes that are no lists of numbers")
        if len(size) > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor of {len(size)} dimensions")
        for number in size:
            if type(number) is not int:
                raise TypeError("sizes that are no lists of numbers")
        sizes.append(tuple(size))
    return tuple(sizes)


def _texts(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if len(value) > _MOST_TENSORS:
        raise ValueError(f"{len(value)} dtypes in one entry")
    for text in value:
        if type(text) is not str:
            raise TypeError("dtypes that are no texts")
    return tuple(value)


def _integer(value: Any, default: int = 0) -> int:
    if value is None:
        return default
    if isinstance(value, str) and value.isdigit():
        return int(value)
    if type(value) is not int:
        raise TypeError("a number is none")
    if not -(1 << 50) < value >> 12 < 1 << 50:
        raise ValueError("a number that no trace holds")
    return value


def _name(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("its profiling_name is no text")
    return value


def _key(sequence: int, index: int, before: int) -> int:
    if sequence < before or index >= KEYS:
        raise ValueError(f"its sequence number {sequence} follows {before}")
    return sequence * KEYS + index


def _scalar(value: Any) -> str:
    """A text for a text or number: nothing nested is turned into text, which could grow without end."""
    return str(value) if isinstance(value, (str, int)) else ""


def _state(state: Any, retired: Any, *, gloo: bool) -> int:
    if type(state) is not str:
        return State.UNKNOWN
    if state == "completed":
        return State.COMPLETED
    if state not in {"scheduled", "started"}:
        return State.UNKNOWN
    return State.RETIRED if gloo and retired else State.PENDING


def _frame(frame: Any) -> Frame:
    facts = as_dict(frame)
    line = facts.get("line")
    file, name = _scalar(facts.get("filename")), _scalar(facts.get("name"))
    return Frame(file[:400], line if isinstance(line, int) else 0, name[:200])


def _extra(value: Any) -> _Extra:
    facts = as_dict(value)
    call: dict[str, Any] = {}
    for name in ("send_splits", "recv_splits"):
        if facts.get(name) is not None:
            call[name] = _sizes([facts[name]])[0]
    for name in ("root", "peer"):
        if facts.get(name) is not None:
            call[name] = _integer(facts[name])
    for name in ("op", "reduce_op", "layout", "phase", "tag", "state"):
        if not isinstance(facts.get(name), (str, type(None))):
            raise TypeError(f"its {name} is no text")
    call["reduce_op"] = facts.get("reduce_op")
    call["even"] = facts.get("even") is True
    context = Context(facts.get("layout"), facts.get("phase"), facts.get("backward") is True, facts.get("tag"))
    state = facts.get("state")
    known = State[state] if isinstance(state, str) and state in State.__members__ else None
    return _Extra(facts.get("op"), call, context, _integer(facts.get("forward"), default=-1), known)
