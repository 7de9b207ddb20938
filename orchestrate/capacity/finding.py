"""One thing that was found to keep a request from being granted."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrate.capacity.taxonomy import Basis, Reason

__all__ = ["Finding", "brief"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Why there is nothing yet. `final` says that more waiting can not change it."""

    reason: Reason
    basis: Basis
    detail: str
    final: bool


def brief(text: object, limit: int = 400) -> str:
    """A provider's words on one line, cut to a sentence or two; what could steer a terminal or a page becomes `?`."""
    line = "".join(each if each.isprintable() else "?" for each in " ".join(str(text).split()))
    return line if len(line) <= limit else f"{line[: limit - 3]}..."
