"""`orchestrate calibrate`: from measured cells to a cost table that others can reproduce bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from orchestrate import __version__
from orchestrate.analysis.admission import admission
from orchestrate.analysis.certificate import CertificateInputs, Shipped, certificate_bytes, make_certificate
from orchestrate.analysis.check import check_certificate
from orchestrate.analysis.cost_table import TABLES_DIR, CostTable, cost_table_as_json, is_table_id, read_cost_table
from orchestrate.analysis.cost_terms import TERMS
from orchestrate.analysis.equivalence import collinear_terms, compare_tables
from orchestrate.analysis.fit import fit_table
from orchestrate.analysis.intervals import resample
from orchestrate.analysis.metrics import metrics
from orchestrate.analysis.study import Study
from orchestrate.commands.calibration_input import Given, input_options, read_study
from orchestrate.commands.output import write_output
from orchestrate.errors import UsageError
from orchestrate.report.certificate_page import certificate_page
from orchestrate.verdict import Verdict

__all__ = ["command"]

_SEED = 1
_MAX_CERTIFICATE_BYTES = 512 << 20

_table_id = click.option(
    "--table-id", metavar="ID", help="The table's name [default: from what was measured, or of the shipped table]."
)
_shipped = click.option(
    "--shipped",
    metavar="FILE|ID|none",
    help="The table in use, to compare a refit with [default: the shipped table of this device, dtype and size].",
)


@click.group(no_args_is_help=True)
def command() -> None:
    """Fit a cost table to measured cells, certify it, check a certificate.

    \b
    Example:
      orchestrate calibrate fit --cells cells.jsonl --holdout 'cp4|g4'
      orchestrate calibrate certify --run RUN_DIR -o certificate.json --page certificate.html
      orchestrate calibrate check certificate.json
    """


@command.command("fit")
@input_options
@_table_id
@_shipped
def fit_command(*, table_id: str | None, shipped: str | None, as_json: bool, **given: Any) -> int:
    """Fit the cost table and say what it does on all, held-out and training cells.

    The same input gives the same table on every machine. Exit code 0: fitted; 2: an input or option is wrong;
    4: not enough evidence, with every gap named.

    \b
    Example:
      orchestrate calibrate fit --cells cells.jsonl --holdout 'cp4|g4' --json
      orchestrate calibrate fit --evidence run/evidence --manifest manifest.json
    """
    study = read_study(**given).study
    beside = _shipped_table(shipped, study)
    fit = fit_table(study.training)
    parts = {"all": study.cells, "held_out": study.held_out, "train": study.training}
    answer: dict[str, Any] = {
        "table_id": _named(table_id, study, beside),
        "fit_arguments": {
            "terms": list(TERMS),
            "objective": "regret",
            "holdout": list(study.selection.holdout),
            "exclude_cells": list(study.selection.exclude),
            "require_complete": study.selection.repeat,
        },
        "exclusions": [
            {"key": each.key, "reason": each.reason, "in_input": each.in_input} for each in study.exclusions
        ],
        "integer_table_milli_us": dict(fit.table),
        "integer_table_sha256": fit.sha256,
        "measured_envelope": admission(study.cells),
        "metrics": {name: metrics(cells, fit.table).as_json() for name, cells in parts.items()},
        "tie_band": {name: metrics(cells, fit.table).banded_as_json() for name, cells in parts.items()},
        "loss": fit.search.loss,
        "start_loss": fit.search.start_loss,
        "collinearity": collinear_terms(study.training),
        "comparison": None,
    }
    if beside is not None:
        answer["comparison"] = compare_tables(study.cells, beside.table, fit.table, resample(study.cells, seed=_SEED))
    if as_json:
        click.echo(json.dumps(answer, sort_keys=True))
    else:
        click.echo("\n".join(_fit_lines(answer)))
    return 0


@command.command("certify")
@input_options
@_table_id
@_shipped
@click.option("--accept", is_flag=True, help="Permit a measurably better refit to replace the shipped table.")
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Where the certificate goes.")
@click.option(
    "--table-file", type=click.Path(dir_okay=False, path_type=Path), help="Where the admitted table goes (harness)."
)
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Where a page with pictures goes.")
def certify_command(
    *,
    table_id: str | None,
    shipped: str | None,
    accept: bool,
    output: Path | None,
    table_file: Path | None,
    page: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Fit, judge by the gates, and write a certificate that anyone can recompute.

    Exit code 0: certified; 1: a gate does not hold (the certificate says which); 2: an input or option is wrong;
    4: not enough evidence, with every gap named.

    \b
    Example:
      orchestrate calibrate certify --cells cells.jsonl --holdout 'cp4|g4' -o certificate.json
      orchestrate calibrate certify --run RUN_DIR -o certificate.json --page certificate.html --json
    """
    read = read_study(**given)
    beside = _shipped_table(shipped, read.study)
    certificate = make_certificate(_inputs(read, beside, table_id=table_id, accept=accept))
    if output is not None:
        write_output(output, certificate_bytes(certificate))
    if page is not None:
        write_output(page, certificate_page(certificate).encode())
    if table_file is not None:
        if certificate["admitted"] is None:
            click.echo(f"note: no table is admitted, {table_file} is not written", err=True)
        else:
            write_output(table_file, json.dumps(cost_table_as_json(certificate), indent=2).encode() + b"\n")
    if as_json:
        click.echo(json.dumps(_summary(certificate, output), sort_keys=True))
    else:
        click.echo("\n".join(_certificate_lines(certificate)))
    return 0 if certificate["verdict"] == "certified" else Verdict.FAILED.exit_code


