import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrate.analysis.reduced_cells import read_reduced_cells


def read(data, name="cells.jsonl"):
    cells, gaps = read_reduced_cells(data, name, None)
    return [item.cell for item in cells], [str(gap) for gap in gaps], gaps


def test_the_published_file_reads_without_a_gap_in_label_order(shared_cells):
    cells, gaps, _ = read(shared_cells.read_bytes())
    assert len(cells) == 58
    assert not gaps
    assert sum(len(cell.candidates) for cell in cells) == 435
    for cell in cells:
        labels = [candidate.label for candidate in cell.candidates]
        assert labels == sorted(labels)


def test_facts_are_whole_numbers_however_they_are_written(made_up, as_bytes):
    (row,) = made_up(1)
    row["facts"] = {name: float(value) for name, value in row["facts"].items()}
    (cell,), gaps, _ = read(as_bytes([row]))
    assert not gaps
    assert isinstance(cell.facts.tp, int)


DAMAGE = {
    "not JSON": (lambda _: None, "not strict JSON"),
    "facts missing": (lambda row: row.pop("facts"), "has no 'facts'"),
    "candidates missing": (lambda row: row.pop("candidates"), "has no 'candidates'"),
    "no candidate": (lambda row: row["candidates"].clear(), "has no candidates"),
    "a key that is none": (lambda row: row.update(cell="cal-x"), "not a cell key"),
    "a fact of the key": (lambda row: row["facts"].update(cp=7), "the facts say cp 7"),
    "a fraction of a layer": (lambda row: row["facts"].update(layers=4.5), "whole number"),
    "more gdn layers than layers": (lambda row: row["facts"].update(gdn_layers=99), "99 gated delta net layers"),
    "a group of another cell": (lambda row: row["workload"].update(group=5), "the workload says group 5"),
    "a negative time": (lambda row: row["candidates"][1].__setitem__(5, -1.0), "median_ms is -1.0"),
    "a time of zero": (lambda row: row["candidates"][1].__setitem__(5, 0), "median_ms is 0.0"),
    "a time that is a text": (lambda row: row["candidates"][1].__setitem__(5, "fast"), "must be a number"),
    "a time that is true": (lambda row: row["candidates"][1].__setitem__(5, True), "must be a number"),
    "a negative spread": (lambda row: row["candidates"][1].__setitem__(7, -0.1), "spread_pct is -0.1"),
    "a time beyond all clocks": (lambda row: row["candidates"][1].__setitem__(5, 1e300), "no such measurement"),
    "a time below all clocks": (lambda row: row["candidates"][1].__setitem__(5, 1e-300), "no such measurement"),
    "a spread beyond belief": (lambda row: row["candidates"][1].__setitem__(7, 1e200), "no such measurement"),
    "half a round": (lambda row: row["candidates"][1].__setitem__(6, 7.5), "whole number"),
    "no round": (lambda row: row["candidates"][1].__setitem__(6, 0), "whole number"),
    "a short histogram": (lambda row: row["candidates"][1][4].pop(), "below 8 bounds"),
    "a falling histogram": (lambda row: row["candidates"][1].__setitem__(4, [2, 1] * 4), "running count"),
    "more short segments than segments": (lambda row: row["candidates"][1].__setitem__(3, 1), "running count"),
    "a label twice": (lambda row: row["candidates"][1].__setitem__(0, "layout_00"), "is there twice"),
    "a field too few": (lambda row: row["candidates"][1].pop(), "is not a list of label"),
    "a label that moves a cursor": (lambda row: row["candidates"][1].__setitem__(0, "a\x1b[2J"), "is no label"),
    "a label without end": (lambda row: row["candidates"][1].__setitem__(0, "x" * 201), "is no label"),
    "a label that is no text": (lambda row: row["candidates"][1].__setitem__(0, "\ud800"), "not strict JSON"),
    "a key that moves a cursor": (lambda row: row.update(cell="cal-\x1b|m|L4|tp1|cp1"), "not a cell key"),
    "expert parallelism": (lambda row: row.update(cell="cal-x|m|L4|tp1|cp1|ep2"), "EP above 1 is refused"),
    "no label": (lambda row: row["candidates"][1].__setitem__(0, ""), "has no label"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_with_file_and_line(name, made_up, as_bytes):
    harm, expected = DAMAGE[name]
    rows = made_up(3)
    rows[1]["candidates"][1][4] = [0, 1, 2, 2, 2, 2, 2, 2]
    harm(rows[1])
    data = as_bytes(rows)
    if name == "not JSON":
        data = data.replace(as_bytes([rows[1]]), as_bytes([rows[1]])[:40] + b"\n")
    cells, texts, gaps = read(data)
    assert len(cells) == 2
    assert all(text.startswith("cells.jsonl:2") for text in texts)
    assert any(expected in text for text in texts), texts
    assert all(gap.damaged for gap in gaps)


def test_a_cell_has_one_name_with_ep1_and_without(made_up, as_bytes):
    (row,) = made_up(1)
    key = row["cell"]
    row["cell"] = key.replace("|g", "|ep1|g")
    (cell,), gaps, _ = read(as_bytes([row]))
    assert not gaps
    assert cell.key == key


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(value, made_up, as_bytes):
    (row,) = made_up(1)
    row["candidates"][0][5] = 12345.5
    _, texts, _ = read(as_bytes([row]).replace(b"12345.5", value.encode()))
    assert len(texts) == 1
    assert "cells.jsonl:1" in texts[0]


def test_every_gap_of_a_file_is_named_at_once(made_up, as_bytes):
    rows = made_up(4)
    rows[0]["candidates"][0][5] = -1
    rows[0]["candidates"][2][6] = 0
    rows[3]["facts"]["tp"] = 0
    _, texts, _ = read(as_bytes(rows) + b"{}\n\n")
    assert len(texts) == 5
    assert [text.split()[0].rstrip(":") for text in texts] == [
        "cells.jsonl:1", "cells.jsonl:1", "cells.jsonl:4", "cells.jsonl:5", "cells.jsonl:6",
    ]  # fmt: skip


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff\xfe\n", b"[]\n", b"null\n"])
def test_a_file_without_cells_is_refused(data):
    cells, texts, _ = read(data)
    assert not cells
    assert texts


def test_a_member_twice_is_refused(made_up, as_bytes):
    data = as_bytes(made_up(1)).replace(b'{"cell":', b'{"cell": "x", "cell":', 1)
    assert "twice" in read(data)[1][0]


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_it_fall_over(data):
    cells, texts, _ = read(data)
    assert cells or texts


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_value_in_any_place_makes_it_fall_over(data, made_up):
    (row,) = made_up(1, 2)
    strange = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.just([])
    field = data.draw(st.sampled_from(["cell", "facts", "workload", "candidates", *range(8)]))
    value = data.draw(strange)
    if isinstance(field, int):
        row["candidates"][0][field] = value
    else:
        row[field] = value
    cells, texts, _ = read(json.dumps(row).encode())
    assert len(cells) + bool(texts) == 1
    for cell in cells:
        assert all(math.isfinite(each.median_ms) and each.median_ms > 0 for each in cell.candidates)
