"""Code that no comparison of source can speak for: what it does is decided by texts that it finds at run time."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

__all__ = ["dynamic_uses", "texts_of"]

_CALLS = frozenset({"eval", "exec", "compile", "execfile", "__import__"})
_METHODS = frozenset(
    {
        "exec_module", "load_module", "module_from_spec", "spec_from_file_location", "run_path", "run_module",
        "getsource", "getsourcelines", "getsourcefile", "getline", "getlines", "exec_", "iter_modules", "walk_packages",
        "entry_points", "get_source", "get_code", "runsource", "runcode", "InteractiveInterpreter",
        "InteractiveConsole",
        "zipimporter", "SourceFileLoader", "SourcelessFileLoader", "spec_from_loader", "CodeType", "__subclasses__",
        "findsource", "getfile", "getabsfile", "getcomments",
    }
)  # fmt: skip
_IMPORTS = frozenset({"import_module", "__import__", "reload", "find_spec", "resolve_name"})
_READERS = frozenset(
    {
        "open", "read_text", "read_bytes", "FileIO", "get_data", "glob", "iglob", "rglob", "iterdir", "listdir",
        "scandir", "walk", "stat", "lstat", "getsize", "getmtime", "open_code", "copy", "copy2", "copyfile", "copytree",
    }
)  # fmt: skip
_PLACES = frozenset(
    {
        "f_lineno", "tb_lineno", "co_firstlineno", "co_lines", "co_positions", "co_code", "currentframe", "_getframe",
        "getframeinfo", "extract_stack", "extract_tb", "walk_stack", "walk_tb", "getouterframes", "getinnerframes",
        "f_lasti", "tb_lasti", "co_lnotab", "co_linetable", "_current_frames", "co_filename", "__cached__",
        "__loader__", "__path__", "submodule_search_locations",
    }
)  # fmt: skip
"""What code has for its own lines, byte code and files: it moves with a comment."""

_STACKS = frozenset({"stack", "trace"})
"""Of `inspect`."""

_SOURCE_MODULES = frozenset(
    {
        "marshal", "zipimport", "code", "codeop", "tokenize", "symtable", "py_compile", "compileall", "linecache",
        "dis", "pyclbr", "modulefinder", "trace",
    }
)  # fmt: skip

_FINDS_SOURCE = re.compile(r"(?:.*\*)?\.pyw?")
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
    named = _asked_for_names(tree)
    own = _named_after_file(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                yield from _call(node, aliases, own)
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)) if name in _PLACES:
                yield node.lineno, f"{name}: it sees where its code stands"
            case ast.Name(id="__spec__") | ast.Attribute(attr="__spec__") if id(node) not in named:
                yield node.lineno, "__spec__: it sees where its code stands"
            case ast.Attribute(value=ast.Name(id="inspect"), attr=name) if name in _STACKS:
                yield node.lineno, f"{name}: it sees where its code stands"
            case ast.ImportFrom(module="inspect", names=names) if any(alias.name in _STACKS for alias in names):
                yield node.lineno, "it sees where its code stands"
            case ast.Attribute(
                value=ast.Name(id="triton") | ast.Attribute(attr="jit"), attr="jit" | "script" | "trace"
            ):
                yield node.lineno, "a compiler that reads the source"
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id="sys"), attr="modules"), slice=key):
                if not isinstance(key, ast.Constant) or key.value == "builtins":
                    yield node.lineno, "sys.modules with a computed name"
            case ast.Constant(value=str(text)) if _FINDS_SOURCE.fullmatch(text):
                yield node.lineno, f"{text!r} finds source files"
            case ast.List(elts=items) | ast.Tuple(elts=items) if _runs_text(items):
                yield node.lineno, "a computed text for `-c`"
            case ast.Import(names=names) if any(alias.name in _SOURCE_MODULES for alias in names):
                yield node.lineno, "a module that reads or runs source"
            case ast.ImportFrom(module=str(name), level=0) if name in _SOURCE_MODULES:
                yield node.lineno, "a module that reads or runs source"
            case ast.Attribute(value=ast.Name(id="ast"), attr="parse"):
                yield node.lineno, "ast.parse"
            case ast.ImportFrom(module="builtins", names=[ast.alias(name="*")]):
                yield node.lineno, "all of builtins"
            case ast.ImportFrom(names=names) if any(alias.name in _PLACES for alias in names):
                yield node.lineno, "it sees where its code stands"
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


def _asked_for_names(tree: ast.AST) -> frozenset[int]:
    """The nodes that are only compared to None, or asked for the name of a module or of its package."""
    found: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr="name" | "parent"):
                found.add(id(value))
            case ast.Compare(left=left, comparators=[ast.Constant(value=None)]):
                found.add(id(left))
    return frozenset(found)


def _named_after_file(tree: ast.AST) -> frozenset[str]:
    """`__file__`, and the names that are assigned something made of it."""
    found, before = {"__file__"}, 0
    while len(found) != before:
        before = len(found)
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=targets, value=value):
                    pass
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    targets = [target]
                case _:
                    continue
            if _is_of(value, found):
                found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return frozenset(found)


def _is_of(expression: ast.AST, names: Collection[str]) -> bool:
    """Whether an expression is made of one of `names`, and no fixed name of a file that is no source is in it."""
    return any(_is_own(each, names) for each in ast.walk(expression)) and not _names_data(expression)


def _is_own(part: ast.AST, names: Collection[str]) -> bool:
    match part:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr="__file__") | ast.Constant(value="__file__"):
            return True
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id="sys"), attr=name), slice=index):
            return name == "path" or (name == "argv" and isinstance(index, ast.Constant) and index.value == 0)
        case _:
            return False


def _names_data(expression: ast.AST) -> bool:
    """Whether a fixed name of a file that is no source is in an expression."""
    parts = ast.walk(expression)
    texts = [each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return any(re.fullmatch(r"[^*?]*\.(?!pyw?$)\w+", text) for text in texts)


def _runs_text(items: Sequence[ast.expr]) -> bool:
    following = pairwise(items)
    return any(
        isinstance(flag, ast.Constant) and flag.value == "-c" and not isinstance(text, ast.Constant)
        for flag, text in following
    )


def _call(node: ast.Call, aliases: frozenset[str], own: frozenset[str]) -> Iterator[tuple[int, str]]:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            pass
        case _:
            return
    direct = isinstance(node.func, ast.Name)
    if name in _IMPORTS:
        first = node.args[0] if node.args else None
        if not isinstance(first, ast.Constant) or first.value == "builtins":
            yield node.lineno, f"{name} with a computed name"
    elif (name in _CALLS and (direct or _is_builtins(node.func, aliases))) or name in _METHODS:
        yield node.lineno, name
    elif name in _READERS and _is_of(node, own):
        yield node.lineno, f"{name} of __file__"
    elif name == "get_data" and not _names_data(node):
        yield node.lineno, "get_data of a computed name"
    elif name in {"system", "popen"} and node.args and not isinstance(node.args[0], ast.Constant):
        yield node.lineno, f"{name} of a computed text"
    elif name == "get" and isinstance(node.func, ast.Attribute) and _is_modules(node.func.value):
        yield node.lineno, "sys.modules with a computed name"
    elif name == "getattr" and len(node.args) > 1 and _is_hidden(node.args[1]):
        yield node.lineno, "getattr of a builtin that evaluates text"


def _is_modules(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
            return True
        case _:
            return False


def _is_builtins(function: ast.expr, aliases: frozenset[str]) -> bool:
    match function:
        case ast.Attribute(value=ast.Name(id=name)):
            return name in aliases
        case _:
            return False


def _is_hidden(name: ast.expr) -> bool:
    return isinstance(name, ast.Constant) and name.value in _HIDDEN
