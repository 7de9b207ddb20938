import json

import pytest

from orchestrate.analysis.evidence_rows import read_evidence

KEY = "cal-text|tiny-hybrid|L4|tp1|cp4|g4"
LABELS = ("no_sharing", "depth_one")


def rows(key=KEY, labels=LABELS, repeat=3, run_id="r1", **header):
    """The rows of a cell as the harness writes them; the times are 10 + candidate + round / 10."""
    workload, *_, group = key.split("|")
    candidates = [
        {
            "label": label,
            "layout_sha256": "0" * 64,
            "features": {
                "packed_tokens": 100 - n, "segment_count": 3, "max_depth": n + 1, "segments_below": [3] * 8,
            },
        }
        for n, label in enumerate(labels)
    ]  # fmt: skip
    found = [
        {
            "row": "cell", "run_id": run_id, "cell": key, "repeat": repeat, "candidates": candidates, "equal": {},
            "automatic": {"label": labels[-1], "rule": "fewest-tokens"}, "dtype": "torch.float32", "torch": "2.13",
            "workload": {"name": workload, "group": int(group[1:])},
            "model": {"name": "tiny-hybrid", "layers": 4, "gdn_layers": 3, "hidden": 64},
            "shape": {"tp": 1, "cp": 4, "ep": 1, "world": 4}, "device": {"kind": "cpu", "name": "cpu"},
            "fingerprint": "f" * 64, **header,
        }
    ]  # fmt: skip
    for turn in range(repeat):
        for n, (role, label) in enumerate([*(("candidate", label) for label in labels), ("automatic", labels[-1])]):
            found.append({
                "row": "measure", "candidate": label, "role": role, "round": turn, "position": n,
                "elapsed_ms": 10 + n + turn / 10, "per_rank_ms": [9.0, 9.0, 9.0, 10 + n + turn / 10],
                "compile": ["none"] * 4,
                "admitted": True, "unsplit": True, "layout_live": True,
            })  # fmt: skip
    found += [{"row": "warmup", "candidate": label, "role": "candidate", "index": 0} for label in labels]
    found.append({"row": "end", "outcome": "complete", "rows": len(found), "reason": ""})
    return [{"schema": "harness.evidence/1", "at": "2026-01-01T00:00:00Z", **row} for row in found]


def as_lines(found):
    return b"".join(json.dumps(row).encode() + b"\n" for row in found)


def read(data, mandatory=lambda _key: None):
    cells, gaps = read_evidence(data, "rows.jsonl", mandatory)
    return [item.cell for item in cells], [str(gap) for gap in gaps]


def test_a_cell_is_the_median_over_its_rounds():
    (cell,), gaps = read(as_lines(rows()))
    assert not gaps
    assert [candidate.label for candidate in cell.candidates] == ["depth_one", "no_sharing"]
    depth_one = cell.candidates[0]
    assert depth_one.median_ms == 11.1
    assert depth_one.rounds == 3
    assert depth_one.samples_ms == (11.0, 11.1, 11.2)
    assert abs(depth_one.spread_pct - 0.2 / 11.1 * 100) < 1e-9
    assert (depth_one.features.packed_tokens, depth_one.features.max_depth) == (99, 2)
    assert (cell.facts.tp, cell.facts.cp, cell.facts.layers, cell.facts.gdn_layers) == (1, 4, 4, 3)
    assert cell.execution.device == "cpu"
    assert cell.execution.dtype == "torch.float32"
    assert cell.execution.hidden == 64
    assert cell.run_id == "r1"


def test_automatic_is_no_candidate_and_gives_the_production_time():
    (cell,), _ = read(as_lines(rows()))
    assert cell.production.label == "depth_one"
    assert cell.production.median_ms == 12.1
    assert cell.production.rule == "fewest-tokens"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"compile": ["none", "none", "recompile", "none"]}, "compile statuses"),
        ({"compile": ["none"] * 3}, "compile statuses"),
        ({"admitted": False}, "admitted is False"),
        ({"unsplit": False}, "unsplit is False"),
        ({"layout_live": False}, "layout_live is False"),
        ({"layout_live": None}, "layout_live is None"),
        ({"elapsed_ms": -3.0}, "elapsed_ms is -3.0"),
        ({"elapsed_ms": 0}, "elapsed_ms is 0"),
        ({"role": "warmup"}, "measures neither"),
        ({"candidate": "unheard"}, "not a candidate of the cell"),
        ({"per_rank_ms": [1.0] * 4}, "the slowest rank"),
        ({"round": 7}, "no round of 3"),
        ({"round": 0}, "in round 0 again"),
    ],
)
def test_a_row_that_is_not_usable_is_a_gap_that_names_its_line(change, said):
    found = rows()
    found[4] |= change
    cells, gaps = read(as_lines(found))
    assert not cells
    assert any("rows.jsonl:5 " in gap and said in gap for gap in gaps), gaps
    assert any("usable rounds of 3" in gap for gap in gaps), gaps


