"""The backends by name: which module has each, what it needs installed, and how long its provider takes to tell.

A module of a backend is imported when it is asked for. It has `open_backend(ownership, settings, place)` and, where an
audit can ask it, `open_surveyor(settings, place)`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestrate.backends.protocol import Backend, Ownership
from orchestrate.backends.survey import Surveyor
from orchestrate.errors import UnsatisfiableError

__all__ = ["PROVIDERS", "BackendPlace", "Provider", "open_backend", "open_surveyor", "provider_of"]


@dataclass(frozen=True, slots=True)
class BackendPlace:
    """Where a backend is opened.

    Attributes:
        temp_base: where temporary folders are made.
        home: the home folder, which nothing that is written down may name; None where there is none.
        environ: the environment of this process: endpoints and credentials are found by it.
        runs_dir: the runs directory.
        payload: local alone: the payload's command line without its evidence arguments; None for the harness.
        adopts_orphans: local alone: whether this process is the subreaper of the run.
    """

    temp_base: Path
    home: Path | None
    environ: Mapping[str, str]
    runs_dir: Path
    payload: tuple[str, ...] | None = None
    adopts_orphans: bool = False


@dataclass(frozen=True, slots=True)
class Provider:
    """One backend, as far as it is known without importing it.

    Attributes:
        name: as `--backend` has it.
        module: where it is implemented.
        needs: the library that it can not do without, by import name; None for none.
        extra: the extra of this package that installs that library.
        is_remote: whether the run is on other machines than this one.
        expiry_slack_s: how long after the run's deadline its resources expire: by then its teardown is over.
        census_gap_s: how far the last two looks of a census are apart.
        census_patience_s: how long the census waits for what is being removed.
        default_deadline_s: the deadline of a run that names none.
    """

    name: str
    module: str
    needs: str | None
    extra: str
    is_remote: bool
    expiry_slack_s: float
    census_gap_s: float
    census_patience_s: float
    default_deadline_s: int


PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("local", "orchestrate.backends.local", None, "harness", is_remote=False, expiry_slack_s=60.0,
                 census_gap_s=2.0, census_patience_s=8.0, default_deadline_s=1800),
        Provider("sky", "orchestrate.backends.skypilot", "sky", "sky", is_remote=True, expiry_slack_s=900.0,
                 census_gap_s=5.0, census_patience_s=180.0, default_deadline_s=14400),
        Provider("k8s", "orchestrate.backends.kubernetes", "kubernetes", "k8s", is_remote=True, expiry_slack_s=600.0,
                 census_gap_s=2.0, census_patience_s=120.0, default_deadline_s=14400),
    )
}  # fmt: skip
"""Every backend by its name."""


def provider_of(name: str) -> Provider:
    """The backend of that name; `UnsatisfiableError` for one that this version does not know."""
    provider = PROVIDERS.get(name)
    if provider is None:
        raise UnsatisfiableError(
            f"this version knows no backend {name[:40]!r}; it has {', '.join(PROVIDERS)}",
            remedy="use the version that launched the run",
        )
    return provider


def open_backend(name: str, ownership: Ownership, settings: Mapping[str, Any], place: BackendPlace) -> Backend:
    """The backend of one run.

    Args:
        name: the backend's name, as the plan has it.
        ownership: the marks of the run.
        settings: `settings` of the plan: what was chosen at launch.
        place: where this process is.

    Raises:
        UnsatisfiableError: there is no such backend, or what it needs is not installed here.
    """
    backend: Backend = _module(provider_of(name)).open_backend(ownership, settings, place)
    return backend


def open_surveyor(name: str, settings: Mapping[str, Any], place: BackendPlace) -> Surveyor:
    """What an audit asks about everything of ours at that provider; raises as `open_backend` does."""
    surveyor: Surveyor = _module(provider_of(name)).open_surveyor(settings, place)
    return surveyor


def _module(provider: Provider) -> ModuleType:
    if provider.needs is not None and not _is_installed(provider.needs):
        raise UnsatisfiableError(
            f"the backend {provider.name} needs the package `{provider.needs}`, which is not installed for this Python",
            remedy=f"pip install -c constraints.txt -e '.[{provider.extra}]', in the checkout",
        )
    try:
        return importlib.import_module(provider.module)
    except ModuleNotFoundError as error:
        if error.name != provider.module:
            raise
        raise UnsatisfiableError(
            f"this installation has no backend {provider.name}: {provider.module} is not there",
            remedy="install orchestrate anew, from its wheel or a whole checkout",
        ) from error


def _is_installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    # A folder without `__init__.py` (this repository's own `sky/`) is found as well, but has no origin.
    return spec is not None and spec.origin is not None
