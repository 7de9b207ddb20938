"""Which layout production would pick: by an admitted cost table, and outside every table by size.

A cost table holds one integer coefficient per term; a layout's cost is the sum of coefficient times term. It is
admitted for the devices, hidden sizes and dtypes that it was measured on and for nothing else. The terms are those of
DESIGN section 12.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.documents import Place, read_json
from harness.prefix_tree import SEGMENT_LENGTH_THRESHOLDS, Features

__all__ = ["TABLES_DIR", "Automatic", "CostTable", "Facts", "automatic", "cost_terms", "load_tables"]

TABLES_DIR = Path(__file__).parent / "tables"
"""The admitted tables, one JSON file each."""

_SCHEMA = "harness.cost-table/1"
_SCALE = 1024


@dataclass(frozen=True, slots=True)
class Facts:
    """What the terms need to know of a cell."""

    tp: int
    cp: int
    layers: int
    gdn_layers: int


@dataclass(frozen=True, slots=True)
class CostTable:
    """Integer coefficients in thousandths of a microsecond, and where they may be used."""

    table_id: str
    milli_us: Mapping[str, int]
    device_names: tuple[str, ...]
    hidden_sizes: tuple[int, ...]
    param_dtypes: tuple[str, ...]

    def admits(self, device_name: str, hidden: int, dtype: str) -> bool:
        """Whether the table was measured on such a device and model; `dtype` as in `torch.bfloat16`."""
        return device_name in self.device_names and hidden in self.hidden_sizes and dtype in self.param_dtypes

    def cost(self, features: Features, facts: Facts) -> int:
        """The cost of a layout; only its order against other layouts of the same cell means anything."""
        terms = cost_terms(features, facts)
        return sum(coefficient * terms[name] for name, coefficient in self.milli_us.items())


@dataclass(frozen=True, slots=True)
class Automatic:
    """The picked layout's place in the family and the rule that picked it: a table's id, or `fewest-tokens`."""

    index: int
    rule: str


def automatic(
    family: Sequence[Features], facts: Facts, tables: Sequence[CostTable], *, device_name: str, hidden: int, dtype: str
) -> Automatic:
    """The layout of `family` that production would run; among equals the one with fewest tokens, segments, place.

    The first table that admits the cell decides. Outside every table: fewest packed tokens, then fewest segments.
    """
    table = next((each for each in tables if each.admits(device_name, hidden, dtype)), None)

    def rank(index: int) -> tuple[int, int, int, int]:
        features = family[index]
        cost = 0 if table is None else table.cost(features, facts)
        return cost, features.packed_tokens, features.segment_count, index

    return Automatic(min(range(len(family)), key=rank), "fewest-tokens" if table is None else f"table {table.table_id}")


def cost_terms(features: Features, facts: Facts) -> dict[str, int]:
    """The terms of a layout, times 1024: products first, then one floor division."""
    ranks = facts.tp * facts.cp
    packed, layers, gdn = features.packed_tokens * _SCALE, facts.layers, facts.gdn_layers
    levels = (features.max_depth - 1) * _SCALE
    return {
        "token_per_rank": packed * layers // ranks,
        "token_cp_exchange": packed * layers * (facts.cp - 1) // facts.cp,
        "token_tp_collective": packed * layers * (facts.tp - 1) // facts.tp,
        "gdn_token_per_rank": packed * gdn // ranks,
        "attention_token_cp_exchange": packed * (layers - gdn) * (facts.cp - 1) // facts.cp,
        "tiny_segment_per_layer": _below(features, 128 * facts.cp) * layers * _SCALE,
        "level_cp_per_layer": levels * layers * (facts.cp - 1),
        "level_tp_per_layer": levels * layers * (facts.tp - 1),
        "gdn_level": levels * gdn,
        "gdn_level_tp": levels * gdn * (facts.tp - 1),
    }


def load_tables(directory: Path = TABLES_DIR) -> tuple[CostTable, ...]:
    """The admitted tables, by file name.

    Raises:
        InputError: a file is damaged, or its coefficients are not those of its digest.
    """
    return tuple(_table(read_json(path)) for path in sorted(directory.glob("*.json")))


def _below(features: Features, length: int) -> int:
    """Segments shorter than the smallest histogram bound that is at least `length`, the last bound beyond it."""
    bounds = enumerate(SEGMENT_LENGTH_THRESHOLDS)
    return features.segments_below[next((index for index, bound in bounds if bound >= length), -1)]


def _table(document: Place) -> CostTable:
    fields = document.fields(("schema", "table_id", "envelope", "milli_us", "sha256"))
    fields["schema"].schema(_SCHEMA)
    coefficients = {name: place.integer(0) for name, place in fields["milli_us"].members().items()}
    digest = hashlib.sha256(json.dumps(coefficients, sort_keys=True).encode()).hexdigest()
    if fields["sha256"].text() != digest:
        raise fields["sha256"].error(f"the coefficients have the digest {digest}")
    envelope = fields["envelope"].fields(("device_names", "hidden_sizes", "param_dtypes"))
    return CostTable(
        table_id=fields["table_id"].text(),
        milli_us=coefficients,
        device_names=tuple(place.text() for place in envelope["device_names"].items()),
        hidden_sizes=tuple(place.integer(1) for place in envelope["hidden_sizes"].items()),
        param_dtypes=tuple(place.text() for place in envelope["param_dtypes"].items()),
    )
