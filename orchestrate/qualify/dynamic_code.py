"""Code that no comparison of source can speak for: what it does is decided by texts that it finds at run time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

__all__ = ["dynamic_uses", "texts_of"]

_CALLS = frozenset({"eval", "exec", "compile", "execfile", "__import__"})
_METHODS = frozenset(
    {
        "exec_module", "load_module", "module_from_spec", "spec_from_file_location", "run_path", "run_module",
        "getsource", "getsourcelines", "getsourcefile", "getline", "getlines", "exec_", "iter_modules", "walk_packages",
        "entry_points",
    }
)  # fmt: skip
_IMPORTS = frozenset({"import_module", "__import__", "reload", "find_spec", "resolve_name"})
_READERS = frozenset({"open", "read_text", "read_bytes", "FileIO", "get_data"})
_HIDDEN = frozenset({"eval", "exec", "compile", "__import__", "import_module"})


def dynamic_uses(tree: ast.AST) -> tuple[str, ...]:
    """Where a module evaluates text, imports by a computed name, or reads source, as `line N: what`.

    A name that is only handed on (`run = eval`) counts as a use: what is done with it can not be followed.
    """
    return tuple(f"line {line}: {what}" for line, what in sorted(set(_uses(tree))))


def texts_of(tree: ast.AST) -> frozenset[str]:
    """Every text in a module that could be a path or a part of one; docstrings are not."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return frozenset(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
    )


def _uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    aliases = _builtins_names(tree)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    reached = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                yield from _call(node, aliases)
            case ast.Name(id="__builtins__") | ast.Constant(value="__builtins__"):
                yield node.lineno, "__builtins__"
            case ast.Name(id=name, ctx=ast.Load()) if name in aliases and id(node) not in reached:
                yield node.lineno, "the module builtins is handed on"
            case ast.Attribute(value=ast.Name(id=module), attr="__dict__") if module in aliases:
                yield node.lineno, "the module builtins is handed on"
            case ast.Name(id=name, ctx=ast.Load()) if name in _CALLS | _IMPORTS and id(node) not in called:
                yield node.lineno, f"{name} is handed on"
            case ast.Attribute(attr=name) if name in _METHODS | _IMPORTS and id(node) not in called:
                yield node.lineno, f"{name} is handed on"
            case ast.ImportFrom(module="builtins" | "importlib", names=names):
                yield from (
                    (node.lineno, f"{alias.name} under another name")
                    for alias in names
                    if alias.name in _HIDDEN and alias.asname not in {None, alias.name}
                )


def _builtins_names(tree: ast.AST) -> frozenset[str]:
    """The names that a module has for `builtins`."""
    return frozenset(
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "builtins"
    )


def _call(node: ast.Call, aliases: frozenset[str]) -> Iterator[tuple[int, str]]:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            pass
        case _:
            return
    direct = isinstance(node.func, ast.Name)
    if name in _IMPORTS:
        if not (node.args and isinstance(node.args[0], ast.Constant)) or any(
            isinstance(each, ast.Starred) for each in node.args
        ):
            yield node.lineno, f"{name} with a computed name"
    elif (name in _CALLS and (direct or _is_builtins(node.func, aliases))) or name in _METHODS:
        yield node.lineno, name
    elif name in _READERS and any(isinstance(each, ast.Name) and each.id == "__file__" for each in ast.walk(node)):
        yield node.lineno, f"{name} of __file__"
    elif name == "getattr" and len(node.args) > 1 and _is_hidden(node.args[1]):
        yield node.lineno, "getattr of a builtin that evaluates text"


def _is_builtins(function: ast.expr, aliases: frozenset[str]) -> bool:
    match function:
        case ast.Attribute(value=ast.Name(id=name)):
            return name in aliases
        case _:
            return False


def _is_hidden(name: ast.expr) -> bool:
    return isinstance(name, ast.Constant) and name.value in _HIDDEN
