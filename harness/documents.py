"""JSON files that are refused, with file and place, where they are not exactly what they should be."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from harness.errors import InputError

__all__ = ["Place", "parse_json", "read_bytes", "read_json", "write_json"]


class Place:
    """A value in a JSON document, with the file and the path that lead to it: `sets/main.json at cells[2].key`."""

    def __init__(self, file: str, value: object, path: str = "") -> None:
        self.file = file
        self.value = value
        self.path = path

    def error(self, what: str) -> InputError:
        """An error that names this place."""
        where = f" at {self.path}" if self.path else ""
        return InputError(f"{self.file}{where}: {what}", remedy="restore the file, or correct it at this place")

    def fields(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Place]:
        """The members of an object that has all of `required`, and beyond them at most `optional`."""
        if not isinstance(self.value, dict):
            raise self.error(f"must be an object, is {_kind(self.value)}")
        for name in required:
            if name not in self.value:
                raise self.error(f"has no {name!r}")
        for name in self.value:
            if name not in (*required, *optional):
                raise self.error(f"has an unknown member {name!r}")
        return self.members()

    def members(self) -> dict[str, Place]:
        """The members of an object, whatever their names."""
        if not isinstance(self.value, dict):
            raise self.error(f"must be an object, is {_kind(self.value)}")
        dot = "." if self.path else ""
        return {name: Place(self.file, value, f"{self.path}{dot}{name}") for name, value in self.value.items()}

    def items(self) -> list[Place]:
        """The elements of a list."""
        if not isinstance(self.value, list):
            raise self.error(f"must be a list, is {_kind(self.value)}")
        return [Place(self.file, value, f"{self.path}[{index}]") for index, value in enumerate(self.value)]

    def text(self) -> str:
        """A string that is not empty."""
        if not isinstance(self.value, str) or not self.value:
            raise self.error(f"must be a text, is {_kind(self.value)}")
        return self.value

    def integer(self, least: int) -> int:
        """An integer of at least `least`."""
        if type(self.value) is not int or self.value < least:
            raise self.error(f"must be an integer of at least {least}")
        return self.value

    def integers(self, least: int) -> tuple[int, ...]:
        """A list of integers of at least `least`."""
        if isinstance(self.value, list) and all(type(item) is int and item >= least for item in self.value):
            return tuple(cast("list[int]", self.value))
        return tuple(item.integer(least) for item in self.items())

    def schema(self, expected: str) -> None:
        """Refuse a document of another schema."""
        if self.value != expected:
            raise self.error(f"must be {expected!r}, is {self.value!r}")


def read_json(path: Path) -> Place:
    """The document in `path`.

    Raises:
        InputError: the file can not be read, is not JSON, or has a member twice.
    """
    return parse_json(read_bytes(path), _short(path))


def read_bytes(path: Path, *, sha256: str | None = None) -> bytes:
    """What `path` holds; with `sha256`, refused unless it is exactly the file of that digest.

    Errors name a file by its folder's name and its own: what the node prints becomes evidence, in which no home path
    has a place.

    Raises:
        InputError: the file can not be read, or has another digest; both digests are named.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{_short(path)}: {error.strerror}", remedy="name a file that exists and may be read"
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if sha256 is not None and found != sha256:
        raise InputError(
            f"{_short(path)}: its SHA-256 is {found}, pinned is {sha256}",
            remedy="restore the pinned file, or pin this one after a look at what changed",
        )
    return data


def parse_json(data: bytes, file: str) -> Place:
    """The document in `data`, which came from `file`."""

    def refuse_twice(members: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in members]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise Place(file, None).error(f"has the member {twice[0]!r} twice in one object")
        return dict(members)

    try:
        return Place(file, json.loads(data.decode(), object_pairs_hook=refuse_twice))
    except json.JSONDecodeError as error:
        raise Place(file, None, f"line {error.lineno} column {error.colno}").error(f"not JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise Place(file, None, f"byte {error.start}").error("not UTF-8") from error
    except RecursionError as error:
        raise Place(file, None).error("nested too deeply") from error
    except InputError:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise Place(file, None).error(str(error)) from error


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a document so that a reader finds all of it or none, also when the machine stops in between."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)  # whatever it is: a FIFO would keep the writer
    with partial.open("x", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _short(path: Path) -> str:
    return f"{path.parent.name}/{path.name}" if path.parent.name else path.name


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case "":
            return "empty"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"
