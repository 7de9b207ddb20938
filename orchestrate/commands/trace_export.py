"""`orchestrate trace export`: traces in the formats of other tools."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path

import click

from orchestrate.commands.output import write_output, write_output_by
from orchestrate.commands.run_dir import RUNS_DIR_OPTION
from orchestrate.commands.saying import say
from orchestrate.commands.trace_folder import CELL_OPTION, PREFIX_OPTION, trace_folder
from orchestrate.errors import UsageError

__all__ = ["command"]

_PICKLES, _JSON, _PERFETTO = "flight-recorder", "flight-recorder-json", "perfetto"


@click.command("export")
@click.argument("folder", metavar="DIR_OR_RUN")
@click.option(
    "--to", "form", type=click.Choice([_PICKLES, _JSON, _PERFETTO]), required=True, help="The format."
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True,
    help="A folder, new or empty, for dumps; a file for perfetto.",
)  # fmt: skip
@CELL_OPTION
@PREFIX_OPTION
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    folder: str, form: str, output: Path, cell: str | None, prefix: str | None, runs_dir: Path, as_json: bool
) -> int:
    """Write traces for other tools: dumps that `torchfrtrace` analyses, or a time line for Perfetto.

    DIR_OR_RUN is what `orchestrate trace diff` takes. Dumps are written as fr_trace_<rank>, and say in fields of their
    own what the flight recorder has none for. Exit code 0 says that the export was written, not that the ranks agree.

    \b
    Example:
      orchestrate trace export traces --to flight-recorder -o dumps && torchfrtrace dumps
      orchestrate trace export traces --to perfetto -o trace.json
    """
    # numpy is slow to import
    from orchestrate.analysis.trace.answer import make_answer  # noqa: PLC0415
    from orchestrate.analysis.trace.compare import compare  # noqa: PLC0415
    from orchestrate.analysis.trace.export_flight_recorder import dumps_of  # noqa: PLC0415
    from orchestrate.analysis.trace.export_perfetto import perfetto_json  # noqa: PLC0415
    from orchestrate.analysis.trace.folder import open_job  # noqa: PLC0415

    source = trace_folder(folder, runs_dir, cell)
    written: list[Path] = []
    if form == _PERFETTO:
        job = open_job(source, prefix=prefix)
        pieces = perfetto_json(job, make_answer(compare(job)).first)
        write_output_by(output, lambda beside: _write_text(beside, pieces))
        written.append(output)
    else:
        _make_empty(output)
        for rank, dump in dumps_of(open_job(source, prefix=prefix)):
            path = output / (f"fr_trace_{rank}.json" if form == _JSON else f"fr_trace_{rank}")
            data = json.dumps(dump).encode() if form == _JSON else pickle.dumps(dump, protocol=2)
            write_output(path, data)
            written.append(path)
    if as_json:
        say(json.dumps({"format": form, "files": [str(path) for path in written]}, sort_keys=True))
    say(f"wrote {', '.join(map(str, written))}", err=True)
    return 0


def _write_text(path: Path, pieces: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for piece in pieces:
            file.write(piece)


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder} can not be written: {error.strerror}", remedy="choose another --output") from error
    if used:
        raise UsageError(f"{folder} is not empty", remedy="choose another --output: torchfrtrace reads all files in it")
