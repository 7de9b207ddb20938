"""What `calibrate fit` and `calibrate certify` are given: the options, and the study that they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from orchestrate.analysis.evidence_rows import read_evidence
from orchestrate.analysis.gaps import Gap
from orchestrate.analysis.measured import Execution
from orchestrate.analysis.reduced_cells import InputCell, read_reduced_cells
from orchestrate.analysis.study import DEFAULT_REPEAT, Selection, Study, make_study
from orchestrate.cells.cell import slug
from orchestrate.cells.manifest import load_manifest
from orchestrate.commands.calibration_expected import Expectation, expectation
from orchestrate.errors import UsageError
from orchestrate.receipts.attempts import evidence_folder
from orchestrate.receipts.canonical import sha256_hex
from orchestrate.receipts.record import RunRecord, load_record
from orchestrate.receipts.statement import Stage
from orchestrate.receipts.verify import verify_record

__all__ = ["Given", "input_options", "read_study"]

_Function = TypeVar("_Function", bound=Callable[..., object])
_ROWS = "rows.jsonl"
_LONGEST_NAME = 200
_EXISTING = click.Path(exists=True, path_type=Path)
_EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Given:
    """A study, and what a certificate says about where it came from."""

    study: Study
    files: tuple[Mapping[str, Any], ...]
    receipts: tuple[Mapping[str, Any], ...]
    manifest_sha256: str | None


def input_options(function: _Function) -> _Function:
    """Add the options that name the input; the function gets them by the names that `read_study` takes."""
    for option in reversed(
        (
            click.argument("more", nargs=-1, type=_EXISTING, metavar="[FILE]..."),
            click.option(
                "--cells", multiple=True, type=_EXISTING_FILE, metavar="FILE", help="Reduced cells (JSON lines)."
            ),
            click.option(
                "--evidence",
                multiple=True,
                type=_EXISTING,
                metavar="FILE...",
                help="Evidence rows of the harness: files, or folders that hold rows.jsonl files.",
            ),
            click.option(
                "--run",
                "runs",
                multiple=True,
                type=click.Path(exists=True, file_okay=False, path_type=Path),
                metavar="DIR",
                help="The run that measured the evidence, linked by its closure. Alone it names the evidence.",
            ),
            click.option(
                "--manifest",
                type=_EXISTING_FILE,
                metavar="FILE",
                help="Which cells and candidates to expect [default: the plan of the run; for evidence the shipped "
                "manifest, where it knows the cells].",
            ),
            click.option(
                "--cell-set",
                "cell_sets",
                multiple=True,
                metavar="SET",
                help="Sets of the manifest that must be there whole [default: those that the input is of].",
            ),
            click.option(
                "--holdout",
                multiple=True,
                metavar="TEXT",
                help="Hold out the cells whose key contains this text, beside the corpus cells of odd groups.",
            ),
            click.option(
                "--exclude",
                multiple=True,
                metavar="KEY",
                help="Leave this cell out; the manifest must list it with a reason.",
            ),
            click.option(
                "--repeat",
                type=click.IntRange(min=2),
                default=DEFAULT_REPEAT,
                show_default=True,
                help="Rounds that each candidate of a reduced cell must have (evidence says its own).",
            ),
            click.option(
                "--schedule",
                type=click.Choice(["fixed", "racing"]),
                default="fixed",
                show_default=True,
                help="How evidence was measured; racing gives fewer rounds to layouts that were decided.",
            ),
            click.option("--device-name", metavar="NAME", help="What reduced cells were measured on, 'NVIDIA H200'."),
            click.option("--dtype", metavar="DTYPE", help="Their parameter type, such as torch.bfloat16."),
            click.option("--hidden", type=click.IntRange(min=1), metavar="N", help="Their hidden size."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        )
    ):
        function = option(function)
    return function


def read_study(
    *,
    cells: tuple[Path, ...],
    evidence: tuple[Path, ...],
    more: tuple[Path, ...],
    runs: tuple[Path, ...],
    manifest: Path | None,
    cell_sets: tuple[str, ...],
    holdout: tuple[str, ...],
    exclude: tuple[str, ...],
    repeat: int,
    schedule: str,
    device_name: str | None,
    dtype: str | None,
    hidden: int | None,
) -> Given:
    """Read the input that the options name.

    Raises:
        UsageError: the options name no input, or contradict each other; or an input is damaged.
        NotEnoughEvidenceError: it can not carry a fit; every gap is named.
    """
    execution = _stated_execution(device_name, dtype, hidden)
    if cells and (evidence or runs):
        raise UsageError("--cells and --evidence are two kinds of input", remedy="give one of them")
    if cells and more:
        cells = (*cells, *more)
    elif more:
        if not evidence:
            raise UsageError(f"{more[0]} is given without --evidence or --cells", remedy="say what kind of file it is")
        evidence = (*evidence, *more)
    if evidence or runs:
        if execution is not None:
            raise UsageError(
                "evidence says itself what it was measured on", remedy="leave --device-name, --dtype and --hidden out"
            )
    elif not cells:
        raise UsageError("there is no input", remedy="give --cells FILE, --evidence FILE... or --run DIR")
    records = [load_record(run) for run in runs]
    expecting = expectation(manifest, cell_sets, records, evidence=bool(evidence or runs))
    inputs, gaps, files = _read_files(
        cells, _evidence_files(evidence, records), execution, expecting, racing=schedule == "racing"
    )
    expected = expecting.of(inputs)
    receipts, wrong = _receipts(records, files)
    gaps += wrong
    selection = Selection(holdout, exclude, repeat, cell_sets or None)
    reasons = (expected or load_manifest()).exclusions if exclude else {}
    study = make_study(inputs, selection, manifest=expected, reasons=reasons, gaps=gaps)
    return Given(study, tuple(files), tuple(receipts), None if expected is None else expected.sha256)


def _stated_execution(device_name: str | None, dtype: str | None, hidden: int | None) -> Execution | None:
    if device_name is None and dtype is None and hidden is None:
        return None
    for name, text in (("--device-name", device_name), ("--dtype", dtype)):
        if text and (len(text) > _LONGEST_NAME or not text.isprintable()):
            raise UsageError(
                f"{name} {text[:40]!r} is no name", remedy=f"give at most {_LONGEST_NAME} printable characters"
            )
    if not device_name or not dtype or not hidden:
        raise UsageError(
            "a place of measurement is a device, a dtype and a hidden size",
            remedy="give all of --device-name, --dtype and --hidden, or none",
        )
    return Execution(device_name, dtype, hidden)


def _read_files(
    cells: tuple[Path, ...],
    evidence: list[Path],
    execution: Execution | None,
    expecting: Expectation,
    *,
    racing: bool,
) -> tuple[list[InputCell], list[Gap], list[dict[str, Any]]]:
    inputs: list[InputCell] = []
    gaps: list[Gap] = []
    files: list[dict[str, Any]] = []
    for kind, paths in (("cells", cells), ("evidence", evidence)):
        for path in paths:
            data = _read(path)
            name = path.name if kind == "cells" else f"{path.parent.name}/{path.name}"
            if kind == "cells":
                found, wrong = read_reduced_cells(data, str(path), execution)
            else:
                found, wrong = read_evidence(data, str(path), expecting.mandatory, racing=racing)
            inputs += found
            gaps += wrong
            files.append({"name": name, "kind": kind, "sha256": sha256_hex(data)})
    return inputs, gaps, files


def _evidence_files(evidence: tuple[Path, ...], records: Sequence[RunRecord]) -> list[Path]:
    """The files that the options name, folders by the rows below them in the order of their names.

    Of a run that was measured in several attempts, each cell's rows are those of the attempt that counts.
    """
    files: list[Path] = []
    for path in evidence or tuple(place for record in records for place in _counted(record)):
        if path.is_dir():
            below = sorted(path.rglob(_ROWS))
            if not below:
                raise UsageError(f"{path} holds no {_ROWS}", remedy="name the evidence files of the run")
            files += below
        elif path.exists():
            files.append(path)
        else:
            raise UsageError(f"{path} is not there", remedy="name a run directory with its evidence")
    return files


def _counted(record: RunRecord) -> list[Path]:
    if record.evidence_attempts in {(), (1,)}:
        return [record.run_dir / evidence_folder(1)]
    counted = sorted((slug(key), attempt) for key, attempt in record.counted.items())
    return [record.run_dir / evidence_folder(attempt) / "cells" / name / _ROWS for name, attempt in counted]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="name a file that can be read") from error


def _receipts(records: Sequence[RunRecord], files: list[dict[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Gap]]:
    """The links to the runs of `records`, whose receipts must bind every one of the evidence files."""
    links: list[Mapping[str, Any]] = []
    gaps: list[Gap] = []
    bound: set[str] = set()
    for record in records:
        place = f"--run {record.run_dir}"
        verification = verify_record(record)
        gaps += [Gap(place, f"its receipts do not hold: {problem}") for problem in verification.problems]
        collected = (receipt for receipt in record.receipts if receipt.stage is Stage.COLLECT)
        ours = {subject.sha256 for receipt in collected for subject in receipt.subjects}
        count = sum(item["sha256"] in ours for item in files)
        if not count:
            gaps.append(Gap(place, "its receipts bind none of the evidence files"))
        bound |= ours
        links.append(
            {
                "run_id": verification.run_id,
                "closure_sha256": verification.closure_sha256,
                "verdict": verification.verdict.label,
                "files_bound": count,
            }
        )
    if records:
        gaps += [
            Gap(item["name"], "no receipt of a named run binds it") for item in files if item["sha256"] not in bound
        ]
    return links, gaps
