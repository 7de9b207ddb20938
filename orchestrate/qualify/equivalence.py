"""Whether evidence of one source supports another: what changed between them, file by file.

A pass belongs to the bytes that ran. Where another source differs from them only in what can not change what it does,
the evidence supports it as well; it keeps its own commit, and is cited by the relation that was found here.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from orchestrate.qualify.dynamic_code import dynamic_uses, texts_of
from orchestrate.qualify.identity_calls import without_identity_calls
from orchestrate.qualify.module_names import NamesUsed, names_used
from orchestrate.qualify.trees import SourceFile, Tree

__all__ = ["Answer", "Difference", "Equivalence", "Relation", "compare"]


class Relation(StrEnum):
    """What a file of the new source is to that of the old one; later ones are weaker."""

    IDENTICAL = "identical"
    FORMATTING = "formatting-only"
    """The same tokens: blanks, line breaks and comments differ."""
    SYNTAX = "same-syntax-tree"
    """The same program in other words: brackets, quotes."""
    IDENTITY_CALLS = "same-syntax-tree-without-identity-calls"
    """The same program once `typing.cast`, `assert_type` and `reveal_type` are taken out."""
    DOCS = "docs-only"
    TESTS = "tests-only"
    UNTOLD = "can-not-tell"
    CHANGED = "changed"


class Answer(StrEnum):
    """Whether evidence of the old source supports the new one."""

    SUPPORTS = "supports"
    DOES_NOT = "does-not-support"
    CAN_NOT_TELL = "can-not-tell"


@dataclass(frozen=True, slots=True)
class Difference:
    """A file that is not identical, and why it is what it is."""

    path: str
    relation: Relation
    why: str


@dataclass(frozen=True, slots=True)
class Equivalence:
    """The comparison of two sources. `reasons` say why the answer is not `supports`."""

    identical: int
    differences: tuple[Difference, ...]
    relation: Relation
    answer: Answer
    reasons: tuple[str, ...]


def compare(old: Tree, new: Tree, *, of_tests: bool = True) -> Equivalence:
    """Compare two sources. `of_tests` says that the evidence is of tests that ran: then changed tests are a change.

    Dynamic code anywhere in what ran (the program, and its tests where the evidence is of them) makes the answer
    `can-not-tell` as soon as a file of the program differs at all, be it in blanks alone: what such code does, it
    decides by texts that it finds.
    """
    paths = sorted(old.files.keys() | new.files.keys())
    differing = [path for path in paths if old.files.get(path) != new.files.get(path)]
    program = _program(old, new, of_tests=of_tests) if differing else {}
    read = _Read(
        names=names_used(program.values(), paths),
        texts=frozenset(text.strip("./") for tree in program.values() for text in texts_of(tree)),
        packages=_packages(old) | _packages(new),
        modules=frozenset(name for (path, _), tree in program.items() for name in _imported(path, tree)),
        tests=of_tests,
        pages=of_tests and any(b"doctest" in file.data for tree in (old, new) for file in tree.files.values()),
    )
    differences = tuple(_difference(path, old.files.get(path), new.files.get(path), read) for path in differing)
    relation = max((each.relation for each in differences), key=list(Relation).index, default=Relation.IDENTICAL)
    changes = {Relation.CHANGED, Relation.TESTS} if of_tests else {Relation.CHANGED}
    if changed := [each for each in differences if each.relation in changes]:
        answer, reasons = Answer.DOES_NOT, [f"{each.path}: {each.why}" for each in changed]
    else:
        reasons = [f"{each.path}: {each.why}" for each in differences if each.relation is Relation.UNTOLD]
        if not all(each.relation in {Relation.DOCS, Relation.TESTS} for each in differences):
            told = {f"dynamic code: {path} {use}" for (path, _), tree in program.items() for use in dynamic_uses(tree)}
            reasons += sorted(told)
        answer = Answer.CAN_NOT_TELL if reasons else Answer.SUPPORTS
    return Equivalence(len(paths) - len(differences), differences, relation, answer, tuple(reasons))


_IN_OTHER_WORDS = frozenset({Relation.FORMATTING, Relation.SYNTAX})
_DOC_SUFFIXES = frozenset({".md", ".rst", ".adoc"})
_DOC_NAMES = frozenset({"LICENSE", "LICENCE", "NOTICE", "AUTHORS", "COPYING", "CODEOWNERS", "CITATION.cff"})
_LAYOUT = frozenset({tokenize.NL, tokenize.COMMENT, tokenize.ENCODING})
_BLANK = frozenset({tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE, tokenize.ENDMARKER})


@dataclass(frozen=True, slots=True)
class _Read:
    """What ran, and what the program may read.

    `names` are those of modules that it uses from outside of them; `texts` the texts in it, without the dots and
    slashes around; `packages` the folders of packages; `modules` what it imports, as paths without their ending.
    `tests` says that tests ran, and `pages` that pages may have run with them.
    """

    names: NamesUsed
    texts: frozenset[str]
    packages: frozenset[str]
    modules: frozenset[str]
    tests: bool
    pages: bool


def _program(old: Tree, new: Tree, *, of_tests: bool) -> Mapping[tuple[str, bytes], ast.Module]:
    """The syntax trees of both programs: their Python files, tests only where they ran or the program imports them.

    What does not parse is left out.
    """
    files = {(path, file.data) for tree in (old, new) for path, file in tree.files.items() if _is_python(path, file)}
    todo = [each for each in files if of_tests or not _is_test(each[0])]
    found: dict[tuple[str, bytes], ast.Module] = {}
    imported: set[str] = set()
    while todo:
        for path, data in todo:
            parsed = _parse(data)
            if parsed is not None:
                found[path, data] = parsed
                imported.update(_imported(path, parsed))
        files.difference_update(todo)
        todo = [each for each in files if _is_module_of(each[0], imported)]
    return found


def _difference(path: str, old: SourceFile | None, new: SourceFile | None, read: _Read) -> Difference:
    """What became of one file."""
    present = [file for file in (old, new) if file is not None]
    python = all(_is_python(path, file) for file in present)
    if _is_test(path):
        runs = read.tests or _is_module_of(path, read.modules)
        found = _module(path, old, new, read) if runs and python else None
        return found if found and found.relation in _IN_OTHER_WORDS else _test(path, read)
    if python:
        return _module(path, old, new, read)
    if any(file.kind in {"link", "submodule"} for file in present):
        return Difference(path, Relation.CHANGED, "a link or a submodule differs")
    if _may_be_read(path, read):
        return Difference(path, Relation.UNTOLD, "data that the program may read differs")
    if all(_is_python(path, file) or file.kind == "file" for file in present) and _is_doc(path):
        if read.pages:
            return Difference(path, Relation.TESTS, "documentation differs, and something here runs documentation")
        return Difference(path, Relation.DOCS, "documentation differs")
    return Difference(path, Relation.CHANGED, "a file that is no Python source differs")


def _test(path: str, read: _Read) -> Difference:
    if _is_module_of(path, read.modules):
        return Difference(path, Relation.CHANGED, "the program imports it, test or not, and it differs")
    if _is_named(path, read):
        return Difference(path, Relation.UNTOLD, "a text of the program names it, test or not, and it differs")
    return Difference(path, Relation.TESTS, "a file of the tests differs")


def _module(path: str, old: SourceFile | None, new: SourceFile | None, read: _Read) -> Difference:
    if old is None or new is None:
        return Difference(path, Relation.CHANGED, "was added" if old is None else "was removed")
    if old.kind != new.kind:
        return Difference(path, Relation.CHANGED, f"was {old.kind}, is {new.kind}")
    if _interpreter(old.data) != _interpreter(new.data):
        return Difference(path, Relation.CHANGED, "another interpreter runs it")
    relation, why = _python(old.data, new.data, read.names)
    if relation is not Relation.CHANGED and {path, PurePosixPath(path).name} & read.texts:
        return Difference(path, Relation.UNTOLD, "a text of the program names it: it may be read as data")
    return Difference(path, relation, why)


def _python(old: bytes, new: bytes, used: NamesUsed) -> tuple[Relation, str]:
    one, other = _parse(old), _parse(new)
    if one is None or other is None:
        return Relation.UNTOLD, "it can not be parsed"
    if _dump(one) == _dump(other):
        same = _tokens(old) == _tokens(new)
        return (Relation.FORMATTING, "the same tokens") if same else (Relation.SYNTAX, "the same syntax tree")
    one, other = (without_identity_calls(tree, used) for tree in (one, other))
    if _dump(one) == _dump(other):
        return Relation.IDENTITY_CALLS, "the same syntax tree without identity calls"
    return Relation.CHANGED, "the program differs"


def _parse(data: bytes) -> ast.Module | None:
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _dump(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.kind = None  # `u"text"` is `"text"`
    try:
        return ast.dump(tree)
    except RecursionError:
        return f"too deep to compare: {id(tree)}"


def _tokens(data: bytes) -> list[tuple[int, str]] | None:
    """Tokens without layout and comments; None where they can not be read."""
    try:
        found = list(tokenize.tokenize(io.BytesIO(data).readline))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return None
    return [(each.type, "" if each.type in _BLANK else each.string) for each in found if each.type not in _LAYOUT]


def _is_python(path: str, file: SourceFile) -> bool:
    named = path.endswith((".py", ".pyw")) or b"python" in _interpreter(file.data)
    return named and file.kind in {"file", "executable"}


def _is_test(path: str) -> bool:
    place = PurePosixPath(path)
    folders = {part.lower() for part in place.parts[:-1]}
    named = re.fullmatch(r"(test_.*|.*_test|conftest)\.py", place.name) is not None
    return bool({"tests", "test"} & folders) or named


def _imported(path: str, tree: ast.Module) -> Iterator[str]:
    """The modules that a module may import, as paths without their ending."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    parts = alias.name.split(".")  # importing a module runs the packages that it is in
                    yield from ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
            case ast.ImportFrom(module=module, names=aliases, level=level):
                above = PurePosixPath(path).parts[:-level] if level else ()
                base = [*above, *(module or "").replace(".", " ").split()]
                yield from ("/".join(base[:count]) for count in range(1, len(base) + 1))
                yield from ("/".join([*base, alias.name]) for alias in aliases)


