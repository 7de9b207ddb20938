"""Loaded by every Python that a traced command starts, because its folder leads PYTHONPATH.

It steps out of the way at once: a `sitecustomize` of the environment runs as if this one were not there. What it leaves
behind is one entry in `sys.meta_path`, which puts the recorder into `torch.distributed` when that is imported. Whatever
goes wrong here must not stop the program that it was loaded into.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would be imported into every Python
_PACKAGE = "_collective_trace"


def _load_next() -> None:
    """Run the `sitecustomize` that would have been found without this folder."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _install(directory: str) -> None:
    """Load the recorder under a name that no program has, so that a package `harness` of its own stays its own."""
    folder = os.path.dirname(_HERE)  # noqa: PTH120
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    importlib.import_module(f"{_PACKAGE}.on_import").watch_imports(directory)


if os.environ.get("COLLECTIVE_TRACE_DIR"):
    try:
        _install(os.environ["COLLECTIVE_TRACE_DIR"])
    except Exception as error:  # noqa: BLE001 - a program must run as it would without us
        print(f"orchestrate trace: nothing is recorded here: {error!r}", file=sys.stderr)
_load_next()
