"""JSON and YAML files that are refused, with file and place, where they are not exactly what they should be."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from orchestrate.errors import UsageError

__all__ = ["Place", "parse_json", "parse_yaml", "read_json"]

_MAX_YAML_VALUES = 100_000
"""More than a file of a mebibyte that people write has, every alias counted as what it stands for."""


class Place:
    """A value in a document, with the file and the path that lead to it: `sets/main.json at cells[2].key`."""

    def __init__(self, file: str, value: object, path: str = "") -> None:
        self.file = file
        self.value = value
        self.path = path

    def error(self, what: str) -> UsageError:
        """An error that names this place."""
        where = f" at {self.path}" if self.path else ""
        return UsageError(f"{self.file}{where}: {what}", remedy="restore the file, or correct it at this place")

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

    def schema(self, expected: str) -> None:
        """Refuse a document of another schema."""
        if self.value != expected:
            raise self.error(f"must be {expected!r}, is {self.value!r}")


def read_json(path: Path) -> Place:
    """The document in `path`; errors name a file by its folder's name and its own.

    Raises:
        UsageError: the file can not be read, is not JSON, or has a member twice.
    """
    name = f"{path.parent.name}/{path.name}"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}", remedy="restore the file") from error
    return parse_json(data, name)


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
    except ValueError as error:  # an integer of more digits than Python converts
        raise Place(file, None).error(str(error)) from error


def parse_yaml(data: bytes, file: str) -> Place:
    """The one YAML document in `data`, which came from `file`: plain values only, no key twice, aliases bounded.

    Raises:
        UsageError: it is no such document; the line is named where there is one.
    """
    try:
        return Place(file, yaml.load(data, Loader=_YamlLoader))  # noqa: S506  # a safe loader, and stricter
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1} column {mark.column + 1}" if mark is not None else ""
        what = getattr(error, "problem", None) or "not YAML"
        raise UsageError(f"{file}{where}: {what}", remedy="correct the file at this place") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: {error}", remedy="correct the file") from error


class _YamlLoader(yaml.SafeLoader):
    """PyYAML takes the last of two equal keys, expands aliases without end, and trips over tags that lie."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _count(node, {})
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError) as error:  # `!!int ""`, `!!bool x`, `!!timestamp x`
            raise _refused(f"the value is not what its tag {node.tag[:100]!r} says", node) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise _refused(f"the key {key.value!r} is there twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values `node` stands for; `known` holds those of the nodes that were counted, 0 while they are."""
    count = known.get(id(node))
    if count is None:
        known[id(node)] = 0
        match node:
            case yaml.MappingNode():
                below = [each for pair in node.value for each in pair]
            case yaml.SequenceNode():
                below = node.value
            case _:
                below = []
        count = known[id(node)] = 1 + sum(_count(each, known) for each in below)
    if not 0 < count <= _MAX_YAML_VALUES:
        what = f"stands for more than {_MAX_YAML_VALUES} values" if count else "holds itself"
        raise _refused(f"this {what}", node)
    return count


def _refused(what: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, what, node.start_mark)


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
