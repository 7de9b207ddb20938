"""Corpora: groups of token rows from real text.

A public corpus ships with the harness as text, split into passages; its rows are lists of passages, so that rows share
prefixes by design. It is tokenised here, by bytes, without a network. A private corpus is a file of token ids that
stays where it is: it is named by path, verified by digest, read, and neither copied nor quoted, not even in an error.
File formats: docs/corpora.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.documents import Place, parse_json, read_bytes
from harness.errors import InputError
from harness.prefix_tree import Row

__all__ = [
    "CORPUS_SCHEMA",
    "END_OF_PASSAGE",
    "MAX_PRIVATE_BYTES",
    "VOCABULARY",
    "decode",
    "encode",
    "is_sha256",
    "private_group",
    "public_group",
]

CORPUS_SCHEMA = "orchestrate.corpus/1"

END_OF_PASSAGE = 256
"""The token after each passage: the first id that is no byte."""

MAX_PRIVATE_BYTES = 2**30
"""A private corpus is read whole, by every rank: a larger file is no corpus, or does not fit a node."""

VOCABULARY = 257
"""Token ids of the byte tokenizer are below this."""


def encode(passages: Sequence[str]) -> Row:
    """The token row of `passages`: each one's UTF-8 bytes, then `END_OF_PASSAGE`.

    >>> encode(["ab", "c"])
    (97, 98, 256, 99, 256)
    """
    return tuple(token for passage in passages for token in (*passage.encode(), END_OF_PASSAGE))


def decode(row: Sequence[int]) -> list[str]:
    """The passages of a row that `encode` made; `ValueError` for any other."""
    if not row or row[-1] != END_OF_PASSAGE:
        raise ValueError("a row ends with END_OF_PASSAGE")
    passages: list[bytearray] = [bytearray()]
    for token in row[:-1]:
        if token == END_OF_PASSAGE:
            passages.append(bytearray())
        else:
            passages[-1].append(token)
    return [passage.decode() for passage in passages]


def public_group(path: Path, group: int, sha256: str) -> tuple[Row, ...]:
    """The token rows of one group of a public corpus.

    Raises:
        InputError: the file is not the one of digest `sha256`, is damaged, or has no such group.
    """
    document = parse_json(read_bytes(path, sha256=sha256), path.name).fields(("schema", "name", "passages", "groups"))
    document["schema"].schema(CORPUS_SCHEMA)
    passages = {name: place.text() for name, place in document["passages"].members().items()}
    groups = document["groups"].items()
    if group >= len(groups):
        raise document["groups"].error(f"has no group {group}; it has {len(groups)}")
    rows = groups[group].fields(("about", "rows"))["rows"].items()
    return tuple(encode([_passage(passages, name) for name in row.items()]) for row in rows)


def private_group(name: str, group: int, path: Path | None, sha256: str | None) -> tuple[Row, ...]:
    """The token rows of one group of the private corpus `name`, read from `path` and verified by `sha256`.

    Raises:
        InputError: path or digest are not given, the file can not be read, is another one, is damaged, or has no such
            group. The text names the line, never what stands there.
    """
    if path is None:
        raise InputError(
            f"corpus {name!r} is private and was not named", remedy="set CORPUS to the path of its token file"
        )
    if sha256 is None:
        raise InputError(
            f"corpus {name!r} is private and has no pinned digest",
            remedy="set CORPUS_SHA256 to the SHA-256 of its token file (sha256sum prints it)",
        )
    if not is_sha256(sha256):
        raise InputError(
            "CORPUS_SHA256 is not a SHA-256", remedy="give the 64 lower-case hexadecimal digits that sha256sum prints"
        )
    _check_file(path)
    data = read_bytes(path, sha256=sha256)
    return _rows_of_group(path, data.splitlines(), group)


def is_sha256(text: str) -> bool:
    """Whether `text` is 64 lower-case hexadecimal digits."""
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _check_file(path: Path) -> None:
    """Refuse what could not be read to its end: a device, a pipe, a file that is far too large for a corpus."""
    if not path.exists():
        return  # reading it says so
    if not path.is_file():
        raise InputError(f"the private corpus {path.name} is not a regular file", remedy="name its token file")
    size = path.stat().st_size
    if size > MAX_PRIVATE_BYTES:
        raise InputError(
            f"the private corpus {path.name} has {size} bytes, more than {MAX_PRIVATE_BYTES}",
            remedy="name its token file, or split it by groups",
        )


def _passage(passages: Mapping[str, str], place: Place) -> str:
    name = place.text()
    if name not in passages:
        raise place.error(f"there is no passage {name!r}")
    return passages[name]


def _rows_of_group(path: Path, lines: Sequence[bytes], group: int) -> tuple[Row, ...]:
    found: dict[int, tuple[Row, ...]] = {}
    for number, line in enumerate(lines, start=1):
        index, rows = _private_line(f"{path.name} line {number}", line)
        if index in found:
            raise Place(f"{path.name} line {number}", None).error(f"has group {index} a second time")
        found[index] = rows
    if group not in found:
        raise InputError(
            f"{path.name} has no group {group}",
            remedy=f"choose one of its groups: {', '.join(str(index) for index in sorted(found)) or 'it has none'}",
        )
    return found[group]


def _private_line(where: str, line: bytes) -> tuple[int, tuple[Row, ...]]:
    try:
        record = json.loads(line)
    except ValueError:
        raise Place(where, None).error("not JSON") from None
    if not isinstance(record, dict) or set(record) != {"group", "rows"}:
        raise Place(where, None).error("must be an object with exactly 'group' and 'rows'")
    fields = Place(where, record).members()
    rows = tuple(row.integers(0) for row in fields["rows"].items())
    if not rows or not all(rows):
        raise fields["rows"].error("must be a list of rows, each with at least one token id")
    return fields["group"].integer(0), rows
