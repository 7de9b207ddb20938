"""Cells to analyse: the published ones where they lie beside the repository, and small ones made here."""

import importlib.util
import json
import random
import sys
from pathlib import Path

import pytest

from orchestrate.analysis.cost_terms import SCALE, Facts, Features, cost_terms
from orchestrate.analysis.measured import Candidate, MeasuredCell
from orchestrate.analysis.reduced_cells import read_reduced_cells
from orchestrate.analysis.study import Selection, make_study

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "data"
TRUTH = (2002, 39, 221, 594, 27, 219288, 187255, 684798, 3336555, 1194872)


@pytest.fixture(scope="session")
def shared_cells() -> Path:
    path = SHARED / "h200_dense_h2560_cells.jsonl"
    if not path.is_file():
        pytest.skip("the published cells do not lie beside this checkout")
    return path


@pytest.fixture(scope="session")
def published(shared_cells) -> dict:
    return json.loads((SHARED / "h200_dense_h2560_published.json").read_text())


@pytest.fixture(scope="session")
def shared_study(shared_cells):
    """A function: the study of the published cells with this holdout."""
    inputs, gaps = read_reduced_cells(shared_cells.read_bytes(), "cells.jsonl", None)
    assert not gaps

    def study(*holdout: str):
        return make_study(inputs, Selection(holdout=holdout), manifest=None, reasons={})

    return study


@pytest.fixture(scope="session")
def plain_fit():
    """The plain Python loop of the benchmarks: the method as its description reads."""
    spec = importlib.util.spec_from_file_location("plain_fit", ROOT / "benchmarks" / "plain_fit.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["plain_fit"] = module
    spec.loader.exec_module(module)
    return module


def _candidate(label, *, median_ms, spread_pct=1.0, rounds=8, packed=10_000, depth=1, segments=4, below=(0,) * 8):
    return Candidate(label, Features(packed, segments, depth, tuple(below)), median_ms, rounds, spread_pct)


@pytest.fixture(scope="session")
def candidate():
    return _candidate


@pytest.fixture(scope="session")
def make_cell():
    """A function: a cell from its key and candidates; the facts are those of the key."""

    def cell(key, candidates, *, gdn_layers=0, **fields):
        parts = {part[:2]: part for part in key.split("|")[3:]}
        layers = int(key.split("|")[2][1:])
        facts = Facts(int(parts["tp"][2:]), int(parts["cp"][2:]), layers, gdn_layers)
        return MeasuredCell(key, facts, tuple(sorted(candidates, key=lambda each: each.label)), **fields)

    return cell


@pytest.fixture(scope="session")
def made_up():
    """A function: cells whose times follow a known table up to noise, as reduced lines."""

    def lines(count=12, candidates=5, *, seed=0, noise=0.02, tps=((1, 1), (1, 2), (1, 4), (2, 1))):
        draw = random.Random(seed)
        rows = []
        for number in range(count):
            tp, cp = tps[number % len(tps)]
            layers, gdn = ((32, 24), (36, 0))[number // 2 % 2]
            facts = Facts(tp, cp, layers, gdn)
            model = "Qwen/Qwen3.5-4B" if gdn else "Qwen/Qwen3-4B"
            found = []
            for each in range(candidates):
                segments = draw.randint(2, 30)
                below = sorted(draw.randint(0, segments) for _ in range(8))
                features = Features(draw.randint(4_000, 60_000), segments, draw.randint(1, 5), tuple(below))
                cost = sum(a * b for a, b in zip(TRUTH, cost_terms(features, facts), strict=True)) / SCALE / 1e6
                median_ms = cost * draw.uniform(1 - noise, 1 + noise)
                found.append(
                    [
                        f"layout_{each:02}",
                        features.max_depth,
                        features.packed_tokens,
                        segments,
                        below,
                        median_ms,
                        8,
                        1.5,
                    ]
                )
            rows.append(
                {
                    "cell": f"cal-ellavox|{model}|L{layers}|tp{tp}|cp{cp}|g{number}",
                    "facts": {"cp": cp, "tp": tp, "layers": layers, "gdn_layers": gdn, "uses_gdn": int(gdn > 0)},
                    "workload": {"kind": "ellavox", "group": number},
                    "candidates": found,
                }
            )
        return rows

    return lines


@pytest.fixture(scope="session")
def as_bytes():
    """A function: rows as the bytes of a JSONL file."""
    return lambda rows: b"".join(json.dumps(row).encode() + b"\n" for row in rows)
