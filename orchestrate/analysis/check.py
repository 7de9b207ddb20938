"""The check of a certificate: make it again from what it says it was made from, and compare every byte."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from orchestrate.analysis.cell_aggregates import cell_from_json
from orchestrate.analysis.certificate import CERTIFICATE_SCHEMA, certificate_bytes, inputs_of, make_certificate
from orchestrate.analysis.measured import spread_pct
from orchestrate.analysis.reduced_cells import InputCell, InvalidFieldError, parse_candidates, parse_facts
from orchestrate.analysis.study import make_study
from orchestrate.errors import OrchestrateError, ReceiptError
from orchestrate.receipts.canonical import canonical_bytes, parse_canonical, sha256_hex

__all__ = ["Checked", "check_certificate", "schema_problems"]

_MOST_DIFFERENCES = 20


@dataclass(frozen=True, slots=True)
class Checked:
    """The answer of a check: it holds exactly when there are no problems."""

    problems: tuple[str, ...]
    certificate: Mapping[str, Any] | None
    sha256: str | None

    @property
    def holds(self) -> bool:
        """Whether the certificate is what follows from its inputs, byte for byte."""
        return not self.problems


def check_certificate(data: bytes, *, expect_sha256: str | None = None) -> Checked:
    """Recompute the certificate in `data`, offline. `expect_sha256` is the digest that it must have."""
    try:
        certificate = parse_canonical(data, what="the certificate")
    except ReceiptError as error:
        return Checked((error.cause,), None, None)
    problems = schema_problems(certificate)
    if problems:
        return Checked(tuple(problems), None, None)
    problems = [*_digest_problems(certificate, expect_sha256), *_cell_problems(certificate)]
    if not problems:
        problems = _recomputed(certificate, data)
    return Checked(tuple(problems), certificate, certificate["sha256"])


def schema_problems(certificate: object) -> list[str]:
    """Where a document is not a certificate of this schema."""
    import jsonschema  # noqa: PLC0415  # a tenth of a second that no other part of the analysis needs

    if not isinstance(certificate, dict) or certificate.get("schema") != CERTIFICATE_SCHEMA:
        return [f"this is not a certificate of schema {CERTIFICATE_SCHEMA}"]
    found = jsonschema.Draft202012Validator(_schema()).iter_errors(certificate)
    return [f"{error.json_path}: {error.message[:200]}" for error in list(found)[:_MOST_DIFFERENCES]]


@cache
def _schema() -> dict[str, Any]:
    text = resources.files("orchestrate.analysis").joinpath("schemas", "certificate-1.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _digest_problems(certificate: Mapping[str, Any], expect_sha256: str | None) -> Iterator[str]:
    rest = {name: value for name, value in certificate.items() if name != "sha256"}
    found = sha256_hex(canonical_bytes(rest))
    if certificate["sha256"] != found:
        yield f"sha256 says {certificate['sha256'][:16]}, the content has {found[:16]}: it was edited"
    if expect_sha256 is not None and certificate["sha256"] != expect_sha256.lower():
        yield f"the certificate is {certificate['sha256'][:16]}, not the expected {expect_sha256[:16]}"


def _cell_problems(certificate: Mapping[str, Any]) -> Iterator[str]:
    """Cells that reading would have refused can not have been certified."""
    inputs: list[InputCell] = []
    for number, item in enumerate(certificate["cells"]):
        place = f"cells[{number}]"
        rows = [
            [
                *(row[name] for name in ("label", "max_depth", "packed_tokens", "segment_count", "segments_below")),
                *(row[name] for name in ("median_ms", "rounds", "spread_pct")),
            ]
            for row in item["candidates"]
        ]
        candidates, wrong = parse_candidates(rows)
        yield from (f"{place} {what}" for what in wrong)
        yield from (f"{place} {what}" for what in _sample_problems(item["candidates"]))
        if not wrong and [each.label for each in candidates] != [row["label"] for row in item["candidates"]]:
            yield f"{place} does not have its candidates in label order"
        try:
            parse_facts(item["facts"], item["cell"])
        except InvalidFieldError as error:
            yield f"{place} {error}"
        inputs.append(InputCell(cell_from_json(item), place))
    reasons = {item["key"]: item["reason"] for item in certificate["exclusions"]}
    try:
        make_study(inputs, inputs_of(certificate).study.selection, manifest=None, reasons=reasons)
    except OrchestrateError as error:
        yield error.cause


def _sample_problems(candidates: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Medians, counts and spreads follow from the rounds, where the rounds are there."""
    for item in candidates:
        samples_ms = item["samples_ms"]
        if samples_ms is None:
            continue
        median_ms = statistics.median(samples_ms)
        follows = {
            "median_ms": median_ms,
            "rounds": len(samples_ms),
            "spread_pct": spread_pct(samples_ms, median_ms),
        }
        for name, value in follows.items():
            if item[name] != value:
                yield f"{item['label']!r}: {name} is {item[name]}, its rounds give {value}"


def _recomputed(certificate: Mapping[str, Any], data: bytes) -> list[str]:
    again = make_certificate(inputs_of(certificate))
    if certificate_bytes(again) == data:
        return []
    return list(_differences(certificate, again, "$"))[:_MOST_DIFFERENCES] or ["the recomputed bytes differ"]


def _differences(said: Any, again: Any, place: str) -> Iterator[str]:
    if isinstance(said, dict) and isinstance(again, dict):
        for name in sorted({*said, *again}):
            if name not in said or name not in again:
                yield f"{place}.{name} is in only one of the certificate and its recomputation"
            else:
                yield from _differences(said[name], again[name], f"{place}.{name}")
    elif isinstance(said, list) and isinstance(again, list | tuple) and len(said) == len(again):
        for index, (one, other) in enumerate(zip(said, again, strict=True)):
            yield from _differences(one, other, f"{place}[{index}]")
    elif canonical_bytes(said) != canonical_bytes(again):
        yield f"{place} says {str(said)[:80]}, recomputed {str(again)[:80]}"
