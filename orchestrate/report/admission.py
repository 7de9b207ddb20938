"""What memory admission did in a cell, for its page: the account of releases, and each release that was needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrate.report.words import byte_size

__all__ = ["Account", "ReleaseRow", "account", "release_rows"]


@dataclass(frozen=True, slots=True)
class Account:
    """Release cost beside forward work, in words; sums over all ranks."""

    forward: str
    warm_share: str
    releases: str
    cost: str
    overhead: str
    overhead_without_warm: str


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """One release that was needed: who asked, what came of it, and what admission did next."""

    call: str
    asked: str
    made: str
    free: str
    came_back: str
    took: str
    budget: str
    then: str


def account(ledger: Mapping[str, Any]) -> Account | None:
    """The account of a cell's end row; None where it has none."""
    if not ledger:
        return None
    return Account(
        forward=_milliseconds(ledger.get("forward_ms")),
        warm_share=_percent(ledger.get("warm_share")),
        releases=_whole(ledger.get("releases")),
        cost=_milliseconds(ledger.get("release_ms")),
        overhead=_percent(ledger.get("overhead")),
        overhead_without_warm=_percent(ledger.get("overhead_without_warm")),
    )


def release_rows(releases: Sequence[Mapping[str, Any]]) -> tuple[ReleaseRow, ...]:
    """A row for each of `releases`, as evidence has them; whatever they hold becomes text."""
    return tuple(_row(release) for release in releases)


def _row(release: Mapping[str, Any]) -> ReleaseRow:
    before, after = _object(release.get("budget_before")), _object(release.get("budget_after"))
    then = _object(release.get("then"))
    denied = release.get("denied")
    return ReleaseRow(
        call=_whole(release.get("call")),
        asked=", ".join(_whole(rank) for rank in _numbers(release.get("asked"))) or "-",
        made="made" if denied is None else f"denied ({str(denied)[:40]})",
        free=f"{_bytes(release.get('free_before_bytes'))} → {_bytes(release.get('free_after_bytes'))}",
        came_back=_bytes(release.get("came_back_bytes")),
        took=_milliseconds(sum(_numbers(release.get("elapsed_ms")))),
        budget=(
            f"{_milliseconds(before.get('release_ms'))} → {_milliseconds(after.get('release_ms'))} "
            f"of {_milliseconds(after.get('budget_ms'))}"
        ),
        then=str(then.get("action", "-"))[:40],
    )


def _bytes(counts: object) -> str:
    numbers = [number for number in _numbers(counts) if isinstance(number, int)]
    return byte_size(sum(numbers)) if numbers else "-"


def _numbers(value: object) -> list[int | float]:
    return [each for each in value if _is_number(each)] if isinstance(value, list) else []


def _milliseconds(value: object) -> str:
    return f"{value:,.1f} ms" if _is_number(value) else "-"


def _percent(value: object) -> str:
    return f"{100 * value:.2f} %" if isinstance(value, int | float) and _is_number(value) else "-"


def _whole(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else "-"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