@command.command("check")
@click.argument("certificate", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--expect-sha256", metavar="SHA", help="The digest that the certificate must have.")
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Where a page with pictures goes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_command(certificate: Path, expect_sha256: str | None, page: Path | None, *, as_json: bool) -> int:
    """Recompute a certificate from what it says it was made from, offline: exit 0 when it holds, 1 when not.

    The table, metrics, intervals, gates and the verdict are made again and compared byte for byte. That a certificate
    holds does not mean that its gates do: the verdict is printed beside.

    \b
    Example:
      orchestrate calibrate check certificate.json --expect-sha256 SHA
    """
    if certificate.stat().st_size > _MAX_CERTIFICATE_BYTES:
        raise UsageError(f"{certificate} is larger than any certificate", remedy="name a certificate")
    checked = check_certificate(certificate.read_bytes(), expect_sha256=expect_sha256)
    said = checked.certificate or {}
    if page is not None and checked.holds:
        write_output(page, certificate_page(said).encode())
    if as_json:
        answer = {
            "holds": checked.holds,
            "problems": list(checked.problems),
            "sha256": checked.sha256,
            "verdict": said.get("verdict"),
            "table_id": said.get("table_id"),
            "integer_table_sha256": said.get("integer_table_sha256"),
            "does_not_prove": said.get("does_not_prove", []),
        }
        click.echo(json.dumps(answer, sort_keys=True))
    else:
        click.echo("\n".join([f"problem: {problem}" for problem in checked.problems] or _certificate_lines(said)))
        click.echo("the certificate holds" if checked.holds else "the certificate does not hold")
    return 0 if checked.holds else Verdict.FAILED.exit_code


def _inputs(read: Given, beside: CostTable | None, *, table_id: str | None, accept: bool) -> CertificateInputs:
    return CertificateInputs(
        study=read.study,
        table_id=_named(table_id, read.study, beside),
        files=read.files,
        receipts=read.receipts,
        manifest_sha256=read.manifest_sha256,
        shipped=None if beside is None else Shipped(beside.table_id, beside.table),
        accept=accept,
        seed=_SEED,
        version=__version__,
    )


def _shipped_table(shipped: str | None, study: Study) -> CostTable | None:
    """The table to compare with: the named one, or the shipped one that is admitted for what was measured."""
    if shipped == "none":
        return None
    tables = [read_cost_table(path) for path in sorted(TABLES_DIR.glob("*.json"))]
    if shipped is not None:
        named = [table for table in tables if table.table_id == shipped]
        if named:
            return named[0]
        path = Path(shipped)
        if not path.is_file():
            known = ", ".join(table.table_id for table in tables) or "none"
            raise UsageError(f"no table {shipped!r}", remedy=f"name a file or a shipped table ({known})")
        return read_cost_table(path)
    envelope = admission(study.cells)
    if envelope is None:
        return None
    names = ("device_names", "hidden_sizes", "param_dtypes")
    covering = (
        table for table in tables if all(set(envelope[name]) <= set(table.envelope.get(name, ())) for name in names)
    )
    return next(covering, None)


def _named(table_id: str | None, study: Study, beside: CostTable | None) -> str:
    if table_id is not None:
        if not is_table_id(table_id):
            raise UsageError(f"not a table id: {table_id!r}", remedy="use letters, digits, dots and dashes")
        return table_id
    if beside is not None:
        return beside.table_id
    execution = study.cells[0].execution
    if execution is None:
        return "unnamed"
    words = f"{execution.device}-h{execution.hidden}-{execution.dtype.removeprefix('torch.')}".lower()
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in words).strip("-")


