"""Time as it is written to the wire: UTC, RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["from_wire", "to_wire", "utc_now"]


def utc_now() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


def to_wire(at: datetime) -> str:
    """A time as RFC 3339 in UTC with milliseconds, e.g. `2026-01-01T00:00:00.000Z`."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_wire(text: str) -> datetime:
    """The time that `to_wire` wrote; `ValueError` for anything without a UTC offset."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return at.astimezone(UTC)
