"""Identity calls are taken out where they are certain to do nothing, and nowhere else."""

import ast

import pytest

from orchestrate.qualify.identity_calls import without_identity_calls
from orchestrate.qualify.module_names import EVERY, NamesUsed, names_used

CAST = "from typing import cast\n"


def left(code, read=(), written=()):
    return ast.unparse(without_identity_calls(ast.parse(code), NamesUsed(frozenset(read), frozenset(written))))


def same(code, plain):
    return left(code) == ast.unparse(ast.parse(plain))


@pytest.mark.parametrize(
    ("code", "plain"),
    [
        (CAST + "y = cast(int, x)", "y = x"),
        (CAST + "y = cast('Anything[at, all]', x)", "y = x"),
        (CAST + "y = cast(typ=int, val=x)", "y = x"),
        (CAST + "y = cast(int, val=x)", "y = x"),
        (CAST + "y = cast(dict[str, list[int]], x)", "y = x"),
        (CAST + "y = cast(int | None, x)", "y = x"),
        (CAST + "y = cast(int, cast(object, x)).real", "y = x.real"),
        ("from typing import cast as c\ny = c(int, x)", "y = x"),
        ("import typing\ny = typing.cast(int, x)", "y = x"),
        ("import typing as t\ny = t.cast(int, x)", "y = x"),
        ("from typing import Any, cast\ny: Any = cast(Any, x)", "from typing import Any\ny: Any = x"),
        ("import a\nfrom typing import cast\nclass A: pass\ny = cast(A, x)", "import a\nclass A: pass\ny = x"),
        (
            "from collections.abc import Sequence\nfrom typing import cast\ny = cast(Sequence[int], x)",
            "from collections.abc import Sequence\ny = x",
        ),
        ("from typing import assert_type\ndef f(x):\n    assert_type(x, int)\n    return x", "def f(x):\n    return x"),
        ("from typing import reveal_type\nx = 1\nreveal_type(x)", "x = 1"),
        ("from typing import assert_type\ndef f(x):\n    assert_type(x, int)", "def f(x):\n    pass"),
        ("from typing import reveal_type\ny = reveal_type(f())", "y = f()"),
    ],
)
def test_an_identity_call_is_what_it_returns(code, plain):
    assert same(code, plain), left(code)


@pytest.mark.parametrize(
    "code",
    [
        "def cast(t, x): return 1\ny = cast(int, x)",
        "from other import cast\ny = cast(int, x)",
        CAST + "cast = other\ny = cast(int, x)",
        CAST + "def f(cast):\n    return cast(int, x)",
        CAST + "for cast in z:\n    cast(int, x)",
        CAST + "from m import *\ny = cast(int, x)",
        "if T:\n    from typing import cast\ny = cast(int, x)",
        "from .typing import cast\ny = cast(int, x)",
        "import typing\ntyping = other\ny = typing.cast(int, x)",
        CAST + "y = cast(make(), x)",
        CAST + "y = cast(a.b, x)",
        CAST + "y = cast(Missing, x)",
        CAST + "y = cast(Later, x)\nclass Later: pass",
        CAST + "def f(x=cast(Later, 1)): pass\nclass Later: pass",
        CAST + "if TYPE_CHECKING:\n    from a import Named\ny = cast(Named, x)",
        CAST + "class A: pass\ny = cast(A[int], x)",
        CAST + "class A: pass\ny = cast(A | None, x)",
        CAST + "int = object()\ndel int\ny = cast(int, x)",
        CAST + "y = cast(int, *x)",
        CAST + "y = cast(int)",
        CAST + "y = cast(int, x, 3)",
        CAST + "y = cast(val=x, typ=int)",
        CAST + "def f():\n    cast(str, 'documentation')",
        CAST + "def f():\n    cast(str, cast(str, 'documentation'))",
        CAST + "class A:\n    y: cast(int, 3)\n    z: int | cast(int, 3) = 1",
        CAST + "def f(x: cast(int, 3), *, y: list[cast(int, 3)]=1) -> cast(int, 3): pass",
        "from __future__ import annotations\n" + CAST + "x: cast(int, 3)",
    ],
)
def test_a_call_that_may_do_something_else_stays(code):
    assert left(code) == ast.unparse(ast.parse(code))


@pytest.mark.parametrize(
    ("code", "plain"),
    [
        ("assert_type(unheard, int)", "unheard"),
        ("def f(x):\n    del x\n    assert_type(x, int)", "def f(x):\n    del x\n    x"),
        ("if x:\n    y = 1\nassert_type(y, int)", "if x:\n    y = 1\ny"),
    ],
)
def test_a_name_that_may_not_be_bound_is_still_looked_up(code, plain):
    assert same(f"from typing import assert_type\n{code}", plain)


