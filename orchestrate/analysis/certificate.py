"""The certificate: a table, everything that it follows from, and everything that follows from it, in canonical bytes.

A certificate is a pure function of its inputs, and holds them: whoever has the file can make it again and compare.
`sha256` is the digest of all the rest, so that no member can be edited alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrate.analysis.ablation import ablations
from orchestrate.analysis.admission import admission
from orchestrate.analysis.cell_aggregates import cell_from_json, cell_to_json
from orchestrate.analysis.cost_terms import TERMS
from orchestrate.analysis.equivalence import collinear_terms, compare_tables
from orchestrate.analysis.fit import Fit, fit_table, table_sha256
from orchestrate.analysis.gates import blocks, gates
from orchestrate.analysis.intervals import Resampled, intervals, resample
from orchestrate.analysis.limits import does_not_prove
from orchestrate.analysis.metrics import Metrics, metrics
from orchestrate.analysis.noise import TIE_BAND_Z
from orchestrate.analysis.production import production_regret
from orchestrate.analysis.study import Exclusion, Selection, Study
from orchestrate.receipts.canonical import canonical_bytes, sha256_hex

__all__ = ["CERTIFICATE_SCHEMA", "CertificateInputs", "Shipped", "certificate_bytes", "inputs_of", "make_certificate"]

CERTIFICATE_SCHEMA = "orchestrate.certificate/1"
_OBJECTIVE = "regret"


@dataclass(frozen=True, slots=True)
class Shipped:
    """The table in use before this certificate."""

    table_id: str
    table: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CertificateInputs:
    """All that a certificate is made from.

    `files` are the evidence files (name, kind, SHA-256), `receipts` what links them to the runs that measured them,
    `manifest_sha256` is None where no manifest said what to expect. `accept` permits a swap of the shipped table.
    """

    study: Study
    table_id: str
    files: tuple[Mapping[str, Any], ...]
    receipts: tuple[Mapping[str, Any], ...] = ()
    manifest_sha256: str | None = None
    shipped: Shipped | None = None
    accept: bool = False
    seed: int = 1
    version: str = ""


def make_certificate(inputs: CertificateInputs) -> dict[str, Any]:
    """The certificate of `inputs`, whatever its gates say."""
    study = inputs.study
    fit = fit_table(study.training)
    resampled = resample(study.cells, seed=inputs.seed)
    comparison = None
    if inputs.shipped is not None:
        comparison = compare_tables(study.cells, inputs.shipped.table, fit.table, resampled)
    source, reason = _choose(inputs, comparison)
    table = fit.table if source == "fit" or inputs.shipped is None else inputs.shipped.table
    certificate = _arguments(inputs) | {
        "fit": _fit_as_json(fit),
        "collinearity": collinear_terms(study.training),
        "shipped": None if inputs.shipped is None else _shipped_as_json(inputs.shipped),
        "comparison": comparison,
        "table_source": source,
        "table_source_reason": reason,
        "integer_table_milli_us": {term: table[term] for term in TERMS},
        "integer_table_sha256": table_sha256(table),
    }
    certificate |= _judgement(study, table, resampled)
    certificate["does_not_prove"] = does_not_prove(certificate)
    certificate["sha256"] = sha256_hex(canonical_bytes(certificate))
    return certificate


def certificate_bytes(certificate: Mapping[str, Any]) -> bytes:
    """The one spelling of a certificate."""
    return canonical_bytes(certificate)


def inputs_of(certificate: Mapping[str, Any]) -> CertificateInputs:
    """What a certificate that holds its schema says that it was made from."""
    arguments, shipped = certificate["fit_arguments"], certificate["shipped"]
    expected = certificate["expected_sets"]
    exclusions = tuple(Exclusion(item["key"], item["reason"], item["in_input"]) for item in certificate["exclusions"])
    study = Study(
        cells=tuple(cell_from_json(item) for item in certificate["cells"]),
        selection=Selection(
            holdout=tuple(arguments["holdout"]),
            exclude=tuple(exclusion.key for exclusion in exclusions),
            repeat=arguments["require_complete"],
            expected_sets=None if expected is None else tuple(expected),
        ),
        exclusions=exclusions,
        expected_sets=None if expected is None else tuple(expected),
    )
    return CertificateInputs(
        study=study,
        table_id=certificate["table_id"],
        files=tuple(certificate["evidence_files"]),
        receipts=tuple(certificate["receipts"]),
        manifest_sha256=certificate["manifest_sha256"],
        shipped=None if shipped is None else Shipped(shipped["table_id"], shipped["integer_table_milli_us"]),
        accept=arguments["accept"],
        seed=arguments["seed"],
        version=certificate["made_by"]["version"],
    )


def _arguments(inputs: CertificateInputs) -> dict[str, Any]:
    study = inputs.study
    cells = [cell_to_json(cell) for cell in study.cells]
    prints = {
        cell.execution.fingerprint for cell in study.cells if cell.execution is not None and cell.execution.fingerprint
    }
    return {
        "schema": CERTIFICATE_SCHEMA,
        "made_by": {"name": "orchestrate", "version": inputs.version},
        "table_id": inputs.table_id,
        "fit_arguments": {
            "terms": list(TERMS),
            "objective": _OBJECTIVE,
            "holdout": list(study.selection.holdout),
            "exclude_cells": list(study.selection.exclude),
            "require_complete": study.selection.repeat,
            "accept": inputs.accept,
            "seed": inputs.seed,
        },
        "manifest_sha256": inputs.manifest_sha256,
        "expected_sets": None if study.expected_sets is None else list(study.expected_sets),
        "exclusions": [
            {"key": each.key, "reason": each.reason, "in_input": each.in_input} for each in study.exclusions
        ],
        "evidence_files": [dict(item) for item in inputs.files],
        "receipts": [dict(item) for item in inputs.receipts],
        "fingerprints": sorted(prints),
        "schedules": sorted({cell.schedule for cell in study.cells}),
        "cells": cells,
        "cells_sha256": sha256_hex(canonical_bytes(cells)),
    }


def _choose(inputs: CertificateInputs, comparison: Mapping[str, Any] | None) -> tuple[str, str]:
    """Which table is certified: the fitted one, or the shipped one that it does not measurably beat."""
    if comparison is None:
        return "fit", "there is no shipped table to keep"
    standing = comparison["standing"]
    if standing == "identical":
        return "shipped", "the refit is the shipped table"
    if not (standing == "better" and comparison["measurable"]):
        return "shipped", f"the refit is {standing}, with no measurable gain: the shipped table stays"
    if not inputs.accept:
        return "shipped", "the refit is measurably better, and stays out until --accept"
    return "fit", "the refit is measurably better, and was accepted"


def _fit_as_json(fit: Fit) -> dict[str, Any]:
    return {
        "integer_table_milli_us": dict(fit.table),
        "integer_table_sha256": fit.sha256,
        "start_us": list(fit.start),
        "coefficients_us": list(fit.search.coefficients),
        "start_loss": fit.search.start_loss,
        "loss": fit.search.loss,
        "run": fit.search.run,
        "sweeps": fit.search.sweeps,
    }


def _shipped_as_json(shipped: Shipped) -> dict[str, Any]:
    return {
        "table_id": shipped.table_id,
        "integer_table_milli_us": {term: shipped.table[term] for term in TERMS},
        "integer_table_sha256": table_sha256(shipped.table),
    }


def _judgement(study: Study, table: Mapping[str, int], resampled: Resampled) -> dict[str, Any]:
    parts = {"all": study.cells, "held_out": study.held_out, "train": study.training}
    found: dict[str, Metrics] = {name: metrics(cells, table) for name, cells in parts.items()}
    gated, by_block = gates(found["held_out"]), blocks(study, table)
    certified = all(gate.holds for gate in gated) and all(block.holds for block in by_block)
    return {
        "metrics": {name: result.as_json() for name, result in found.items()},
        "tie_band": {
            "z": TIE_BAND_Z,
            "metrics": {name: result.banded_as_json() for name, result in found.items()},
        },
        "intervals": {name: intervals(cells, table, resampled) for name, cells in parts.items()},
        "gates": [gate.as_json() for gate in gated],
        "blocks": [block.as_json() for block in by_block],
        "selections": [
            {"cell": result.key, "selected": result.selected, "best": result.best, "regret_pct": result.regret_pct}
            for result in found["all"].results
        ],
        "ablations": ablations(study),
        "production": production_regret(study.cells, table),
        "verdict": "certified" if certified else "gates-failed",
        "admitted": admission(study.cells) if certified else None,
    }
