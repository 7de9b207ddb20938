"""A rendered document: a tree of plain values and the YAML text of it.

The text is what PyYAML's safe dumper makes of the tree, character for character (a test compares them). Strings are
quoted unless they are plain words in every YAML dialect: Kubernetes and SkyPilot read with different parsers, and to
one of them `1e3`, `0o7` or `y` are no strings.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import yaml

__all__ = ["Document", "Tree", "clone", "dump", "dump_with_pyyaml", "load", "walk"]

Tree: TypeAlias = dict[str, Any]
"""What `yaml.safe_load` returns for a mapping."""

_SAFE_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]{0,119}", re.ASCII)
_NOT_PLAIN = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
_MAX_REMEMBERED_LENGTH = 8192
_QUOTABLE = re.compile(r"[ !#-\[\]-~]*", re.ASCII)
_SCRIPT = re.compile(r"[!-~](?:[ -~]*[!-~])?\n(?:\n*[ -~]*[!-~]\n)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document. `name` says in messages which one; `text` ends with a newline and has no `---`."""

    name: str
    tree: Tree
    text: str

    @property
    def sha256(self) -> str:
        """Of the UTF-8 text."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


def load(text: str) -> Tree:
    """The mapping in a template's text."""
    tree = yaml.load(text, Loader=_SAFE_LOADER)  # noqa: S506  # the C build of the safe loader
    if not isinstance(tree, dict):
        raise TypeError(f"a template is a mapping, not {type(tree).__name__}")
    return tree


def dump(tree: Tree) -> str:
    """`tree` as YAML: keys in their order, no line folded, non-ASCII escaped. The same tree gives the same text.

    It is the text of `dump_with_pyyaml`, which takes five times as long.
    """
    lines: list[str] = []
    _emit_mapping(tree, "", "", lines)
    return "".join(lines)


def dump_with_pyyaml(tree: Tree) -> str:
    """`tree` as PyYAML's safe dumper writes it."""
    return str(
        yaml.dump(tree, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=False, width=2**30)
    )


def clone(tree: Any) -> Any:
    """A copy of a tree of plain values: `copy.deepcopy` without its bookkeeping, which costs ten times as much."""
    if isinstance(tree, dict):
        return {key: clone(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [clone(value) for value in tree]
    return tree


def walk(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every leaf of `tree` with its path; an empty mapping or sequence is a leaf."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from walk(value, (*path, key))
    elif isinstance(tree, list) and tree:
        for index, value in enumerate(tree):
            yield from walk(value, (*path, index))
    else:
        yield path, tree


def _emit_mapping(tree: Any, first: str, indent: str, lines: list[str]) -> None:
    """One line or block for each key; `first` stands before the first key, `indent` before the others."""
    for key, value in tree.items():
        head = f"{first}{_scalar(key, indent)}:"
        first = indent
        if isinstance(value, dict) and value:
            lines.append(f"{head}\n")
            _emit_mapping(value, f"{indent}  ", f"{indent}  ", lines)
        elif isinstance(value, list) and value:
            lines.append(f"{head}\n")
            _emit_sequence(value, indent, indent, lines)
        else:
            lines.append(f"{head} {_scalar(value, indent)}\n")


def _emit_sequence(items: list[Any], first: str, indent: str, lines: list[str]) -> None:
    for item in items:
        head = f"{first}- "
        first = indent
        if isinstance(item, dict) and item:
            _emit_mapping(item, head, f"{indent}  ", lines)
        elif isinstance(item, list) and item:
            _emit_sequence(item, head, f"{indent}  ", lines)
        else:
            lines.append(f"{head}{_scalar(item, indent)}\n")


def _scalar(value: Any, indent: str) -> str:
    """A scalar or an empty collection, without the line's end. Whatever is not plain to see is left to PyYAML."""
    match value:
        case str() if len(value) <= _MAX_REMEMBERED_LENGTH:
            return _remembered_string(value, indent)
        case str():
            return _string(value, indent)
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case None:
            return "null"
    return _by_pyyaml(value)


def _string(text: str, indent: str) -> str:
    style = _style(text)
    if style is None:
        return text
    if style == "|":
        return "|\n" + textwrap.indent(text, f"{indent}  ").removesuffix("\n")
    return f'"{text}"' if _QUOTABLE.fullmatch(text) else _by_pyyaml(text)


# Most strings of a document are the template's own.
_remembered_string = lru_cache(maxsize=4096)(_string)


def _by_pyyaml(value: Any) -> str:
    return dump_with_pyyaml(value).removesuffix("...\n").removesuffix("\n")


def _style(text: str) -> str | None:
    """How a string is written: plain (None), as a block (`|`) or in double quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN:
        return None
    return "|" if "\n" in text and _SCRIPT.fullmatch(text) else '"'


class _Dumper(_SAFE_DUMPER):  # type: ignore[misc, valid-type]  # the base is the C or the Python class
    """The safe dumper, with strings quoted and sequences and mappings never aliased."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's signature
        return True


def _represent_str(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))


_Dumper.add_representer(str, _represent_str)
