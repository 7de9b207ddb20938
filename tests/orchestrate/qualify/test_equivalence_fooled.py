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
        "import pkgutil\npkgutil.get_data('pkg', 'code.py')", "import pkgutil\npkgutil.get_data('pkg', name)",
        "open(__spec__.origin)", "open(g.__code__.co_filename)", "print(g.__code__.co_filename)", "here = __cached__",
        "import pkg\nfor p in pkg.__path__: pass", "__loader__.get_source(__name__)", "__loader__.get_data(name)",
        "import pkg\npkg.__loader__", "import pkg\npkg.__spec__.loader", "import __main__\nopen(__main__.__file__)",
        "import pkg.code as c\nimport os\nos.path.getsize(c.__file__)", "open(vars()['__file__'])",
        "from pathlib import Path\nPath(getattr(c, '__file__')).read_text()", "getattr(frame, 'f_lineno')",
        "import sys\nopen(sys.argv[0])", "import os, sys\nos.listdir(sys.path[0])", "import linecache", "import dis",
        "import inspect\ninspect.stack()", "from inspect import stack", "import inspect\ninspect.getfile(C)",
        "import inspect\ninspect.findsource(C)", "f.__code__.co_linetable", "import sys\nsys._current_frames()",
        "import shutil\nshutil.copyfile(__file__, x)",
        "from torch.jit import script", "from torch.jit import script as s", "import torch.jit as tj\ntj.script(f)",
        "from torch import jit as j\nj.trace(f, x)", "import torch\ntorch.jit.script_if_tracing(f)",
        "import torch as t\nt.jit.script(f)", "import torch\nj = torch.jit\nj.script(f)", "from torch.jit import *",
        "from triton import jit", "import triton as tr\n@tr.jit\ndef k(): pass",
        "import triton.runtime.jit as r\nr.jit",
        "import importlib as l\nl.import_module('triton').jit(f)", "import sys\nsys.modules['inspect'].stack()",
        "import inspect as i\ni.stack()[0].lineno", "i = __import__('inspect')\ni.trace()",
        "import ast as a\na.parse(x)",
        "from ast import parse as p", "from inspect import getsource as g", "from importlib.util import find_spec as f",
        "import sys as s\ns.modules[name]", "from sys import modules as m\nm.get(name)", "m = sys.modules\nm[name]",
        "import sys as s\nopen(s.argv[0])", "from sys import argv\nopen(argv[0])",
        "from sys import path as p\nopen(p[0])",
        "from pkg import __file__ as here\nopen(here)", "from shutil import copyfile as c\nc(__file__, x)",
        "from os import system as run\nrun(x)", "from pkgutil import get_data as g\ng('pkg', name)",
        "def f():\n    import json as i\ndef g():\n    import inspect as i\n    i.stack()",
        "import logging\nlogging.basicConfig(format='%(lineno)d')", "log('{lineno:d}')", "log('{record.lineno}')",
        "log('$lineno', style='$')", "record.lineno", "vars(record)['lineno']",
        "import warnings\nwarnings.showwarning = f",
        "import sys\nsys.settrace(f)", "from sys import setprofile as s", "import threading\nthreading.setprofile(f)",
        "import threading as t\nt.settrace(f)", "import sys as s\ns.monitoring.use_tool_id(1, 'x')",
        "import cProfile as c",
        "from profile import Profile", "import pydoc", "__import__('linecache')",
        "import torch as t\ngetattr(t.jit, 'script')(f)", "import inspect as i\ngetattr(i, 'stack')()",
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
        "import torch\ntorch.stack(x)",
        "import sys\nopen(sys.argv[1])",
        "if __spec__ is not None: print(__spec__.name)",
        "import warnings\nwarnings.warn('x', stacklevel=2)",
        "import pkgutil\npkgutil.get_data('pkg', 'table.json')",
        "import pkg\nprint(pkg.__file__)",
        "import logging\nlogging.exception('x')",
        "import sys\nsys.path.insert(0, x)",
        "for lineno, line in enumerate(lines): print(f'{lineno}: {line}')",
        "import torch\n@torch.jit.ignore\ndef f(): return torch.jit.is_scripting()",
        "from re import compile as c\nc('x')",
        "from jax import jit\njit(f)",
        "import warnings\nwarnings.simplefilter('error')",
        "from torch import stack\nstack(x)",
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


def test_a_script_without_an_ending_is_a_part_of_the_program():
    script = {"bin/tool": "#!/usr/bin/env python3\neval('1')\n"}
    assert answer(script, {**script, "pkg/code.py": REMARKED}) is Answer.CAN_NOT_TELL
    plain = {"bin/tool": "#!/usr/bin/env python3\nx = 1\n"}
    assert answer(plain, {"bin/tool": plain["bin/tool"] + "# a remark"}) is Answer.SUPPORTS
    assert answer(plain, {"bin/tool": "#!/bin/sh\nx = 1\n"}) is Answer.DOES_NOT


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


CASTS = {"pkg/a.py": "from typing import cast\ndef f(x): return cast(int, x)\n"}
PLAIN = {"pkg/a.py": "def f(x): return x\n"}


def test_an_identity_call_may_go_where_nobody_uses_its_name():
    assert answer(CASTS, PLAIN) is Answer.SUPPORTS


@pytest.mark.parametrize(
    "more",
    [
        {"pkg/b.py": "import pkg.a\npkg.a.cast(int, 1)"}, {"pkg/b.py": "import pkg.a as q\ngetattr(q, 'cast')"},
        {"bin/tool": "#!/usr/bin/env python3\nimport pkg.a\npkg.a.cast(int, 1)"},
        {"pkg/b.py": "import typing\ntyping.cast = lambda t, x: 5"}, {"typing.py": "cast = print"},
        {"tests/test_a.py": "def test(monkeypatch): monkeypatch.setattr('typing.cast', print)"},
        {"tests/test_a.py": "def test(monkeypatch): monkeypatch.setattr(pkg.a, 'cast', print)"},
    ],
)  # fmt: skip
def test_an_identity_call_that_others_reach_does_not(more):
    assert answer({**CASTS, **more}, {**PLAIN, **more}, of_tests=True) is Answer.DOES_NOT


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def f(x): cast(int, x); 'words'; return x", "def f(x): 'words'; return x"), ("'words'", "'words'"),
        ("class A:\n    x = 1\n    cast(int, x)", "class A:\n    'words'\n    x = 1"),
        ("x: cast(int, 3)", "x: 3"), ("def f(x: cast(int, 3)): pass", "def f(x: 3): pass"),
    ],
)  # fmt: skip
def test_words_that_a_program_can_ask_for_are_a_part_of_it(old, new):
    assert answer({"pkg/a.py": f"from typing import cast\n{old}"}, {"pkg/a.py": new}) is Answer.DOES_NOT