def test_a_missing_round_an_early_end_and_an_unsettled_cell_are_gaps():
    found = rows()
    assert any("'no_sharing' has 2 usable rounds of 3" in gap for gap in read(as_lines(found[:4] + found[5:]))[1])
    assert any("no end row" in gap for gap in read(as_lines(found[:-1]))[1])
    found[-1] |= {"outcome": "unsettled", "reason": "still compiling"}
    assert any("ended as 'unsettled': still compiling" in gap for gap in read(as_lines(found))[1])


def test_one_round_is_not_enough():
    assert any("has 1 round, needs at least 2" in gap for gap in read(as_lines(rows(repeat=1)))[1])


def test_a_mandatory_candidate_that_is_not_there_is_a_gap():
    gaps = read(as_lines(rows()), lambda key: ("no_sharing", "uniform_depth_2") if key == KEY else None)[1]
    assert any("mandatory candidate 'uniform_depth_2'" in gap for gap in gaps)


def test_a_torn_last_line_a_strange_line_and_nan_are_named():
    data = as_lines(rows())
    assert any("the last one, is cut" in gap for gap in read(data[:-1])[1])
    assert any(
        "rows.jsonl:4" in gap and "is not strict JSON" in gap for gap in read(data.replace(b"\n", b"\n{broken\n", 2))[1]
    )
    assert any("NaN" in gap for gap in read(data.replace(b"10.1", b"NaN", 1))[1])


def test_a_file_that_does_not_begin_with_a_cell_row_is_damaged():
    for data in (as_lines(rows()[1:]), b"{}\n", b"\x00\n", b"[1]\n"):
        cells, gaps = read_evidence(data, "rows.jsonl", lambda _key: None)
        assert not cells
        assert any(gap.damaged for gap in gaps)
    assert read(b"")[1] == ["rows.jsonl: holds no evidence"]


def test_several_cells_may_follow_one_another():
    other = "cal-text|tiny-hybrid|L4|tp1|cp4|g5"
    cells, gaps = read(as_lines(rows()) + as_lines(rows(key=other)))
    assert not gaps
    assert [cell.key for cell in cells] == [KEY, other]
    harmed = rows(key=other)
    harmed[1] |= {"admitted": False}
    assert any(f"rows.jsonl:{len(rows()) + 2} " in gap for gap in read(as_lines(rows() + harmed))[1])


def test_a_shape_that_the_key_does_not_have_is_refused():
    cells, gaps = read(as_lines(rows(shape={"tp": 2, "cp": 2, "ep": 1, "world": 4})))
    assert not cells
    assert any("not the shape of the cell" in gap for gap in gaps)


@pytest.mark.parametrize("missing", ["model", "device", "dtype"])
def test_a_cell_that_does_not_say_what_it_ran_on_is_refused(missing):
    assert any(f"has no {missing}" in gap for gap in read(as_lines(rows(**{missing: None})))[1])


def test_another_fingerprint_software_or_device_is_another_execution():
    prints = {
        read(as_lines(rows(**change)))[0][0].execution.fingerprint
        for change in ({}, {"fingerprint": "e" * 64}, {"torch": "2.14"}, {"device": {"kind": "cpu", "name": "other"}})
    }
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fingerprint": None}, "has no fingerprint"),
        ({"fingerprint": ""}, "has no fingerprint"),
        ({"shape": {"tp": 1, "cp": 4, "ep": 2, "world": 4}}, "EP above 1 is refused"),
        ({"shape": {"tp": 1, "cp": 4, "ep": True, "world": 4}}, "EP above 1 is refused"),
    ],
)
def test_a_cell_that_ran_on_nothing_known_or_with_expert_parallelism_is_refused(change, said):
    cells, gaps = read(as_lines(rows(**change)))
    assert not cells
    assert any(said in gap for gap in gaps)


def test_a_time_below_all_clocks_is_no_usable_row():
    found = rows()
    found[1] |= {"elapsed_ms": 1e-9, "per_rank_ms": [1e-9] * 4}
    cells, gaps = read(as_lines(found))
    assert not cells
    assert any("elapsed_ms is 1e-09" in gap for gap in gaps)