def _is_module_of(path: str, modules: Collection[str]) -> bool:
    """Whether a file is one of the imported modules, from whichever folder it is imported."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return any("/".join(parts[start:]) in modules for start in range(len(parts)))


def _interpreter(data: bytes) -> bytes:
    return data.partition(b"\n")[0].rstrip() if data.startswith(b"#!") else b""


def _is_doc(path: str) -> bool:
    place = PurePosixPath(path)
    return place.suffix.lower() in _DOC_SUFFIXES or place.name in _DOC_NAMES or place.parts[0] in {"docs", "doc"}


def _packages(tree: Tree) -> frozenset[str]:
    """The folders of Python packages."""
    places = (PurePosixPath(path) for path in tree.files)
    return frozenset(str(place.parent) for place in places if place.name == "__init__.py")


def _may_be_read(path: str, read: _Read) -> bool:
    """Whether a file is data of a package, or a text of the program names it, or its folder where it is no page."""
    place = PurePosixPath(path)
    return any(str(parent) in read.packages for parent in place.parents) or _is_named(path, read)


def _is_named(path: str, read: _Read) -> bool:
    place = PurePosixPath(path)
    folders = () if _is_doc(path) else tuple(str(parent) for parent in place.parents if str(parent) != ".")
    return any(name in read.texts for name in (path, place.name, *folders))
