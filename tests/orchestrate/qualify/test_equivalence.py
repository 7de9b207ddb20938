"""What one source is to another, file by file, and whether evidence of the one supports the other."""

import pytest

from orchestrate.qualify.equivalence import Answer, Relation, compare
from orchestrate.qualify.trees import SourceFile, Tree

CODE = "import os\n\n\ndef f(x):\n    return os.path.join('a', x)\n"


def tree(name="t", **changes):
    """A program with tests, pages, package data and a project file; `changes` are paths with `__` for a slash."""
    files = {
        "pkg/__init__.py": "",
        "pkg/code.py": CODE,
        "pkg/table.json": "{}",
        "tests/test_code.py": "def test_it():\n    assert True\n",
        "docs/page.md": "words",
        "README.md": "words",
        "pyproject.toml": "[project]\n",
    } | changes
    made = {path: SourceFile("file", text.encode()) for path, text in files.items() if text is not None}
    return Tree(name, None, None, made)


def relation(old, new, path="pkg/code.py", **options):
    found = compare(tree(**{path: old}), tree(**{path: new}), **options)
    assert len(found.differences) == 1, found
    return found.differences[0].relation, found.answer


def test_the_same_files_support_each_other_also_with_dynamic_code():
    found = compare(tree(**{"pkg/code.py": "eval(input())"}), tree(**{"pkg/code.py": "eval(input())"}))
    assert (found.answer, found.relation, found.differences, found.identical) == (
        Answer.SUPPORTS, Relation.IDENTICAL, (), 7,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (CODE.replace("\n\n\n", "\n\n# a remark\n\n"), Relation.FORMATTING),
        (CODE.replace("    return os", "  return os"), Relation.FORMATTING),
        (CODE.replace("('a', x)", "(\n        'a',\n        x)"), Relation.FORMATTING),
        (CODE.replace("\n", "\r\n"), Relation.FORMATTING),
        (CODE.replace("'a'", '"a"'), Relation.SYNTAX),
        (CODE.replace("'a', x", "'a', x,"), Relation.SYNTAX),
        (CODE.replace("os.path.join('a', x)", "(os.path.join('a', x))"), Relation.SYNTAX),
        (CODE.replace("'a'", "u'a'"), Relation.SYNTAX),
    ],
)
def test_other_words_for_the_same_program_support_it(new, expected):
    assert relation(CODE, new) == (expected, Answer.SUPPORTS)


@pytest.mark.parametrize(
    "new",
    [
        CODE.replace("'a'", "'b'"),
        CODE.replace("'a'", "b'a'"),
        CODE.replace("f(x):", "f(x):\n    'words'"),
        CODE.replace("'a', x)", "'a', x) or 1"),
        CODE.replace("(x):", "(x, /):"),
        CODE + "x = 1",
        "# -*- coding: latin-1 -*-\n" + CODE.replace("'a'", "'\u00e9'"),
    ],
)
def test_another_program_is_a_change(new):
    assert relation(CODE, new) == (Relation.CHANGED, Answer.DOES_NOT)


@pytest.mark.parametrize(("old", "new"), [("x = 1", "x = 1.0"), ("x = 1", "x = True"), ("x = -0.0", "x = 0.0")])
def test_constants_that_are_equal_and_not_the_same_are_a_change(old, new):
    assert relation(old, new) == (Relation.CHANGED, Answer.DOES_NOT)


def test_the_encoding_that_a_file_declares_is_heeded():
    text = "x = '\u00e9'\n"
    new = Tree("t", None, None, dict(tree().files) | {
        "pkg/code.py": SourceFile("file", b"# coding: latin-1\n" + text.encode("latin-1")),
    })  # fmt: skip
    found = compare(tree(**{"pkg/code.py": text}), new)
    assert found.differences[0].relation in {Relation.FORMATTING, Relation.SYNTAX}
    declared = Tree("t", None, None, dict(tree().files) | {
        "pkg/code.py": SourceFile("file", b"# coding: latin-1\n" + text.encode()),
    })  # fmt: skip
    assert compare(tree(**{"pkg/code.py": text}), declared).answer is Answer.DOES_NOT