def _summary(certificate: Mapping[str, Any], output: Path | None) -> dict[str, Any]:
    names = (
        "verdict", "table_id", "sha256", "integer_table_milli_us", "integer_table_sha256", "table_source",
        "table_source_reason", "fit_arguments", "metrics", "tie_band", "intervals", "gates", "blocks", "ablations",
        "collinearity", "comparison", "production", "admitted", "exclusions", "receipts", "does_not_prove",
    )  # fmt: skip
    return {name: certificate[name] for name in names} | {"certificate": None if output is None else str(output)}


def _fit_lines(answer: Mapping[str, Any]) -> Iterable[str]:
    yield from _table_lines(answer)
    yield from _metric_lines(answer["metrics"])
    yield from _collinear_lines(answer["collinearity"])
    yield from _comparison_lines(answer["comparison"])


def _certificate_lines(certificate: Mapping[str, Any]) -> Sequence[str]:
    lines = [f"{certificate['verdict'].upper()}  {certificate['sha256']}", *_table_lines(certificate)]
    lines += [f"  from the {certificate['table_source']}: {certificate['table_source_reason']}"]
    lines += _metric_lines(certificate["metrics"])
    lines += _gate_lines(certificate)
    lines += _collinear_lines(certificate["collinearity"])
    lines += _comparison_lines(certificate["comparison"])
    if certificate["production"] is not None:
        production = certificate["production"]
        fitted_pct = production["fitted"]["max_regret_pct"]
        lines.append(
            f"production regret: median {production['median_regret_pct']:.3f}%, "
            f"most {production['max_regret_pct']:.3f}%; the table on the same cells: most {fitted_pct:.3f}%"
        )
    admitted = certificate["admitted"]
    lines.append(f"admitted: {'nowhere' if admitted is None else json.dumps(admitted, sort_keys=True)}")
    return [*lines, "does not prove:", *(f"  - {limit}" for limit in certificate["does_not_prove"])]


def _table_lines(answer: Mapping[str, Any]) -> Iterable[str]:
    yield f"table {answer['table_id']}  sha256 {answer['integer_table_sha256']}  (thousandths of a us)"
    for term, value in answer["integer_table_milli_us"].items():
        yield f"  {term:<28}{value:>12}"


def _metric_lines(blocks: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    for name, block in blocks.items():
        accuracy = block["pairwise_accuracy"]
        order = "no ordered pair" if accuracy is None else f"order {accuracy:.4%} of {block['ordered_pairs']} pairs"
        regret = ", ".join(
            f"{word} {block[key]:.3f}%"
            for word, key in (("median", "median_regret_pct"), ("p95", "p95_regret_pct"), ("max", "max_regret_pct"))
        )
        yield f"{name}: {block['cells']} cells, {order}; regret {regret}; {len(block['clear_misses'])} clear misses"


def _gate_lines(certificate: Mapping[str, Any]) -> Iterable[str]:
    for gate in certificate["gates"]:
        yield f"gate {gate['name']}: {_figure(gate['measured'])} against {gate['limit']}: {_held(gate['holds'])}"
    for block in certificate["blocks"]:
        missed = [gate["name"] for gate in block["gates"] if not gate["holds"]]
        yield f"block {block['by']} {block['name']} ({block['basis']}): {'holds' if not missed else ', '.join(missed)}"


def _collinear_lines(collinearity: Mapping[str, Any]) -> Iterable[str]:
    if collinearity["collinear"]:
        yield f"hardly told apart by this data: {', '.join(collinearity['collinear'])}"
    if collinearity["absent"]:
        yield f"never vary in this data: {', '.join(collinearity['absent'])}"


def _comparison_lines(comparison: Mapping[str, Any] | None) -> Iterable[str]:
    if comparison is None:
        return
    measurable = "measurably" if comparison["measurable"] else "not measurably"
    yield (
        f"beside the shipped table {comparison['shipped_sha256'][:12]} the refit is {comparison['standing']}"
        f" ({measurable}), {len(comparison['cells_that_differ'])} cells select another layout"
    )


def _figure(value: float | None) -> str:
    return "nothing measured" if value is None else f"{value:.6g}"


def _held(holds: bool) -> str:
    return "holds" if holds else "does not hold"
