"""The progress of a run for people: a live picture on a terminal, one line an event in a pipe, nothing with `--json`.

A console that breaks (a closed terminal, a full pipe) must never take the run with it: after the first failed write
this module goes silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from orchestrate.qualify.overview import GroupRow, by_reason, first_files
from orchestrate.qualify.test_counts import Named
from orchestrate.report.words import byte_size, clean, duration
from orchestrate.verdict import Verdict

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

__all__ = ["CellLine", "ConsoleProgress", "Progress", "RunSummary", "count_words"]


@dataclass(frozen=True, slots=True)
class CellLine:
    """One cell in the final summary. `status` is the node's word, `missing` what keeps the cell from being complete."""

    key: str
    status: str
    complete: bool
    rows: int = 0
    missing: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What is said at the end of a run. `looks` are the census's times; `remaining` and `unknown` its findings.

    Where `groups` are there, they are told in place of `cells`.
    """

    run_id: str
    verdict: Verdict
    test_verdict: Verdict
    reason: str
    run_dir: Path
    closure_sha256: str | None
    device: str
    cells: Sequence[CellLine]
    teardown_confirmed: bool
    looks: Sequence[str] = ()
    remaining: Sequence[str] = ()
    unknown: Sequence[str] = ()
    groups: Sequence[GroupRow] = ()


class Progress:
    """What the life cycle tells while a run goes on. This base says nothing: it is the progress of `--json`."""

    def stage(self, name: str) -> None:
        """The run entered the stage `name`."""

    def deadline(self, at: datetime) -> None:
        """The run ends by itself at `at` (UTC)."""

    def event(self, event: Mapping[str, Any]) -> None:
        """The node wrote one line of its `node.jsonl`; fields of the wrong type must not break the display."""

    def note(self, text: str) -> None:
        """Something a person should read now."""

    def tick(self) -> None:
        """Time passed: called from the wait loop, so that the time left moves."""

    def verdict(self, summary: RunSummary) -> None:
        """The run is over."""

    def close(self) -> None:
        """Give the terminal back as it was; safe to call twice."""


@dataclass(slots=True)
class _Cell:
    status: str = "running"
    candidate: str = ""
    phase: str = ""
    round: int | None = None
    rounds: int | None = None


@dataclass(slots=True)
class _State:
    stage: str = "starting"
    deadline: datetime | None = None
    cells: dict[str, _Cell] = field(default_factory=dict)


class ConsoleProgress(Progress):
    """Progress on `stream` (standard error): live where it is a terminal, plain lines where it is a pipe.

    Args:
        stream: where to write.
        interactive: None asks the stream whether it is a terminal.
        now: the clock, for the time left.
    """

    def __init__(
        self, stream: TextIO, *, interactive: bool | None = None, now: Callable[[], datetime] | None = None
    ) -> None:
        self._stream = stream
        self._interactive = stream.isatty() if interactive is None else interactive
        self._now = now or (lambda: datetime.now(UTC))
        self._state = _State()
        self._live: Live | None = None
        self._broken = False

    def stage(self, name: str) -> None:
        """The run entered the stage `name`."""
        self._state.stage = name
        self._show(f"stage {name}{self._time_left()}")

    def deadline(self, at: datetime) -> None:
        """The run ends by itself at `at` (UTC)."""
        self._state.deadline = at
        self._show(f"deadline {at.isoformat(timespec='seconds')}{self._time_left()}")

    def event(self, event: Mapping[str, Any]) -> None:
        """Show one line of `node.jsonl`."""
        kind = clean(event.get("event", "event"))
        key = clean(event.get("cell") or "")
        if key:
            cell = self._state.cells.setdefault(key, _Cell())
            cell.candidate = clean(event.get("candidate") or cell.candidate)
            cell.phase = clean(event.get("phase") or cell.phase)
            cell.round, cell.rounds = _turn(event), _number(event.get("rounds"))
            if kind == "cell-ended":
                cell.status = clean(event.get("status", "ended"))
        self._show(self._event_line(kind, key, event))

    def note(self, text: str) -> None:
        """Print `text`; on a terminal it stays above the live picture."""
        live = self._live
        if live is None:
            self._write(f"{clean(text)}\n")
        else:
            self._guarded(lambda: live.console.print(clean(text), markup=False, highlight=False))

    def tick(self) -> None:
        """Redraw the live picture; nothing in a pipe."""
        if self._interactive:
            self._redraw()

    def verdict(self, summary: RunSummary) -> None:
        """End the live picture and print the summary block."""
        self.close()
        if self._interactive:
            self._guarded(lambda: _print_coloured(self._stream, summary))
        else:
            self._write(_plain_summary(summary))

    def close(self) -> None:
        """End the live picture and give the terminal back as it was."""
        if self._live is not None:
            live, self._live = self._live, None
            self._guarded(live.stop)

    def _event_line(self, kind: str, key: str, event: Mapping[str, Any]) -> str:
        words = [kind, key, clean(event.get("phase") or ""), clean(event.get("candidate") or "")]
        turn, of = _turn(event), _number(event.get("rounds"))
        if turn is not None:
            words.append(f"round {turn}" if of is None else f"round {turn}/{of}")
        words.append(clean(event.get("status") or ""))
        return " ".join(word for word in words if word) + self._time_left()

    def _time_left(self) -> str:
        if self._state.deadline is None:
            return ""
        return f" ({duration((self._state.deadline - self._now()).total_seconds())} left)"

    def _show(self, line: str) -> None:
        if self._interactive:
            self._redraw()
        else:
            self._write(f"{self._now().strftime('%H:%M:%SZ')} {line}\n")

    def _redraw(self) -> None:
        def redraw() -> None:
            if self._live is None:
                self._live = _start_live(self._stream)
            self._live.update(_picture(self._state, self._time_left()), refresh=True)

        self._guarded(redraw)

    def _write(self, text: str) -> None:
        def write() -> None:
            self._stream.write(text)
            self._stream.flush()

        self._guarded(write)

    def _guarded(self, write: Callable[[], object]) -> None:
        if self._broken:
            return
        try:
            write()
        except (OSError, ValueError):  # ValueError: the stream was closed, or can not say a character
            self._broken = True


def _start_live(stream: TextIO) -> Live:
    # rich costs 50 ms to import: only a person at a terminal pays it.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    # No refresh thread: the launcher forks, and a thread that holds rich's lock then would leave it locked.
    live = Live(
        console=Console(file=stream, force_terminal=True),
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    live.start()
    live.console.show_cursor(show=True)  # a launcher that is killed could not bring it back
    return live


def _picture(state: _State, time_left: str) -> Table:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=Text(f"{state.stage}{time_left}", style="bold"), title_justify="left", box=None, pad_edge=False)
    for heading in ("cell", "status", "candidate", "round"):
        table.add_column(heading, style="dim" if heading == "candidate" else "", overflow="ellipsis", no_wrap=True)
    ended = [key for key, cell in state.cells.items() if cell.status != "running"]
    if len(ended) > _ENDED_SHOWN:
        table.caption = f"{len(ended) - _ENDED_SHOWN} more ended before"
    for key, cell in state.cells.items():
        if key in ended[:-_ENDED_SHOWN]:
            continue
        running = cell.status == "running"
        turn = "" if cell.round is None else f"{cell.round}/{cell.rounds}" if cell.rounds else f"{cell.round}"
        table.add_row(
            Text(key),
            Text(cell.phase or cell.status if running else cell.status, style=_status_style(cell.status)),
            Text(cell.candidate if running else ""),
            Text(turn if running else ""),
        )
    return table


_ENDED_SHOWN = 8


def _status_style(status: str) -> str:
    return {"running": "cyan", "complete": "green"}.get(status, "red")


def _plain_summary(summary: RunSummary) -> str:
    return "".join(f"{line}\n" for line, _ in _summary_lines(summary))


def _print_coloured(stream: TextIO, summary: RunSummary) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=stream, force_terminal=True)
    for line, style in _summary_lines(summary):
        console.print(Text(line, style=style), soft_wrap=True)


def _summary_lines(summary: RunSummary) -> list[tuple[str, str]]:
    verdict, tests = summary.verdict, summary.test_verdict
    complete = sum(cell.complete for cell in summary.cells)
    what = "groups" if summary.groups else "cells"
    meaning = verdict.meaning_for_groups if summary.groups else verdict.meaning
    lines = [
        ("", ""),
        (f"{verdict.label.upper()}  {meaning}", f"bold {verdict.colour}"),
        (f"run        {summary.run_id}  ({what} said: {tests.label}, device: {clean(summary.device)})", ""),
    ]
    if summary.reason:
        lines.append((f"reason     {clean(summary.reason)}", ""))
    if summary.groups:
        lines.extend(_group_lines(summary.groups))
    else:
        lines.append((f"cells      {complete} of {len(summary.cells)} complete", ""))
    for cell in () if summary.groups else summary.cells:
        mark, style = ("ok ", "green") if cell.complete else ("-- ", "red")
        lines.append((f"  {mark} {clean(cell.key)}  {clean(cell.status)}, {cell.rows} rows", style))
        lines.extend((f"       {clean(gap)}", "") for gap in cell.missing[:5])
        if len(cell.missing) > 5:
            lines.append((f"       and {len(cell.missing) - 5} more", ""))
    lines.extend(_teardown_lines(summary))
    lines.append((f"run dir    {summary.run_dir}", ""))
    closure = summary.closure_sha256
    lines.append((f"closure    {closure or 'none: the run is not closed'}", ""))
    if closure:
        lines.append((f"check it   orchestrate verify {summary.run_id} --expect-closure {closure}", "dim"))
    return lines


def _group_lines(groups: Sequence[GroupRow]) -> list[tuple[str, str]]:
    """Each group with its counts, every skip with its reason, its processes, time and peak memory."""
    passed = sum(group.verdict is Verdict.PASSED for group in groups)
    lines = [(f"groups     {passed} of {len(groups)} passed", "")]
    before: tuple[int, Sequence[str]] = (0, ())
    for group in groups:
        good = group.verdict is Verdict.PASSED
        took = "" if group.wall_s is None else f", {duration(group.wall_s)}"
        peak = "" if group.peak_rss_bytes is None else f", peak {byte_size(group.peak_rss_bytes)}"
        words = f"{group.verdict.label}: {count_words(group)}; processes: {group.family}{took}{peak}"
        lines.append((f"  {'ok ' if good else '-- '} {clean(group.name)}  {words}", "green" if good else "red"))
        if group.reason:
            lines.append((f"       {clean(group.reason)}", ""))
        lines.extend(_test_lines("skipped", group.counts.skipped))
        lines.extend(_test_lines("retried", group.counts.retried))
        beside = (group.beside_count, group.beside)
        if group.beside_count and beside != before:  # what an earlier group left lies there after it, too
            files = clean(first_files(group.beside, group.beside_count))
            lines.append((f"       beside the source after it: {files}", "yellow"))
            before = beside
    return lines


def _test_lines(what: str, tests: Sequence[Named]) -> list[tuple[str, str]]:
    """Tests by their reason: each reason once, with how many and the first of them."""
    reasons = by_reason(tests)
    lines = []
    for reason, names in list(reasons.items())[:_REASONS_SHOWN]:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append((f"       {what}: {clean(names[0])}{more}: {clean(reason)}", "yellow"))
    if len(reasons) > _REASONS_SHOWN:
        lines.append((f"       {what} for {len(reasons) - _REASONS_SHOWN} more reasons: see the report", "yellow"))
    return lines


_REASONS_SHOWN = 50


def count_words(group: GroupRow) -> str:
    """What the tests of a group did, in words; what there is none of is left out, passes never are."""
    if not group.has_tests:
        return "no run of it is recorded" if group.tracked is None else "no tests, its exit code decides"
    counts = group.counts
    words = [f"{counts.passed} passed"]
    for number, what in (
        (len(counts.failed), "failed"),
        (len(counts.errors), "error" if len(counts.errors) == 1 else "errors"),
        (len(counts.collection_errors), "not collected"),
        (len(counts.skipped), "skipped"),
        (len(counts.xfailed), "xfailed"),
        (len(counts.xpassed), "xpassed"),
        (counts.deselected, "deselected"),
        (len(counts.retried), "retried"),
    ):
        words += [f"{number} {what}"] if number else []
    return ", ".join(words)


def _teardown_lines(summary: RunSummary) -> list[tuple[str, str]]:
    if summary.teardown_confirmed:
        looks = f" ({len(summary.looks)} looks: {', '.join(map(clean, summary.looks))})" if summary.looks else ""
        return [(f"teardown   proven: nothing of this run is left{looks}", "green")]
    lines = [("teardown   NOT proven: something of this run may still exist", "bold red")]
    lines.extend((f"  left     {clean(item)}", "red") for item in summary.remaining)
    lines.extend((f"  unknown  {clean(item)}", "yellow") for item in summary.unknown)
    lines.append((f"  next     orchestrate audit --reap --run {summary.run_id}", ""))
    return lines


def _turn(event: Mapping[str, Any]) -> int | None:
    index = _number(event.get("round"))  # the node counts from 0, people from 1
    return None if index is None else index + 1


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