@pytest.mark.parametrize("changed", [None, "def test_it():\n    assert 1\n"])
def test_changed_tests_support_measured_cells_and_no_tests(changed):
    old, new = tree(), tree(**{"tests/test_code.py": changed})
    assert compare(old, new).answer is Answer.DOES_NOT
    found = compare(old, new, of_tests=False)
    assert (found.answer, found.relation) == (Answer.SUPPORTS, Relation.TESTS)


@pytest.mark.parametrize(
    ("new", "expected"),
    [("# a remark\ndef test_it():\n    assert  True\n", Relation.FORMATTING),
     ("def test_it():\n    assert (True)\n", Relation.SYNTAX)],
)  # fmt: skip
def test_tests_in_other_words_are_the_same_tests(new, expected):
    path = "tests/test_code.py"
    old = tree()
    found = compare(old, tree(**{path: new}))
    assert (found.answer, found.relation) == (Answer.SUPPORTS, expected)
    reading = {"tests/test_more.py": "import inspect\ninspect.getsource(f)"}
    assert compare(tree(**reading), tree(**reading, **{path: new})).answer is Answer.CAN_NOT_TELL
    named = {"tests/test_more.py": "open('tests/test_code.py')"}
    assert compare(tree(**named), tree(**named, **{path: new})).answer is Answer.CAN_NOT_TELL
    dynamic = {"pkg/code.py": "eval('1')"}
    found = compare(tree(**dynamic), tree(**dynamic, **{path: new}), of_tests=False)
    assert (found.answer, found.relation) == (Answer.SUPPORTS, Relation.TESTS)  # they did not run


@pytest.mark.parametrize(
    "code", ["import tests.test_code", "from tests import test_code", "from tests.test_code import f",
             "from ..tests import test_code", "from ..tests.test_code import f"]
)  # fmt: skip
def test_a_test_that_the_program_imports_is_a_part_of_it(code):
    program = {"pkg/code.py": code}
    found = compare(tree(**program), tree(**program, **{"tests/test_code.py": "x = 1"}), of_tests=False)
    assert (found.differences[0].relation, found.answer) == (Relation.CHANGED, Answer.DOES_NOT)


@pytest.mark.parametrize("path", ["docs/page.md", "README.md", "LICENSE", "CHANGELOG.rst"])
def test_changed_pages_support(path):
    assert relation("a", "b", path) == (Relation.DOCS, Answer.SUPPORTS)
    assert relation(None, "b", path) == (Relation.DOCS, Answer.SUPPORTS)


def test_a_page_that_the_program_names_is_data():
    program = {"pkg/code.py": "open('docs/page.md')"}
    found = compare(tree(**program), tree(**program, **{"docs/page.md": "others"}))
    assert (found.differences[0].relation, found.answer) == (Relation.UNTOLD, Answer.CAN_NOT_TELL)


@pytest.mark.parametrize("path", ["pkg/table.json", "pkg/new.txt", "pkg/sub/deep.yaml", "pkg/README.md"])
def test_data_of_a_package_can_not_be_told(path):
    assert relation("1", "2", path) == (Relation.UNTOLD, Answer.CAN_NOT_TELL)


def test_data_in_a_folder_that_the_program_names_can_not_be_told():
    program = {"pkg/code.py": "import pathlib\nx = pathlib.Path('templates').glob('*')", "templates/a.yaml": "1"}
    found = compare(tree(**program), tree(**program | {"templates/a.yaml": "2"}))
    assert found.answer is Answer.CAN_NOT_TELL


@pytest.mark.parametrize("path", ["pyproject.toml", ".github/workflows/ci.yml", "constraints.txt", "Makefile"])
def test_any_other_file_is_a_change(path):
    assert relation("1", "2", path) == (Relation.CHANGED, Answer.DOES_NOT)


