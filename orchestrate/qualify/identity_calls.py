"""Calls that return one of their arguments as it is: `typing.cast`, `typing.assert_type` and `typing.reveal_type`.

Taken out of two modules, what is left of them can be compared. A call is taken out only where it is certain that it
does nothing else: its function is that of `typing`, under whatever name the module imports it, under no other meaning
anywhere in the module, and nobody sets it; and the type that it names is there when the module runs.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from orchestrate.qualify.module_names import EVERY, NamesUsed

__all__ = ["without_identity_calls"]

_FUNCTIONS = frozenset({"cast", "assert_type", "reveal_type"})
_Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def without_identity_calls(tree: ast.Module, used: NamesUsed) -> ast.Module:
    """`tree`, changed in place: identity calls replaced by what they return, and their unused imports gone.

    `used` is what the whole program does with names of modules: what it may read stays, and a function that it may set
    is none of `typing`.
    """
    bindings = Counter(_bound_names(tree))
    resolved, modules = _imported(tree, bindings, used.written)
    present = _present(tree, bindings)
    _Remover(resolved, modules, present, _abstract(tree), _annotations(tree)).visit(tree)
    _drop_imports(tree, bindings, used.read)
    return tree


class _Remover(ast.NodeTransformer):
    """Replaces identity calls.

    `present` maps the names that a type may be made of to the line they are there from, `generic` are those of them
    that any subscript suits; `untouched` are the nodes that stay as they are.
    """

    def __init__(
        self,
        resolved: dict[str, str],
        modules: set[str],
        present: dict[str, int],
        generic: frozenset[str],
        untouched: frozenset[int],
    ) -> None:
        self._generic = generic
        self._untouched = untouched
        self._resolved = resolved
        self._modules = modules
        self._present = present
        self._inside: list[ast.AST] = []
        self._taken_out: dict[int, ast.expr] = {}

    def visit(self, node: ast.AST) -> ast.AST | None:
        nested = isinstance(node, _Function)
        if nested:
            self._inside.append(node)
        found: ast.AST | None = super().visit(node)
        for name, value in ast.iter_fields(node) if found is node else ():
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, name, self._without_idle(value))
        if nested:
            self._inside.pop()
        return found

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        value: ast.expr | None = node.value
        while isinstance(value, ast.Call):
            value = self._identity(value)
        if isinstance(value, ast.Constant):
            return node  # the text alone would be documentation
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if id(node) in self._untouched:
            return node
        self.generic_visit(node)
        value = self._identity(node)
        if value is None:
            return node
        self._taken_out[id(value)] = value
        return value

    def _without_idle(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """`body` without statements that were an identity call of a name that is certainly bound."""
        kept: list[ast.stmt] = []
        for statement in body:
            match statement:
                case ast.Expr(value=ast.Name(id=name) as value) if id(value) in self._taken_out:
                    if not self._is_bound(name, kept):
                        kept.append(statement)
                case _:
                    kept.append(statement)
        return _unless_documenting(body, kept) or [ast.Pass()]

    def _is_bound(self, name: str, before: list[ast.stmt]) -> bool:
        function = self._inside[-1] if self._inside else None
        deleted = any(
            _unbinds(node, name) for scope in (function, *before) if scope is not None for node in ast.walk(scope)
        )
        assigned = any(
            isinstance(statement, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
            for statement in before
        )
        return not deleted and (assigned or (function is not None and name in _parameters(function)))

    def _identity(self, node: ast.Call) -> ast.expr | None:
        """What `node` returns, where it is an identity call that does nothing else."""
        function = self._function(node.func)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        arguments = node.args
        if function is None or any(isinstance(each, ast.Starred) for each in arguments) or None in keywords:
            return None
        match function, arguments, sorted(str(name) for name in keywords):
            case "cast", [kind, value], []:
                pass
            case "cast", [kind], ["val"]:
                value = keywords["val"]
            case "cast", [], ["typ", "val"] if [each.arg for each in node.keywords] == ["typ", "val"]:
                kind, value = keywords["typ"], keywords["val"]
            case "assert_type", [value, kind], []:
                pass
            case "reveal_type", [value], []:
                return value
            case _:
                return None
        return value if self._does_nothing(kind) else None

    def _function(self, node: ast.expr) -> str | None:
        match node:
            case ast.Name(id=name):
                return self._resolved.get(name)
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in self._modules and name in _FUNCTIONS:
                return name
            case _:
                return None

    def _does_nothing(self, kind: ast.expr) -> bool:
        """Whether evaluating a type has no effect and can not fail: text, or made of names that are there."""
        match kind:
            case ast.Constant():
                return True
            case ast.Name(id=name):
                return self._present.get(name, kind.lineno) < kind.lineno
            case ast.Subscript(value=ast.Name() as origin, slice=inner):
                generic = origin.id in _GENERIC or origin.id in self._generic
                return generic and self._does_nothing(origin) and self._does_nothing(inner)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return all(self._does_nothing(part) for part in parts)
            case ast.BinOp(left=ast.Name() as left, op=ast.BitOr(), right=right):
                plain = left.id in _CLASSES and (_is_class(right) or _is_none(right))
                return plain and self._does_nothing(left) and self._does_nothing(right)
            case _:
                return False


_CLASSES = frozenset(
    {"int", "str", "float", "bool", "bytes", "complex", "list", "dict", "set", "frozenset", "tuple", "object", "type"}
)
_GENERIC = frozenset({"list", "dict", "set", "frozenset", "tuple", "type"})


def _is_class(kind: ast.expr) -> bool:
    return isinstance(kind, ast.Name) and kind.id in _CLASSES


def _is_none(kind: ast.expr) -> bool:
    return isinstance(kind, ast.Constant) and kind.value is None


def _unbinds(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Name(id=found, ctx=ast.Del()) | ast.ExceptHandler(name=found):
            return found == name  # an `except` clause takes its name away at its end
        case _:
            return False


def _unless_documenting(before: list[ast.stmt], after: list[ast.stmt]) -> list[ast.stmt]:
    """`after`, or `before` where a text has come first in it: it would have become the documentation."""
    return before if _is_documented(after) and not _is_documented(before) else after


def _is_documented(body: list[ast.stmt]) -> bool:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *_]:
            return True
        case _:
            return False


def _annotations(tree: ast.Module) -> frozenset[int]:
    """The nodes in annotations and in types that are evaluated later: the program can ask for their very text."""
    found: set[int] = set()
    for node in ast.walk(tree):
        kinds: list[Any] = [getattr(node, name, None) for name in ("annotation", "returns")]
        kinds += getattr(node, "type_params", [])
        if type(node).__name__ == "TypeAlias":
            kinds.append(node)
        found |= {id(inner) for kind in kinds if kind is not None for inner in ast.walk(kind)}
    return frozenset(found)


def _imported(tree: ast.Module, bindings: Counter[str], written: frozenset[str]) -> tuple[dict[str, str], set[str]]:
    """Name to identity function, and the names of `typing` itself, as far as each name has one meaning alone."""
    resolved: dict[str, str] = {}
    modules: set[str] = set()
    if written & {EVERY, "typing", *_FUNCTIONS}:
        return resolved, modules
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return resolved, modules
    for statement in tree.body:
        match statement:
            case ast.ImportFrom(module="typing", level=0, names=aliases):
                for alias in aliases:
                    name = alias.asname or alias.name
                    if alias.name in _FUNCTIONS and bindings[name] == 1 and name not in written:
                        resolved[name] = alias.name
            case ast.Import(names=aliases):
                for alias in aliases:
                    name = alias.asname or alias.name
                    if alias.name == "typing" and bindings[name] == 1 and name not in written:
                        modules.add(name)
    return resolved, modules


def _abstract(tree: ast.Module) -> frozenset[str]:
    """Names of `collections.abc`, whose subscripts are never looked at; those of `Callable` are."""
    return frozenset(
        alias.asname or alias.name
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and statement.module == "collections.abc"
        for alias in statement.names
        if alias.name != "Callable"
    )


def _present(tree: ast.Module, bindings: Counter[str]) -> dict[str, int]:
    """The names that are certainly bound in the module when it runs, with the line from which on they are."""
    present = {name: 0 for name in dir(builtins) if name not in bindings}
    for statement in tree.body:
        match statement:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names = [alias.asname or alias.name.partition(".")[0] for alias in aliases]
            case ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=[ast.Name(id=name)]):
                names = [name]
            case _:
                continue
        line = statement.end_lineno or statement.lineno
        present |= {name: line for name in names if bindings[name] == 1}
    return present


def _bound_names(tree: ast.AST) -> Iterator[str]:
    """Every binding of every name anywhere in a module; a deletion is one too."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)


def _parameters(function: ast.AST) -> set[str]:
    arguments: ast.arguments = function.args  # type: ignore[attr-defined]
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {each.arg for each in every if each is not None}


def _drop_imports(tree: ast.Module, bindings: Counter[str], read: frozenset[str]) -> None:
    """Take the imports of identity functions, and of `typing` as a whole, away where nothing uses them any more."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | read
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # an annotation, or a name in __all__
            used |= set(re.findall(r"\w+", node.value))
    if EVERY in read:
        return

    def stays(alias: ast.alias, *, droppable: bool) -> bool:
        name = alias.asname or alias.name
        return not droppable or name in used or bindings[name] != 1

    kept: list[ast.stmt] = []
    for statement in tree.body:
        match statement:
            case ast.ImportFrom(module="typing", level=0, names=aliases):
                left = [each for each in aliases if stays(each, droppable=each.name in _FUNCTIONS)]
            case ast.Import(names=aliases):
                left = [each for each in aliases if stays(each, droppable=each.name == "typing")]
            case _:
                kept.append(statement)
                continue
        if left:
            kept.append(type(statement)(**{**dict(ast.iter_fields(statement)), "names": left}))
    tree.body = _unless_documenting(tree.body, kept)
