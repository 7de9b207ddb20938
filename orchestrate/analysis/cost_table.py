"""Cost table files: what the harness reads to pick `automatic` (schema `harness.cost-table/1`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrate.analysis.cost_terms import TERMS
from orchestrate.analysis.fit import table_sha256
from orchestrate.cells.cell_set import SETS_DIR
from orchestrate.cells.documents import Place, read_json
from orchestrate.receipts.canonical import MAX_SAFE_INTEGER

__all__ = ["COST_TABLE_SCHEMA", "TABLES_DIR", "CostTable", "cost_table_as_json", "is_table_id", "read_cost_table"]

COST_TABLE_SCHEMA = "harness.cost-table/1"
TABLES_DIR = SETS_DIR.parent / "tables"
"""Where the harness keeps the admitted tables."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """An admitted table and the envelope that it is admitted in."""

    table_id: str
    table: Mapping[str, int]
    envelope: Mapping[str, Any]


def cost_table_as_json(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """The table file of a certificate that admits its table."""
    return {
        "schema": COST_TABLE_SCHEMA,
        "table_id": certificate["table_id"],
        "certificate_sha256": certificate["sha256"],
        "envelope": certificate["admitted"],
        "milli_us": certificate["integer_table_milli_us"],
        "sha256": certificate["integer_table_sha256"],
    }


def read_cost_table(path: Path) -> CostTable:
    """The table in `path`.

    Raises:
        UsageError: the file is damaged, or its coefficients are not those of its digest.
    """
    document = read_json(path)
    fields = document.fields(("schema", "table_id", "certificate_sha256", "envelope", "milli_us", "sha256"))
    fields["schema"].schema(COST_TABLE_SCHEMA)
    table = {name: _coefficient(place) for name, place in fields["milli_us"].fields(TERMS).items()}
    if fields["sha256"].text() != table_sha256(table):
        raise fields["sha256"].error(f"the coefficients have the digest {table_sha256(table)}")
    envelope = {name: place.value for name, place in fields["envelope"].members().items()}
    table_id = fields["table_id"].text()
    if not is_table_id(table_id):
        raise fields["table_id"].error("must be letters, digits, dots, dashes and underscores")
    return CostTable(table_id, table, envelope)


def is_table_id(name: str) -> bool:
    """Whether `name` can name a table: at most 200 ASCII letters, digits, dots, dashes and underscores."""
    return re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name, re.ASCII) is not None


def _coefficient(place: Place) -> int:
    if not isinstance(place.value, int) or isinstance(place.value, bool) or place.value < 0:
        raise place.error("must be a whole number that is not negative")
    if place.value > MAX_SAFE_INTEGER:
        raise place.error(f"must be at most {MAX_SAFE_INTEGER}: no reader keeps more digits")
    return place.value
