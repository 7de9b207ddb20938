"""One thing that was found to keep a request from being granted."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrate.capacity.taxonomy import Basis, Reason

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Why there is nothing yet. `final` says that more waiting can not change it."""

    reason: Reason
    basis: Basis
    detail: str
    final: bool
