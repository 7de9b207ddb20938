"""Code that no comparison of source can speak for: what it does is decided by texts that it finds at run time."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
        "__loader__", "__path__", "submodule_search_locations", "findCaller", "showwarning", "formatwarning",
        "settrace", "setprofile", "settrace_all_threads", "setprofile_all_threads",
    }
)  # fmt: skip
"""What code has for its own lines, byte code and files: it moves with a comment."""

_STANDS = "it sees where its code stands"
_COMPILES = "a compiler that reads the source"
_OF_MODULES = {
    **dict.fromkeys(("inspect.stack", "inspect.trace", "sys.monitoring"), _STANDS),
    **dict.fromkeys(
        (
            "jit.script", "jit.trace", "jit.script_if_tracing", "jit.trace_module", "jit.script_method",
            "jit.ScriptModule", "jit.interface", "jit.jit", "jit.JITFunction", "triton.jit", "triton.JITFunction",
            "gluon.jit",
        ),
        _COMPILES,
    ),
    "ast.parse": "it reads source",
}  # fmt: skip
"""Names that say enough only with the module that they are of, by the last part of its name."""

_MODULES = frozenset({name.partition(".")[0] for name in _OF_MODULES} | {"builtins", "sys"})
_NUMBERED = re.compile(r"%\(lineno\)|\{[^{}]*\blineno\b|\$\{?lineno\b")
"""A text that a line number is put into, as `logging` and `warnings` have it."""

_SOURCE_MODULES = frozenset(
    {
        "marshal", "zipimport", "code", "codeop", "tokenize", "symtable", "py_compile", "compileall", "linecache",
        "dis", "pyclbr", "modulefinder", "trace", "cProfile", "profile", "pydoc",
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
    meanings = _meanings(tree)
    builtin = frozenset(name for name, meant in meanings.items() if "builtins" in meant)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    reached = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named = _asked_for_names(tree)
    own = _named_after_file(tree, meanings)
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                yield from _call(node, meanings, own)
            case ast.Import() | ast.ImportFrom():
                yield from ((node.lineno, what) for what in _imports(node))
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)) if name in _PLACES:
                yield node.lineno, f"{name}: {_STANDS}"
            case ast.Attribute(attr="lineno") | ast.Constant(value="lineno"):
                yield node.lineno, f"lineno: {_STANDS}"
            case ast.Constant(value=str(text)) if _NUMBERED.search(text):
                yield node.lineno, f"{text!r} is filled with a line number"
            case ast.Name(id="__spec__") | ast.Attribute(attr="__spec__") if id(node) not in named:
                yield node.lineno, f"__spec__: {_STANDS}"
            case ast.Attribute() if found := _OF_MODULES.keys() & _meant(node, meanings):
                yield from ((node.lineno, f"{name}: {_OF_MODULES[name]}") for name in found)
            case ast.Subscript(value=value, slice=key) if "sys.modules" in _meant(value, meanings):
                if not isinstance(key, ast.Constant) or key.value == "builtins":
                    yield node.lineno, "sys.modules with a computed name"
            case ast.Constant(value=str(text)) if _FINDS_SOURCE.fullmatch(text):
                yield node.lineno, f"{text!r} finds source files"
            case ast.List(elts=items) | ast.Tuple(elts=items) if _runs_text(items):
                yield node.lineno, "a computed text for `-c`"
            case ast.Name(id="__builtins__") | ast.Constant(value="__builtins__"):
                yield node.lineno, "__builtins__"
            case ast.Name(id=name, ctx=ast.Load()) if name in builtin and id(node) not in reached:
                yield node.lineno, "the module builtins is handed on"
            case ast.Attribute(value=ast.Name(id=module), attr="__dict__") if module in builtin:
                yield node.lineno, "the module builtins is handed on"
            case ast.Name(id=name, ctx=ast.Load()) if name in _CALLS | _IMPORTS and id(node) not in called:
                yield node.lineno, f"{name} is handed on"
            case ast.Attribute(attr=name) if name in _METHODS | _IMPORTS and id(node) not in called:
                yield node.lineno, f"{name} is handed on"


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """What the names that a statement imports may do, under whatever name."""
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [_module(node)]
    if not _SOURCE_MODULES.isdisjoint(modules):
        yield "a module that reads or runs source"
    if isinstance(node, ast.Import):
        return
    module = _last(modules[0])
    for alias in node.names:
        if alias.name == "*" and module in _MODULES:
            yield f"all of {module}"
        elif alias.name in _PLACES:
            yield _STANDS
        elif f"{module}.{alias.name}" in _OF_MODULES:
            yield _OF_MODULES[f"{module}.{alias.name}"]
        elif alias.asname in {None, alias.name}:
            continue
        elif alias.name in _METHODS | _IMPORTS or (module == "builtins" and alias.name in _CALLS):
            yield f"{alias.name} under another name"


def _module(node: ast.ImportFrom) -> str:
    return "." * node.level + (node.module or "")


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _meanings(tree: ast.AST) -> Mapping[str, Collection[str]]:
    """What the names of a module may mean, by imports and plain assignments of modules: `module` or `of.name`."""
    found: dict[str, set[str]] = {}
    assigned: list[tuple[str, ast.expr]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    top = alias.name.partition(".")[0]
                    found.setdefault(alias.asname or top, set()).add(alias.name if alias.asname else top)
            case ast.ImportFrom(names=aliases):
                for alias in aliases:
                    found.setdefault(alias.asname or alias.name, set()).add(f"{_last(_module(node))}.{alias.name}")
            case ast.Assign(targets=targets, value=value):
                assigned += [(target.id, value) for target in targets if isinstance(target, ast.Name)]
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
            ):
                assigned.append((name, value))
    before = -1
    while before != (before := sum(map(len, found.values()))):
        for name, value in assigned:
            modules = {each for each in _meant(value, found) if _last(each) in _MODULES | {"modules"}}
            if modules:
                found.setdefault(name, set()).update(modules)
    return found


def _meant(node: ast.expr, meanings: Mapping[str, Collection[str]]) -> frozenset[str]:
    """What an expression may mean, as `name` or `of.name`, where `of` is the last part of what it is of."""
    match node:
        case ast.Name(id=name):
            return frozenset({name, *meanings.get(name, ())})
        case (
            ast.Attribute(value=value, attr=name)
            | ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(name)), *_])
        ):
            of = [value.attr] if isinstance(value, ast.Attribute) else map(_last, _meant(value, meanings) or {""})
            return frozenset(f"{each}.{name}" for each in of)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(module)), *_]):
            return frozenset({module} if name in _IMPORTS else ())
        case ast.Subscript(value=value, slice=ast.Constant(value=str(module))):
            return frozenset({module} if "sys.modules" in _meant(value, meanings) else ())
        case _:
            return frozenset()


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


def _named_after_file(tree: ast.AST, meanings: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
    """`meanings`, where `__file__` is one of every name that is assigned something made of it."""
    found, before = {name: {*meant} for name, meant in meanings.items()}, -1
    while before != (before := sum(map(len, found.values()))):
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=targets, value=value):
                    pass
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    targets = [target]
                case _:
                    continue
            if _is_of(value, found):
                for each in (each for target in targets for each in ast.walk(target)):
                    if isinstance(each, ast.Name):
                        found.setdefault(each.id, set()).add("__file__")
    return found


def _is_of(expression: ast.AST, meanings: Mapping[str, Collection[str]]) -> bool:
    """Whether an expression is made of `__file__`, and no fixed name of a file that is no source is in it."""
    return any(_is_own(each, meanings) for each in ast.walk(expression)) and not _names_data(expression)


def _is_own(part: ast.AST, meanings: Mapping[str, Collection[str]]) -> bool:
    match part:
        case ast.Name() | ast.Attribute():
            return "__file__" in map(_last, _meant(part, meanings))
        case ast.Constant(value="__file__"):
            return True
        case ast.Subscript(value=value, slice=index):
            of = _meant(value, meanings)
            return "sys.path" in of or ("sys.argv" in of and isinstance(index, ast.Constant) and index.value == 0)
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


def _call(
    node: ast.Call, meanings: Mapping[str, Collection[str]], own: Mapping[str, Collection[str]]
) -> Iterator[tuple[int, str]]:
    for meant in _meant(node.func, meanings):
        name = _last(meant)
        if name in _IMPORTS:
            first = node.args[0] if node.args else None
            if not isinstance(first, ast.Constant) or first.value == "builtins":
                yield node.lineno, f"{name} with a computed name"
            elif first.value in _SOURCE_MODULES:
                yield node.lineno, "a module that reads or runs source"
        elif (name in _CALLS and meant in {name, f"builtins.{name}"}) or name in _METHODS:
            yield node.lineno, name
        elif name in _READERS and _is_of(node, own):
            yield node.lineno, f"{name} of __file__"
        elif name == "get_data" and not _names_data(node):
            yield node.lineno, "get_data of a computed name"
        elif name in {"system", "popen"} and node.args and not isinstance(node.args[0], ast.Constant):
            yield node.lineno, f"{name} of a computed text"
        elif meant == "modules.get" and _is_modules(node.func, meanings):
            yield node.lineno, "sys.modules with a computed name"
        elif name == "getattr" and len(node.args) > 1 and _is_hidden(node.args[1]):
            yield node.lineno, "getattr of a builtin that evaluates text"
        elif name == "getattr":
            found = _OF_MODULES.keys() & _meant(node, meanings)
            yield from ((node.lineno, f"{each}: {_OF_MODULES[each]}") for each in found)


def _is_modules(function: ast.expr, meanings: Mapping[str, Collection[str]]) -> bool:
    return isinstance(function, ast.Attribute) and "sys.modules" in _meant(function.value, meanings)


def _is_hidden(name: ast.expr) -> bool:
    return isinstance(name, ast.Constant) and name.value in _HIDDEN
