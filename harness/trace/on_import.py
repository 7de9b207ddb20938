"""Puts the recorder into `torch.distributed` when a program imports it; until then it costs nothing.

This module and those that it imports know each other by relative names: in a foreign program their package has another
name than here.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .compile_beats import beat_on_compilations

__all__ = ["watch_imports"]

_GROUPS = "torch.distributed.distributed_c10d"
_COMPILATIONS = "torch._dynamo.callback"


def watch_imports(directory: str) -> None:
    """From now on, whoever makes a process group has its collectives recorded in `directory`."""
    session = _Session(Path(directory))
    sys.meta_path.insert(0, _Finder({_GROUPS: session.on_groups, _COMPILATIONS: session.on_compilations}))


class _Session:
    """The recording of this process: nothing, until it makes a process group."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recorder: Any = None

    def on_groups(self, module: ModuleType) -> None:
        """Install the recorder with the first process group: by then torch is whole, and nothing was sent before."""
        name = "_new_process_group_helper"  # `init_process_group` and `new_group` both make their groups with it
        make = getattr(module, name)

        def make_group(*arguments: object, **named: object) -> object:
            setattr(module, name, make)
            try:
                from .foreign import ForeignRecorder  # noqa: PLC0415 - torch must be there first

                self._recorder = ForeignRecorder(self._directory)
                self._recorder.install()
            except Exception as error:  # noqa: BLE001 - a program must run as it would without us
                print(f"orchestrate trace: nothing is recorded here: {error!r}", file=sys.stderr)
            return make(*arguments, **named)

        setattr(module, name, make_group)

    def on_compilations(self, module: ModuleType) -> None:
        """Beat while dynamo compiles."""
        beat_on_compilations(getattr(module, "callback_handler", None), self._compiling)

    def _compiling(self, now: bool) -> None:
        if self._recorder is not None:
            self._recorder.compiling(now)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing by itself: it lets the others find a module and looks in once that has been executed."""

    def __init__(self, then: dict[str, Callable[[ModuleType], None]]) -> None:
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with a loader that looks in after it; None for every module that is not waited for."""
        then = self._then.pop(fullname, None)
        if then is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, then)
        return spec


class _Loader(importlib.abc.Loader):
    """The module's own loader, and what is to be done after it."""

    def __init__(self, loader: importlib.abc.Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does, and then what was asked for."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # who asks a module for its source must find its own loader
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        self._then(module)
