"""Every layout under every parallel shape gives what one rank gives that packs each row for itself."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(600)  # the four ranks share two cores with whatever else runs

SHAPES = [(1, 4), (2, 2), (1, 2), (2, 1)]
SMOKE = {"grpo-tiny": 4, "hetero-tiny": 3, "text g0": 2}
"""Rows -> how many layouts their family has."""

EDGES = [
    "identical rows",
    "a row that is a prefix of another",
    "segments shorter than the convolution",
    "fewer tokens than ranks",
    "a single row",
]


@pytest.fixture(scope="session")
def parities(rank_facts):
    """(rows, tp, cp, dtype) -> the parities of its layouts."""
    found: dict[tuple[str, int, int, str], list[dict]] = {}
    for facts in rank_facts:
        for parity in facts["parity"]:
            found.setdefault((parity["rows"], parity["tp"], parity["cp"], parity["dtype"]), []).append(parity)
    return found


def holds(parities: list[dict], tolerance: float, layouts: int) -> None:
    assert len(parities) >= layouts
    for parity in parities:
        assert parity["outputs"] <= tolerance, parity
        assert parity["gradients"] <= tolerance, parity
        assert parity["zero_gradients"] == [], parity
        assert parity["same_order"], parity
        assert parity["holds"], parity


@pytest.mark.parametrize(("tp", "cp"), SHAPES)
@pytest.mark.parametrize("rows", SMOKE)
def test_every_layout_of_a_smoke_workload_is_exact_in_float64(parities, rows, tp, cp):
    holds(parities[rows, tp, cp, "float64"], 1e-9, layouts=SMOKE[rows])


@pytest.mark.parametrize(("tp", "cp"), SHAPES)
@pytest.mark.parametrize("rows", SMOKE)
def test_every_layout_of_a_smoke_workload_is_close_in_float32(parities, rows, tp, cp):
    holds(parities[rows, tp, cp, "float32"], 1e-4, layouts=SMOKE[rows])


@pytest.mark.parametrize(("tp", "cp"), SHAPES)
@pytest.mark.parametrize("rows", EDGES)
def test_every_layout_of_an_edge_case_is_exact(parities, rows, tp, cp):
    holds(parities[rows, tp, cp, "float64"], 1e-9, layouts=1)


@pytest.mark.parametrize(("tp", "cp"), SHAPES)
def test_a_group_without_any_loss_term_runs_to_its_end_with_zero_gradients(parities, tp, cp):
    (parity,) = parities["one token", tp, cp, "float64"]
    assert parity["outputs"] == 0
    assert parity["gradients"] == 0
    assert len(parity["zero_gradients"]) > 50
    assert parity["same_order"]
    assert not parity["holds"], "agreement of zeros proves nothing"