@pytest.mark.parametrize(("old", "new"), [(None, "x = 1"), ("x = 1", None)])
def test_a_module_that_comes_or_goes_is_a_change(old, new):
    assert relation(old, new, "pkg/other.py") == (Relation.CHANGED, Answer.DOES_NOT)


def test_a_file_that_becomes_executable_or_a_link_is_a_change():
    for kind in ("executable", "link"):
        files = dict(tree().files) | {"pkg/code.py": SourceFile(kind, CODE.encode())}
        assert compare(tree(), Tree("t", None, None, files)).answer is Answer.DOES_NOT


def test_what_can_not_be_parsed_can_not_be_told():
    for odd in ("def (", "x = '\0'", "(" * 5000 + ")" * 5000):
        assert relation(odd, odd + "\n\n# more") == (Relation.UNTOLD, Answer.CAN_NOT_TELL)


DYNAMIC = [
    "eval('1')",
    "exec(open('x').read())",
    "run = eval",
    "import builtins\nbuiltins.exec('x')",
    "import importlib\nimportlib.import_module(name)",
    "from importlib import import_module\nimport_module(f'pkg.{x}')",
    "__import__(name)",
    "from builtins import eval as run\nrun('x')",
    "getattr(__builtins__, 'eval')('x')",
    "import runpy\nrunpy.run_path(p)",
    "import inspect\ninspect.getsource(f)",
    "compile(text, 'x', 'exec')",
    "import builtins as b\nb.eval('1')",
    "import builtins\nvars(builtins)['eval']('1')",
    "import builtins\nbuiltins.__dict__['eval']('1')",
    "globals()['__builtins__']",
    "import importlib\nload = importlib.import_module",
    "from importlib import import_module\nload = import_module",
    "open(__file__).read()",
    "from pathlib import Path\nPath(__file__).read_text()",
    "from pathlib import Path\nwith Path(__file__).open() as f: pass",
]


@pytest.mark.parametrize("code", DYNAMIC)
@pytest.mark.parametrize("place", ["pkg/other.py", "pkg/code.py"])
def test_dynamic_code_anywhere_in_the_program_makes_it_refuse(code, place):
    old, new = tree(**{"pkg/code.py": "x = 1", place: code}), tree(**{"pkg/code.py": "x  =  1", place: code})
    if place == "pkg/code.py":
        new = tree(**{place: f"{code}  # and a remark"})
    found = compare(old, new)
    assert found.answer is Answer.CAN_NOT_TELL
    assert any(reason.startswith(f"dynamic code: {place} line ") for reason in found.reasons), found.reasons


@pytest.mark.parametrize(
    "code", ["import importlib\nimportlib.import_module('json')", "class A:\n    def compile(self): ...\nA().compile()",
             "import re\nre.compile('x')", "__import__('json')", "model.eval()", "import builtins\nbuiltins.print(1)",
             "from pathlib import Path\nhere = Path(__file__).parent"]
)  # fmt: skip
def test_code_that_only_looks_dynamic_does_not(code):
    assert relation(code, f"{code}  # a remark")[1] is Answer.SUPPORTS


def test_dynamic_code_in_tests_or_beside_changed_pages_alone_is_no_matter():
    code = {"pkg/code.py": "eval('1')"}
    assert compare(tree(**code), tree(**code, **{"README.md": "others"})).answer is Answer.SUPPORTS
    tests = {"tests/test_code.py": "eval('1')"}
    remarked = tree(**tests, **{"pkg/code.py": CODE + "# a remark"})
    assert compare(tree(**tests), remarked, of_tests=False).answer is Answer.SUPPORTS
    assert compare(tree(**tests), remarked).answer is Answer.CAN_NOT_TELL  # what ran were these tests


def test_a_change_is_said_before_what_can_not_be_told():
    found = compare(tree(), tree(**{"pkg/code.py": "eval('1')", "pkg/table.json": "[]"}))
    assert found.answer is Answer.DOES_NOT
    assert found.reasons == ("pkg/code.py: the program differs",)
    assert [each.relation for each in found.differences] == [Relation.CHANGED, Relation.UNTOLD]
