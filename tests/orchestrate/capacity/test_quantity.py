"""Quantities as the API writes them."""

import pytest

from orchestrate.capacity.quantity import quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4), ("500m", 0.5), ("2e3", 2000), ("1k", 1000), ("24581184Ki", 24581184 << 10), ("3Mi", 3 << 20),
        ("16Gi", 16 << 30), ("1Ti", 1 << 40), ("1Pi", 1 << 50), ("1Ei", 1 << 60), ("5M", 5_000_000),
    ],
)  # fmt: skip
def test_every_unit_counts(text, number):
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "4 GiB", "1K", "1ki", "mi", "1mi", "1e", None])
def test_what_is_no_quantity_is_no_number(text):
    assert quantity(text) is None
