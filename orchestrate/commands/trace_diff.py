"""`orchestrate trace diff`: the first collective in which the ranks of a job disagree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrate.commands.run_dir import RUNS_DIR_OPTION
from orchestrate.commands.saying import say
from orchestrate.commands.trace_folder import CELL_OPTION, PREFIX_OPTION, trace_folder
from orchestrate.report.words import printable
from orchestrate.verdict import Verdict

if TYPE_CHECKING:
    from orchestrate.analysis.trace.answer import Answer

__all__ = ["command"]

_MOST_SENTENCES = 12


@click.command("diff")
@click.argument("folder", metavar="DIR_OR_RUN")
@click.option(
    "--window", type=click.IntRange(min=1024), default=65_536, show_default=True, metavar="N",
    help="Records of a rank that are held at a time: more memory, and ranks may be further apart.",
)  # fmt: skip
@CELL_OPTION
@PREFIX_OPTION
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(folder: str, window: int, cell: str | None, prefix: str | None, runs_dir: Path, as_json: bool) -> int:
    """Name the first collective in which ranks disagree: its kind, the odd rank, the layouts, and who called it.

    DIR_OR_RUN is a folder of traces (rank<r>.trace), of PyTorch flight recorder dumps (pickle or JSON), or a run.
    Nothing that such a file holds is run. Exit code 0: the ranks agree; 1: they diverge; 4: the traces do not say,
    because one was cut or is missing, and where.

    \b
    Example:
      orchestrate trace diff traces
      orchestrate trace diff r20260102-030405-0a1b2c --cell 'cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4' --json
    """
    # numpy is slow to import
    from orchestrate.analysis.trace.answer import Decision, make_answer  # noqa: PLC0415
    from orchestrate.analysis.trace.compare import compare  # noqa: PLC0415
    from orchestrate.analysis.trace.folder import open_job  # noqa: PLC0415

    job = open_job(trace_folder(folder, runs_dir, cell), prefix=prefix)
    answer = make_answer(compare(job, window=window))
    if as_json:
        say(json.dumps(answer.as_json(), sort_keys=True))
    _explain(answer, to_stderr=as_json)
    match answer.decision:
        case Decision.AGREE:
            return Verdict.PASSED.exit_code
        case Decision.DIVERGE:
            return Verdict.FAILED.exit_code
        case Decision.UNDECIDABLE:
            return Verdict.INCOMPLETE.exit_code


def _explain(answer: Answer, *, to_stderr: bool) -> None:
    colours = {"agree": "green", "diverge": "red", "undecidable": "yellow"}
    label = answer.decision.value

    def line(text: str, head: str = "") -> None:
        # What a stranger's trace holds must not steer the terminal.
        say(head + printable(text.replace("\n", " ")), err=to_stderr)

    line(answer.summary, click.style(label.upper(), fg=colours[label], bold=True) + "  ")
    if answer.first is not None:
        for sentence in answer.sentences(answer.first)[1:_MOST_SENTENCES]:
            line(f"  {sentence}")
        line("")
        for text in _side_by_side(answer):
            line(text)
    for text in _layouts(answer):
        line(text)
    if answer.further:
        line("")
        line("further, in other groups:")
        for finding in answer.further:
            line(f"  {finding.kind.value} in group {finding.group}: {answer.sentences(finding)[0]}")
    for place in answer.undecided if answer.first is not None or len(answer.undecided) > 1 else ():
        line(f"not known: {place}")
    for note in answer.compared.job.notes:
        line(f"note: {note}")


def _side_by_side(answer: Answer) -> list[str]:
    """What each rank issued there, and from where; ranks that did the same are one entry."""
    finding = answer.first
    if finding is None:
        return []
    entries: dict[tuple[str, ...], list[int]] = {}
    for rank, record in sorted(finding.records.items()):
        if record is None:
            entries.setdefault(("no such record",), []).append(rank)
            continue
        facts = answer.record_json(rank, record)
        head = facts["words"] + (f" ({facts['tag']})" if facts["tag"] else "")
        where = [f"{name} {facts[name]}" for name in ("layout", "forward", "phase") if facts[name] is not None]
        splits = [f"{name} {facts[name]}" for name in ("send_splits", "recv_splits") if facts[name] is not None]
        state = f"{facts['direction']}, {facts['state']}"
        callers = [f"at {caller}" for caller in facts["callers"][:8]]
        entries.setdefault((head, ", ".join([*where, state]), *splits, *callers), []).append(rank)
    text = []
    for lines, ranks in entries.items():
        label = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        text.append(f"  {label:12} {lines[0]}")
        text += [f"  {'':12}   {one}" for one in lines[1:]]
    return text


def _layouts(answer: Answer) -> list[str]:
    if not answer.layouts:
        return []
    ranks = sorted(answer.layouts[0].layouts)
    rows = [["forward", *(f"rank {rank}" for rank in ranks)]]
    rows += [[str(row.forward), *(row.layouts[rank] or "-" for rank in ranks)] for row in answer.layouts]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return ["", "layouts", *(f"  {one.rstrip()}" for one in lines)]
