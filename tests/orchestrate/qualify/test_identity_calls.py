"""Identity calls are taken out where they are certain to do nothing, and nowhere else."""

import ast

import pytest

from orchestrate.qualify.identity_calls import names_imported_elsewhere, without_identity_calls

CAST = "from typing import cast\n"


def left(code, **options):
    return ast.unparse(without_identity_calls(ast.parse(code), **options))


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


def test_an_import_that_is_still_used_or_that_others_take_from_here_stays():
    assert left(CAST + "f = map(cast, x)") == "from typing import cast\nf = map(cast, x)"
    assert left(CAST + "__all__ = ['cast']") == "from typing import cast\n__all__ = ['cast']"
    assert left(CAST, needed={"cast"}) == "from typing import cast"
    assert left(CAST, needed={"*"}) == "from typing import cast"
    assert left(CAST) == ""


def test_names_that_modules_take_from_each_other_are_found():
    code = "from typing import cast\nfrom pkg import cast as c, other\nfrom .typing import assert_type"
    assert names_imported_elsewhere([ast.parse(code)]) == {"cast", "other", "assert_type"}
