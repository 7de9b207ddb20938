"""What a program does with the names of its modules from outside of them: which it may read, and which it may set."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrate.qualify.dynamic_code import texts_of

__all__ = ["EVERY", "NamesUsed", "names_used"]

EVERY = "*"
"""Stands for every name."""


@dataclass(frozen=True, slots=True)
class NamesUsed:
    """Names that some module may have of another, by attribute, import or text: to `read` them, or to set them.

    `written` are among `read`: whoever sets an attribute mostly wants it to be there.
    """

    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()


def names_used(trees: Iterable[ast.Module], paths: Iterable[str] = ()) -> NamesUsed:
    """What the modules of a program do with each other's names; `paths` are its files.

    A `typing` among the files may be imported in place of the real one: then every name is written.
    """
    read: set[str] = set()
    written = {EVERY} if any(_TYPING_FILE.fullmatch(path) for path in paths) else set()
    for tree in trees:
        typing = _names_of_typing(tree)
        read.update(_read(tree, typing))
        written.update(_written(tree, typing))
    return NamesUsed(frozenset(read | written - {EVERY}), frozenset(written))


_TYPING_FILE = re.compile(r"(.*/)?typing(/.*|\.[^/]*)?\.(pyw?|pyc|so|pyd)")
_READS = frozenset({"getattr", "hasattr"})
_SETS_BY_KEYWORD = frozenset({"multiple", "dict", "update"})
"""Methods of `unittest.mock.patch` and of dictionaries that set what their keywords name."""


def _names_of_typing(tree: ast.Module) -> frozenset[str]:
    return frozenset(
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "typing"
    )


def _read(tree: ast.Module, typing: frozenset[str]) -> Iterator[str]:
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for text in texts_of(tree):
        yield from re.findall(r"\w+", text)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=module, names=aliases, level=level) if module != "typing" or level:
                yield from (alias.name for alias in aliases)
            case ast.Attribute(value=value, attr=name) if not (isinstance(value, ast.Name) and value.id in typing):
                yield name
                if name == "__dict__" and _may_be_module(value, imported):
                    yield EVERY
            case ast.Call(func=ast.Name(id="globals")):
                yield EVERY
            case ast.Call(
                func=ast.Name(id="dir" | "vars" | "getmembers") | ast.Attribute(attr="getmembers"), args=[value, *_]
            ) if _may_be_module(value, imported):
                yield EVERY


def _may_be_module(value: ast.expr, imported: set[str]) -> bool:
    return value.id in imported if isinstance(value, ast.Name) else isinstance(value, ast.Attribute | ast.Subscript)


def _written(tree: ast.Module, typing: frozenset[str]) -> Iterator[str]:
    """Names that are set as an attribute of something other than `self`, or handed on as a text where one could be."""
    looked_into = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for text in texts_of(tree):
        if re.fullmatch(r"[\w.:]*[.:]\w+", text):
            yield re.split(r"[.:]", text)[-1]  # `patch("typing.cast")`
        if text == "typing":
            yield EVERY  # `sys.modules["typing"]`, `import_module("typing")`
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name, ctx=ast.Store() | ast.Del()) if not _is_self(value):
                yield name
                yield from _last_name(value)  # `typing.cast.__code__ = ...`
            case ast.Subscript(slice=ast.Constant(value=str(name)), ctx=ast.Store() | ast.Del()):
                yield name
            case ast.Name(id=name, ctx=ast.Load()) if name in typing and id(node) not in looked_into:
                yield EVERY
            case ast.Attribute(value=ast.Name(id=name), attr="__dict__") if name in typing:
                yield EVERY
            case ast.Attribute(attr="typing") if id(node) not in looked_into:
                yield EVERY
            case ast.ImportFrom(names=aliases) if any(alias.name == "typing" for alias in aliases):
                yield EVERY
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=args, keywords=keywords):
                if called not in _READS:
                    yield from _texts(args)
                if called in _SETS_BY_KEYWORD:
                    yield from (keyword.arg for keyword in keywords if keyword.arg)
                    yield from _texts(key for each in args if isinstance(each, ast.Dict) for key in each.keys)


def _texts(nodes: Iterable[ast.expr | None]) -> Iterator[str]:
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


def _last_name(value: ast.expr) -> Iterator[str]:
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
