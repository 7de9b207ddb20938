"""The definitions of one trace of ours: fragments put together, checked, and interned by meaning."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrate.analysis.trace.model import Call, Context, Frame, Group, Interned

__all__ = ["Definitions"]

_FRAGMENT = Struct("<4xBBHIII44s")
_HEAD, _GROUP, _SIGNATURE, _CONTEXT, _STACK = range(5)
_SCHEMA = "harness.trace/2"
_BACKWARD, _P2P = 2, 4
_MOST_BYTES = 1 << 22
ANYONE = -1
"""The sender of a receive from anyone."""


class Definitions:
    """What one rank's records name by number, and the numbers of `Interned` for it."""

    def __init__(self, interned: Interned, rank: int) -> None:
        self.head: dict[str, Any] = {}
        self.used: list[int] = []
        self._interned = interned
        self._rank = rank
        self._groups: list[Group] = []
        self._calls: list[Call] = []
        self._tags: list[str | int | None] = []
        self._told_apart_by_tag: list[bool] = []
        self._counts: dict[int, int] = {}
        self._contexts: list[tuple[str | None, str | None]] = []
        self._stacks: list[tuple[Frame, ...]] = []
        self._call_numbers = _Grown()
        self._stack_of: list[int] = []
        self._group_of: dict[tuple[int, int], int] = {}
        self._context_of: dict[int, int] = {}
        self._fragments: list[bytes] = []
        self._under_way: tuple[int, int, int] | None = None

    def add(self, slot: bytes) -> str | None:
        """Take one definition slot, whose checksum holds; why it can not be, or None."""
        _, table, length, _, number, to_come, fragment = _FRAGMENT.unpack(slot)
        expected = self._under_way
        if expected is not None and expected != (table, number, to_come):
            return "a definition is interrupted"
        self._fragments.append(fragment[:length])
        if length > len(fragment) or len(self._fragments) * len(fragment) > _MOST_BYTES:
            return "a definition's length can not be"
        self._under_way = (table, number, to_come - 1) if to_come else None
        if to_come:
            return None
        text = b"".join(self._fragments)
        self._fragments = []
        try:
            self._take(table, number, json.loads(text))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            return f"a definition does not hold ({type(error).__name__})"
        return None

    def undefined(self, records: Any) -> NDArray[np.bool_]:
        """(n,) whether a record names what was never defined."""
        return np.asarray(
            (records["group"] >= len(self._groups))
            | (records["signature"] >= len(self._calls))
            | (records["context"] >= len(self._contexts))
        )

    def frames(self, signature: int) -> tuple[Frame, ...]:
        """The stack of a signature, by its local number."""
        return self._stacks[self._stack_of[signature]]

    def named(
        self, groups: NDArray[np.uint16], signatures: NDArray[np.uint32], contexts: NDArray[np.uint16], flags: Any
    ) -> tuple[Any, Any, Any]:
        """(n,) each: the numbers of group, call and context of records, by their local numbers."""
        calls = self._call_numbers.array[signatures]
        # Group and context depend on the signature too: a channel has a peer, a context the label of the call's site.
        code = (signatures.astype(np.int64) << 34) | (groups.astype(np.int64) << 18) | (contexts.astype(np.int64) << 2)
        code |= (flags & (_BACKWARD | _P2P)) >> 1
        distinct, inverse = np.unique(code, return_inverse=True)
        group_numbers = np.empty(len(distinct), np.int32)
        context_numbers = np.empty(len(distinct), np.int32)
        for place, packed in enumerate(distinct.tolist()):
            signature, group, context = packed >> 34, packed >> 18 & 0xFFFF, packed >> 2 & 0xFFFF
            group_numbers[place] = self._group(group, signature if packed & 2 else -1)
            context_numbers[place] = self._context(context, signature, backward=bool(packed & 1))
        return group_numbers[inverse], calls, context_numbers[inverse]

    def count_by_tag(self, groups: NDArray[np.int32], keys: NDArray[np.int64]) -> None:
        """Number the messages of `groups` (n,) in `keys` (n,), in place, where each tag has a channel of its own.

        The recorder counts them by sender and receiver alone.
        """
        for group in np.intersect1d(groups, list(self._counts)).tolist():
            where = np.flatnonzero(groups == group)
            keys[where] = np.arange(self._counts[group], self._counts[group] + len(where))
            self._counts[group] += len(where)

    def _group(self, group: int, channel_of: int) -> int:
        known = self._group_of.get((group, channel_of))
        if known is None:
            base = self._groups[group]
            if channel_of >= 0:
                call = self._calls[channel_of]
                peer = ANYONE if call.peer is None else call.peer
                pair = (self._rank, peer) if call.op == "send" else (peer, self._rank)
                tag = self._tags[channel_of]
                by_tag = self._told_apart_by_tag[group] and isinstance(tag, int)
                base = Group(base.name, base.ranks, base.desc, pair, int(tag or 0) if by_tag else 0)
            known = self._group_of[group, channel_of] = self._interned.groups.number(base)
            if channel_of >= 0 and self._told_apart_by_tag[group]:
                self._counts.setdefault(known, 0)
            if known not in self.used:
                self.used.append(known)
        return known

    def _context(self, context: int, signature: int, *, backward: bool) -> int:
        packed = signature << 17 | context << 1 | backward
        known = self._context_of.get(packed)
        if known is None:
            layout, phase = self._contexts[context]
            tag = self._tags[signature]
            meaning = Context(layout, phase, backward, None if tag is None else str(tag))
            known = self._context_of[packed] = self._interned.contexts.number(meaning)
        return known

    def _take(self, table: int, number: int, facts: Mapping[str, Any]) -> None:
        take: Callable[[int, Mapping[str, Any]], None] = (
            self._take_head, self._take_group, self._take_call, self._take_context, self._take_stack,
        )[table]  # fmt: skip
        take(number, facts)

    def _take_head(self, number: int, facts: Mapping[str, Any]) -> None:
        if number or facts["schema"] != _SCHEMA or facts["rank"] != self._rank:
            raise ValueError("the head is another trace's")
        self.head = dict(facts)

    def _take_group(self, number: int, facts: Mapping[str, Any]) -> None:
        _next(number, self._groups)
        # NCCL has no tags: its messages between two ranks match in their order alone.
        self._told_apart_by_tag.append("nccl" not in (_maybe_text(facts.get("backend")) or "nccl"))
        self._groups.append(Group(_text(facts["name"]), _integers(facts["ranks"]), _maybe_text(facts.get("desc"))))

    def _take_call(self, number: int, facts: Mapping[str, Any]) -> None:
        _next(number, self._calls)
        call = Call(
            op=_text(facts["op"]),
            input_sizes=tuple(_integers(sizes) for sizes in facts["input_sizes"]),
            input_dtypes=tuple(_text(name) for name in facts["input_dtypes"]),
            output_sizes=tuple(_integers(sizes) for sizes in facts["output_sizes"]),
            output_dtypes=tuple(_text(name) for name in facts["output_dtypes"]),
            send_splits=_maybe_integers(facts["send_splits"]),
            recv_splits=_maybe_integers(facts["recv_splits"]),
            reduce_op=_maybe_text(facts["reduce_op"]),
            root=_maybe_integer(facts["root"]),
            peer=_maybe_integer(facts["peer"]),
            even=facts["op"] == "all_to_all_single" and facts["send_splits"] is None and facts["recv_splits"] is None,
        )
        stack = _maybe_integer(facts["stack"])
        if stack is None or not 0 <= stack < len(self._stacks):
            raise IndexError("a stack that was not defined")
        tag = facts.get("tag")
        self._calls.append(call)
        self._tags.append(tag if isinstance(tag, int) or tag is None else str(tag))
        self._call_numbers.append(self._interned.calls.number(call))
        self._stack_of.append(stack)

    def _take_context(self, number: int, facts: Mapping[str, Any]) -> None:
        _next(number, self._contexts)
        self._contexts.append((_maybe_text(facts["layout"]), _maybe_text(facts["phase"])))

    def _take_stack(self, number: int, facts: Mapping[str, Any]) -> None:
        _next(number, self._stacks)
        frames = tuple(Frame(_text(file), int(line), _text(name)) for file, line, name in facts["frames"])
        self._stacks.append(frames)


class _Grown:
    """An array that grows by one number at a time."""

    def __init__(self) -> None:
        self._room: NDArray[np.int32] = np.zeros(256, np.int32)
        self._length = 0

    @property
    def array(self) -> NDArray[np.int32]:
        return self._room[: self._length]

    def append(self, number: int) -> None:
        if self._length == len(self._room):
            self._room = np.concatenate([self._room, np.zeros_like(self._room)])
        self._room[self._length] = number
        self._length += 1


def _next(number: int, table: Sequence[object]) -> None:
    if number != len(table):
        raise ValueError("a definition is missing before this one")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _maybe_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _maybe_integer(value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise TypeError("not an integer")
    return value


def _integers(values: Sequence[object]) -> tuple[int, ...]:
    if any(not isinstance(value, int) or isinstance(value, bool) for value in values):
        raise TypeError("not integers")
    return tuple(values)  # type: ignore[arg-type]


def _maybe_integers(values: Sequence[object] | None) -> tuple[int, ...] | None:
    return None if values is None else _integers(values)
