"""`orchestrate report`: a run as one self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from orchestrate.commands.output import write_output
from orchestrate.commands.run_dir import RUNS_DIR_OPTION, locate_run
from orchestrate.commands.saying import say
from orchestrate.errors import UsageError
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.receipts.record import RunRecord, load_record
from orchestrate.receipts.verify import verify_record

__all__ = ["command"]


@click.command("report")
@click.argument("run", metavar="RUN_OR_DIR")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, allow_dash=True), default=Path("report.html"), show_default=True,
    help="Where to write the page; - is standard output.",
)  # fmt: skip
@click.option(
    "--certificate", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="A certificate that this run measured: its pictures go on the page.",
)  # fmt: skip
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(run: str, output: Path, certificate: Path | None, runs_dir: Path, as_json: bool) -> int:
    """Write a run as one HTML page that needs nothing else: verdict, stages, measured times, teardown, receipts.

    It works for every run, also one that failed, was cancelled or never got a closure: what is missing is shown as
    missing. Exit code 0 says that the page was written, not that the run passed.

    \b
    Example:
      orchestrate report r20260102-030405-0a1b2c -o report.html
      orchestrate report r20260102-030405-0a1b2c --certificate certificate.json
    """
    from orchestrate.report.html import render_page  # noqa: PLC0415 - jinja2 is slow to import

    if as_json and str(output) == "-":
        raise UsageError("both the page and JSON are to go to standard output", remedy="give --output a file")
    record = load_record(locate_run(run, runs_dir))
    found = verify_record(record)
    held = None if certificate is None else _certificate_of(certificate, found.run_id)
    page = render_page(record, found, made_at=datetime.now(UTC), live=_is_live(record), certificate=held)
    if str(output) == "-":
        say(page.removesuffix("\n"))
        return 0
    write_output(output, page.encode("utf-8", errors="replace"))
    if as_json:
        said = {"report": str(output), "run_id": found.run_id, "verdict": found.verdict.label, "holds": found.holds}
        say(json.dumps(said, sort_keys=True))
    say(f"wrote {output} ({found.verdict.label}, receipts {'hold' if found.holds else 'do not hold'})", err=True)
    return 0


def _certificate_of(path: Path, run_id: str | None) -> Mapping[str, Any]:
    """The certificate in `path`, which must hold and link the run."""
    from orchestrate.analysis.check import check_certificate  # noqa: PLC0415 - numpy is slow to import

    checked = check_certificate(path.read_bytes())
    if not checked.holds or checked.certificate is None:
        raise UsageError(f"{path} does not hold: {checked.problems[0]}", remedy="run orchestrate calibrate check")
    if run_id not in {receipt["run_id"] for receipt in checked.certificate["receipts"]}:
        raise UsageError(f"{path} does not link the run {run_id}", remedy="certify with --run RUN_DIR")
    return checked.certificate


def _is_live(record: RunRecord) -> bool:
    # Asking takes the lock for a moment and would make its file: a copy without one is nobody's live run.
    return "lock" in record.files and RunDirectory(record.run_dir).has_owner()
