"""Canonical JSON (RFC 8785) out, strict JSON in: one value has one spelling, so that a digest names a meaning.

>>> canonical_bytes({"b": 1, "a": [True, None, 2**53]})
b'{"a":[true,null,"9007199254740992"],"b":1}'
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, NoReturn

import rfc8785

from orchestrate.errors import ReceiptError

__all__ = [
    "MAX_DEPTH",
    "MAX_SAFE_INTEGER",
    "MAX_VALUES",
    "canonical_bytes",
    "parse_canonical",
    "parse_strict",
    "sha256_hex",
]

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 8785, section 3.2.2.3)."""

MAX_DEPTH = 64
"""How deep a document may nest: far above anything we write, far below any reader's stack."""

MAX_VALUES = 500_000
"""How many values a document that is read may hold: far above anything we write, and judged within seconds."""


def canonical_bytes(value: Any) -> bytes:
    """`value` as canonical JSON (RFC 8785), UTF-8 without a newline at the end.

    Mappings need string keys; tuples are arrays; string enums are their value; integers beyond 2**53 - 1 become
    decimal strings, since other readers would round them. Raises `ReceiptError` on NaN, infinities, lone surrogates,
    nesting beyond `MAX_DEPTH` and types that JSON does not have; the error names the place.
    """
    plain = _plain(value, "$", 0)
    try:
        return rfc8785.dumps(plain)
    except ValueError as error:
        raise ReceiptError(f"this value has no canonical form: {error}", remedy=_REMEDY) from error


def sha256_hex(data: bytes) -> str:
    """SHA-256 of `data` as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def parse_strict(data: bytes, *, what: str) -> Any:
    """The JSON value of `data`, read so that no two readers can differ about it.

    Refused with a `ReceiptError` that names `what`: bytes that are not UTF-8, lone surrogates, duplicate keys in one
    object, NaN and infinities, nesting beyond `MAX_DEPTH`, more than `MAX_VALUES` values. An integer that no double can
    hold is read as the nearest double, as every JavaScript reader does.
    """
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_unique_object,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_finite,
        )
        _check_size(value)
        if b"\\u" in data:  # only an escape can spell a lone surrogate
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ReceiptError(f"{what} nests too deep to be read", remedy=_DAMAGED) from error
    except ValueError as error:
        raise ReceiptError(f"{what} is not strict JSON: {error}", remedy=_DAMAGED) from error
    return value


def parse_canonical(data: bytes, *, what: str) -> Any:
    """The JSON value of `data`, which must be byte for byte its own canonical form; `ReceiptError` otherwise."""
    value = parse_strict(data, what=what)
    if canonical_bytes(value) != data:
        raise ReceiptError(f"{what} is JSON, but not in canonical form", remedy=_DAMAGED)
    return value


_REMEDY = "pass only strings, booleans, finite numbers, lists and mappings with string keys"
_DAMAGED = "the file was damaged or edited after it was written; fetch it again from where it was made"


def _plain(value: Any, place: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ReceiptError(f"{place} nests deeper than {MAX_DEPTH} levels", remedy=_REMEDY)
    match value:
        case None | bool():
            return value
        case Enum():
            return _plain(value.value, place, depth)
        case str():
            return str(value)
        case int():
            return int(value) if abs(value) <= MAX_SAFE_INTEGER else str(int(value))
        case float():
            if not math.isfinite(value):
                raise ReceiptError(f"{place} is {value}, which JSON can not say", remedy=_REMEDY)
            return float(value)
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise ReceiptError(f"{place} has the key {key!r}, which is not a string", remedy=_REMEDY)
            return {str(key): _plain(item, f"{place}.{key}", depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
        case _:
            raise ReceiptError(f"{place} is a {type(value).__name__}, which JSON does not have", remedy=_REMEDY)


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:80]!r} appears twice in one object")
            seen.add(key)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _integer(digits: str) -> int | float:
    # int() refuses, and is slow, far beyond what a double can hold; 20 digits are beyond it already.
    if len(digits) <= 20 and abs(int(digits)) <= MAX_SAFE_INTEGER:
        return int(digits)
    return _finite(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:40]} is beyond every double")
    return value


def _check_size(value: Any) -> None:
    level: list[Any] = [value]
    values = 1
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        values += len(below)
        if values > MAX_VALUES:
            raise ValueError(f"it holds more than {MAX_VALUES} values")
        if not below:
            return
        level = below
    raise ValueError(f"it nests deeper than {MAX_DEPTH} levels")