@pytest.mark.parametrize("code", ["import typing\n'words'", "from typing import cast\n'words'\nx = 1"])
def test_no_text_becomes_documentation_where_an_import_goes(code):
    assert left(code) == ast.unparse(ast.parse(code))


def test_no_text_becomes_documentation_where_a_call_goes():
    assert same(CAST + "def f(x):\n    cast(int, x)\n    'words'", "def f(x):\n    x\n    'words'")
    assert same(CAST + "def f(x):\n    'words'\n    cast(int, x)", "def f(x):\n    'words'")


def test_a_name_that_an_except_clause_takes_away_is_still_looked_up():
    code = "def f(x):\n    try:\n        pass\n    except E as x:\n        pass\n"
    assert same(f"from typing import assert_type\n{code}    assert_type(x, int)", f"{code}    x")


def test_an_import_that_is_still_used_or_that_others_take_from_here_stays():
    assert left(CAST + "f = map(cast, x)") == "from typing import cast\nf = map(cast, x)"
    assert left(CAST + "__all__ = ['cast']") == "from typing import cast\n__all__ = ['cast']"
    assert left(CAST, {"cast"}) == "from typing import cast"
    assert left(CAST, {EVERY}) == "from typing import cast"
    assert left(CAST + "def f():\n    global cast").startswith(CAST)
    assert left(CAST) == ""


def test_a_function_that_something_sets_is_none_of_typing():
    code = CAST + "y = cast(int, x)"
    for name in ("cast", "typing", EVERY):
        assert left(code, written={name}) == code
    code = "from typing import cast as c\ny = c(int, x)"
    assert left(code, written={"c"}) == code
    assert left(code, written={"other"}) == "y = x"


def used(*codes, paths=()):
    return names_used([ast.parse(code) for code in codes], paths)


@pytest.mark.parametrize(
    "code",
    [
        "from pkg import cast as c", "from .typing import cast", "import pkg.a\npkg.a.cast(int, x)",
        "import pkg.a as q\nq.cast", "getattr(q, 'cast')", "hasattr(q, 'cast')", "patch('pkg.a.cast')",
        "f'{name}.cast'", "from typing import cast\n__all__ = ['cast']",
    ],
)  # fmt: skip
def test_a_name_that_a_program_may_read_of_a_module_is_found(code):
    assert "cast" in used(code).read


@pytest.mark.parametrize(
    "code", ["from pkg import *", "globals()[name]", "import pkg\ndir(pkg)", "from pkg import a\nvars(a)[name]",
             "import pkg\npkg.__dict__[name]", "import inspect, pkg.a\ninspect.getmembers(pkg.a)"]
)  # fmt: skip
def test_a_program_that_goes_through_all_names_of_a_module_may_read_each(code):
    assert EVERY in used(code).read


def test_what_is_taken_from_typing_itself_is_of_no_module_here():
    code = "'cast'\nimport typing\nfrom typing import cast\ntyping.cast(int, x)\nvars(args), self.__dict__"
    assert not used(code).read & {"cast", "typing", EVERY}


@pytest.mark.parametrize(
    "code",
    [
        "import typing\ntyping.cast = f", "import pkg.a\npkg.a.cast = f", "import typing as t\ndel t.cast",
        "setattr(typing, 'cast', f)", "monkeypatch.setattr('typing.cast', f)", "monkeypatch.setattr(pkg.a, 'cast', f)",
        "patch.object(q, 'cast')", "patch.multiple(q, cast=f)", "vars(q)['cast'] = f", "patch.dict(q, {'cast': f})",
        "import typing\nsetattr(typing, name, f)", "import typing\ntyping.__dict__.update(x)",
        "sys.modules['typing'] = f", "pkg.a.typing = f", "setattr(pkg.a.typing, name, f)", "typing.cast.__code__ = f",
        "from pkg.a import typing as t\nsetattr(t, name, f)",
    ],
)  # fmt: skip
def test_a_name_that_a_program_may_set_is_found(code):
    assert used(code).written & {"cast", "typing", EVERY}


def test_a_program_that_sets_none_of_them_does_not():
    code = "import typing\nself.cast = f\nx.other = 1\nd['a'] = typing.cast(int, getattr(q, 'cast'))\nf(cast=int)"
    assert not used(code).written & {"cast", "typing", EVERY}


@pytest.mark.parametrize("path", ["typing.py", "src/typing.py", "typing/__init__.py", "typing.cpython-312-x.so"])
def test_a_typing_of_the_source_itself_may_be_the_one_that_is_imported(path):
    assert EVERY in used(paths=["pkg/a.py", path]).written
    assert not used(paths=["docs/typing.md", "pkg/typings.py", "docs/typing/a.md"]).written
