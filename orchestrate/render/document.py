"""A rendered document: a tree of plain values and the YAML text of it.

The text is what PyYAML's safe dumper makes of the tree. Strings are quoted unless they are plain words in every YAML
dialect: Kubernetes and SkyPilot read with different parsers, and to one of them `1e3`, `0o7` or `y` are no strings.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

__all__ = ["Document", "Tree", "clone", "dump", "load", "walk"]

Tree: TypeAlias = dict[str, Any]
"""What `yaml.safe_load` returns for a mapping."""

_SAFE_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*", re.ASCII)
_NOT_PLAIN = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
_BLOCK = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?\n|\n)(?:(?:[ -~]*[!-~])?\n)*", re.ASCII)


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
    """`tree` as YAML: keys in their order, no line folded, non-ASCII escaped. The same tree gives the same text."""
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


class _Dumper(_SAFE_DUMPER):  # type: ignore[misc, valid-type]  # the base is the C or the Python class
    """The safe dumper, with strings quoted and sequences and mappings never aliased."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's signature
        return True


def _represent_str(dumper: Any, text: str) -> Any:
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text)
    style = "|" if "\n" in text and _BLOCK.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_str)
