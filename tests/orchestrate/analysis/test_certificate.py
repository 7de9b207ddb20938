"""The certificate: a pure function of its inputs, and any edit shows."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrate.analysis.certificate import CertificateInputs, Shipped, certificate_bytes, inputs_of, make_certificate
from orchestrate.analysis.check import check_certificate, schema_problems
from orchestrate.analysis.cost_terms import TERMS
from orchestrate.analysis.fit import fit_table, table_sha256
from orchestrate.analysis.measured import Execution, Production
from orchestrate.analysis.reduced_cells import InputCell, read_reduced_cells
from orchestrate.analysis.study import Selection, make_study
from orchestrate.receipts.canonical import canonical_bytes, sha256_hex

GOLDEN = Path(__file__).parents[2] / "golden" / "certificate"
TRUTH = (2002, 39, 221, 594, 27, 219288, 187255, 684798, 3336555, 1194872)
WHERE = Execution("NVIDIA H200", "torch.bfloat16", 2560, "f" * 64)
INPUTS_OF_A_CERTIFICATE = {
    "schema", "made_by", "table_id", "fit_arguments", "manifest_sha256", "expected_sets", "exclusions",
    "evidence_files", "receipts", "cells", "shipped", "sha256",
}  # fmt: skip


@pytest.fixture(scope="module")
def small():
    """The inputs of a small certificate, from the golden cells."""
    data = (GOLDEN / "cells.jsonl").read_bytes()
    items, gaps = read_reduced_cells(data, "cells.jsonl", WHERE)
    assert not gaps
    study = make_study(items, Selection(), manifest=None, reasons={})
    return CertificateInputs(
        study=study,
        table_id="golden",
        files=({"name": "cells.jsonl", "kind": "cells", "sha256": sha256_hex(data)},),
        shipped=Shipped("before", dict(zip(TERMS, TRUTH, strict=True))),
        version="0",
    )


@pytest.fixture(scope="module")
def certificate(small):
    return make_certificate(small)


def sealed(certificate):
    """The bytes of an edited certificate whose digests were made anew, as a forger would."""
    certificate["cells_sha256"] = sha256_hex(canonical_bytes(certificate["cells"]))
    rest = {name: value for name, value in certificate.items() if name != "sha256"}
    return canonical_bytes(rest | {"sha256": sha256_hex(canonical_bytes(rest))})


def test_the_golden_cells_give_the_golden_bytes(certificate):
    assert certificate_bytes(certificate) == (GOLDEN / "certificate.json").read_bytes()


def test_a_certificate_holds(certificate):
    checked = check_certificate(certificate_bytes(certificate))
    assert checked.problems == ()
    assert checked.sha256 == certificate["sha256"]


def test_the_published_table_is_certified(shared_study, published):
    study = shared_study("cp4|g4")
    found = make_certificate(CertificateInputs(study, "t", ({"name": "c", "kind": "cells", "sha256": "0" * 64},)))
    assert found["verdict"] == "certified"
    assert found["integer_table_sha256"] == published["integer_table_sha256"]
    assert found["metrics"] == published["metrics"]
    assert check_certificate(certificate_bytes(found)).holds


def test_inputs_come_back_out_of_a_certificate(small, certificate):
    assert inputs_of(json.loads(certificate_bytes(certificate))) == small


def leaves(value, path=()):
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def edited(certificate, path, value):
    found = copy.deepcopy(certificate)
    place = found
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return found


def another(value):
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case None:
            return 1
        case _:
            return f"{value}x"


@pytest.mark.slow
def test_no_figure_that_follows_from_others_can_be_edited_even_with_new_digests(small, certificate, monkeypatch):
    def same_inputs_same_certificate(inputs):
        assert inputs == small
        return certificate

    monkeypatch.setattr("orchestrate.analysis.check.make_certificate", same_inputs_same_certificate)
    document = json.loads(certificate_bytes(certificate))
    tried = set()
    for path, value in leaves(document):
        kind = tuple(part for part in path if isinstance(part, str))
        if path[0] in INPUTS_OF_A_CERTIFICATE or kind in tried or path[0] == "cells_sha256":
            continue
        tried.add(kind)
        assert not check_certificate(sealed(edited(document, path, another(value)))).holds, path
    assert len(tried) > 60


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_byte_can_be_changed_removed_or_added(data, certificate):
    whole = certificate_bytes(certificate)
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != whole[place]))
    how = data.draw(st.sampled_from(["change", "remove", "add", "cut"]))
    harmed = {
        "change": whole[:place] + bytes([byte]) + whole[place + 1 :],
        "remove": whole[:place] + whole[place + 1 :],
        "add": whole[:place] + bytes([byte]) + whole[place:],
        "cut": whole[:place],
    }[how]
    checked = check_certificate(harmed)
    assert not checked.holds
    assert checked.problems


@pytest.mark.parametrize("path", [("made_by", "version"), ("table_id",), ("cells", 0, "candidates", 0, "median_ms")])
def test_an_input_can_not_be_edited_alone(certificate, path):
    document = json.loads(certificate_bytes(certificate))
    value = document
    for name in path:
        value = value[name]
    checked = check_certificate(canonical_bytes(edited(document, path, another(value))))
    assert "it was edited" in checked.problems[0]


def test_who_makes_it_all_anew_is_caught_by_the_expected_digest(small, certificate):
    cell = small.study.cells[0]
    faster = replace(cell.candidates[0], median_ms=cell.candidates[0].median_ms / 2)
    study = replace(
        small.study, cells=(replace(cell, candidates=(faster, *cell.candidates[1:])), *small.study.cells[1:])
    )
    forged = certificate_bytes(make_certificate(replace(small, study=study)))
    assert check_certificate(forged).holds
    checked = check_certificate(forged, expect_sha256=certificate["sha256"])
    assert "not the expected" in checked.problems[0]


def test_cells_that_reading_would_refuse_are_refused_here_too(certificate):
    document = json.loads(certificate_bytes(certificate))
    worse = {
        "candidates[0]": edited(document, ("cells", 0, "candidates", 0, "segments_below"), [9, 1, 1, 1, 1, 1, 1, 1]),
        "twice": document | {"cells": [*document["cells"], document["cells"][0]]},
        "few rounds": edited(document, ("cells", 0, "candidates", 0, "rounds"), 7),
        "label order": edited(document, ("cells", 0, "candidates", 0, "label"), "zzz"),
        "key": edited(document, ("cells", 0, "facts", "cp"), 3),
        "too few": document | {"cells": document["cells"][:5]},
        "rounds": edited(document, ("cells", 0, "candidates", 0, "samples_ms"), [1.0, 2.0]),
    }
    for name, changed in worse.items():
        assert not check_certificate(sealed(changed)).holds, name


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff", b'{"schema":"orchestrate.certificate/2"}'])
def test_other_files_are_no_certificates(data):
    assert not check_certificate(data).holds


def test_the_schema_knows_every_member_and_allows_no_other(certificate):
    document = json.loads(certificate_bytes(certificate))
    assert schema_problems(document) == []
    assert schema_problems(document | {"note": "x"})
    for name in document:
        assert schema_problems({key: value for key, value in document.items() if key != name}), name


def test_the_shipped_table_stays_unless_a_measurable_gain_is_accepted(small):
    fitted = fit_table(small.study.training).table
    bad = Shipped("t", dict.fromkeys(TERMS, 0) | {"gdn_level": 1_000_000, "token_per_rank": 1})
    near = Shipped("t", dict(fitted) | {"gdn_level": fitted["gdn_level"] + 1})

    def certified(shipped, accept):
        found = make_certificate(replace(small, shipped=shipped, accept=accept))
        return found["table_source"], found["integer_table_sha256"], found["comparison"]

    assert certified(bad, accept=False)[:2] == ("shipped", table_sha256(bad.table))
    source, sha256, comparison = certified(bad, accept=True)
    assert (source, sha256) == ("fit", table_sha256(fitted))
    assert (comparison["standing"], comparison["measurable"]) == ("better", True)
    assert certified(near, accept=True)[:2] == ("shipped", table_sha256(near.table))
    assert certified(near, accept=True)[2]["standing"] == "equivalent"
    assert certified(None, accept=False)[0] == "fit"


def test_a_failing_gate_admits_nothing(small):
    spoiled = tuple(
        replace(cell, candidates=tuple(replace(c, median_ms=1e6 / c.median_ms) for c in cell.candidates))
        if cell in small.study.held_out
        else cell
        for cell in small.study.cells
    )
    found = make_certificate(replace(small, study=replace(small.study, cells=spoiled), shipped=None))
    assert found["verdict"] == "gates-failed"
    assert found["admitted"] is None
    assert "a gate does not hold" in found["does_not_prove"][0]


def test_the_table_is_admitted_only_for_what_it_was_measured_on(small, shared_study):
    found = make_certificate(replace(small, shipped=None))
    assert found["admitted"] == {
        "device_names": ["NVIDIA H200"],
        "hidden_sizes": [2560],
        "param_dtypes": ["torch.bfloat16"],
        "geometries": [{"layers": 32, "gdn_layers": 24}, {"layers": 36, "gdn_layers": 0}],
        "shapes": [{"tp": 1, "cp": 1}, {"tp": 1, "cp": 2}, {"tp": 1, "cp": 4}, {"tp": 2, "cp": 1}],
    }
    unknown = tuple(replace(cell, execution=None) for cell in small.study.cells)
    found = make_certificate(replace(small, study=replace(small.study, cells=unknown), shipped=None))
    assert found["verdict"] == "certified"
    assert found["admitted"] is None


def test_what_it_does_not_prove_follows_from_what_is_in_it(small):
    def said(inputs):
        return " ".join(make_certificate(inputs)["does_not_prove"])

    bare = said(small)
    assert "no manifest was given" in bare
    assert "no receipt is linked" in bare
    assert "`automatic` was not measured" in bare
    assert "noise model" in bare
    cells = tuple(
        replace(
            cell,
            production=Production("layout_00", "fewest-tokens", 9.0, 8),
            candidates=tuple(replace(c, samples_ms=(c.median_ms,) * 8, spread_pct=0.0) for c in cell.candidates),
        )
        for cell in small.study.cells
    )
    full = replace(
        small,
        study=replace(small.study, cells=cells, expected_sets=("made",)),
        manifest_sha256="0" * 64,
        receipts=({"run_id": "r", "closure_sha256": "0" * 64, "verdict": "passed", "files_bound": 1},),
    )
    for words in ("no manifest", "no receipt", "`automatic`", "noise model"):
        assert words not in said(full)
    assert check_certificate(certificate_bytes(make_certificate(full))).holds


def test_reading_order_is_the_only_order(small):
    """The same cells in another order are another fit: order decides between equals, and is part of the input."""
    again = make_study(
        [InputCell(cell, cell.key) for cell in small.study.cells], Selection(), manifest=None, reasons={}
    )
    assert make_certificate(replace(small, study=again)) == make_certificate(small)
