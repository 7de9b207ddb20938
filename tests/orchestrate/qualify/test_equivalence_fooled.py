"""Sources made to look like the ones that ran."""

import pytest

from orchestrate.qualify.equivalence import Answer, compare
from orchestrate.qualify.trees import SourceFile, Tree

CODE = "x = 1\n"
REMARKED = "x = 1  # a remark\n"


def tree(**files):
    whole = {"pkg/__init__.py": "", "pkg/code.py": CODE, "README.md": "words", **files}
    made = {
        path: text if isinstance(text, SourceFile) else SourceFile("file", text.encode())
        for path, text in whole.items()
    }
    return Tree("t", None, None, made)


def answer(old, new, *, of_tests=False):
    return compare(tree(**old), tree(**new), of_tests=of_tests).answer


@pytest.mark.parametrize(
    "code",
    [
        "vars(__import__('builtins'))[name]('1')", "import sys\nsys.modules['built' + 'ins']",
        "import sys\nsys.modules.get(name)", "().__class__.__base__.__subclasses__()", "from builtins import *",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', text])", "import os\nos.system('python ' + x)",
        "import inspect\nif inspect.currentframe().f_lineno > 3: pass", "import sys\nsys._getframe(1)",
        "from sys import _getframe as here", "import traceback\ntraceback.extract_stack()", "f.__code__.co_firstlineno",
        "f.__code__.co_code", "import marshal\nmarshal.loads(x)", "import types\ntypes.CodeType(1)",
        "import code\ncode.InteractiveInterpreter().runsource('x')", "import tokenize", "import ast\nast.parse(text)",
        "from pathlib import Path\nHERE = Path(__file__)\nTOP = HERE.parent\n(TOP / name).read_bytes()",
        "import os\nhere = os.path.dirname(__file__)\nos.listdir(here)", "import glob\nglob.glob('**/*.py')",
        "[p for p in x if p.suffix == '.py']", "import torch\ntorch.jit.script(f)",
        "import triton\n@triton.jit\ndef k(): pass",
        "from importlib import resources\nresources.files('pkg') / 'code.py'",
        "import pkgutil\npkgutil.get_data('pkg', 'code.py')",
    ],
)  # fmt: skip
def test_a_program_that_may_look_at_its_own_source_makes_a_remark_untold(code):
    assert answer({"pkg/d.py": code}, {"pkg/d.py": code, "pkg/code.py": REMARKED}) is Answer.CAN_NOT_TELL


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nif 'torch' in sys.modules: sys.modules['torch']",
        "from pathlib import Path\n(Path(__file__).parent / 'table.json').read_text()",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'pass'])",
        "import traceback\ntraceback.print_exc()",
    ],
)
def test_a_program_that_does_not_is_supported_all_the_same(code):
    assert answer({"pkg/d.py": code}, {"pkg/d.py": code, "pkg/code.py": REMARKED}) is Answer.SUPPORTS


@pytest.mark.parametrize(
    ("program", "path"),
    [
        ("import tests.helpers", "tests/__init__.py"), ("from tests import helpers", "tests/more.py"),
        ("from tests.helpers import more", "tests/helpers.py"), ("x = 'tests/data.json'", "tests/data.json"),
        ("x = 'run_test.py'", "run_test.py"), ("import ab_test", "src/ab_test.py"),
    ],
)  # fmt: skip
def test_a_file_of_the_tests_that_the_program_reaches_is_no_test(program, path):
    files = {"pkg/d.py": program, "tests/__init__.py": "", "tests/helpers.py": "from tests import more"}
    assert answer({**files, path: "1"}, {**files, path: "2"}) is not Answer.SUPPORTS


def test_another_interpreter_line_is_another_program():
    old, new = "#!/usr/bin/python3\nx = 1\n", "#!/usr/bin/env other\nx = 1\n"
    assert answer({"x.py": old}, {"x.py": new}) is Answer.DOES_NOT


@pytest.mark.parametrize("files", [{"pytest.ini": "addopts = --doctest-glob=*.md"}, {"tests/t.py": "p = 'README.md'"}])
def test_pages_that_tests_read_or_run_are_no_mere_pages(files):
    assert answer(files, {**files, "README.md": "others"}, of_tests=True) is not Answer.SUPPORTS
    assert answer(files, {**files, "README.md": "others"}) is Answer.SUPPORTS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"pkg/code.py": SourceFile("executable", CODE.encode())}, {}),
        ({"pkg/code.py": SourceFile("link", b"README.md")}, {}),
        ({"ext": SourceFile("submodule", b"1")}, {"ext": SourceFile("submodule", b"2")}),
        ({"pkg/a.py": CODE}, {"pkg/b.py": CODE}), ({}, {"x.pth": "import os"}), ({}, {"sitecustomize.py": "1"}),
        ({"docs/conf.py": "a = 1"}, {"docs/conf.py": "a = 2"}), ({"pkg/code.py": "x = 1"}, {"pkg/code.py": "x = True"}),
        ({"pkg/code.py": "x = f'{a=}'"}, {"pkg/code.py": "x = f'{a = }'"}),
        ({"pkg/code.py": "'''a'''"}, {"pkg/code.py": "'''b'''"}),
        ({"pkg/code.py": "x = 0.0"}, {"pkg/code.py": "x = -0.0"}),
        ({"pkg/code.py": "def f(): 0"}, {"pkg/code.py": "@d\ndef f(): 0"}),
    ],
)  # fmt: skip
def test_what_only_looks_alike_is_a_change(old, new):
    assert answer(old, new) is Answer.DOES_NOT
