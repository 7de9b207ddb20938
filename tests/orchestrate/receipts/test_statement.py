"""A receipt is an in-toto Statement v1 with exactly the fields that a reader expects."""

import contextlib
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.errors import ReceiptError
from orchestrate.receipts.canonical import canonical_bytes, sha256_hex
from orchestrate.receipts.statement import Stage, Subject, is_safe_name, parse, statement

FIELDS = {
    "run_id": "r20260102-030405-0a1b2c",
    "attempt": 1,
    "previous": None,
    "started_at": "2026-01-02T03:04:05Z",
    "ended_at": "2026-01-02T03:04:06.250000+00:00",
    "facts": {"peak_bytes": 2**60},
    "subjects": [Subject("plan.json", "a" * 64)],
}


def test_a_statement_reads_back_as_it_was_made():
    made = statement(Stage.RUN, **FIELDS)
    receipt = parse(canonical_bytes(made))
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "urn:orchestrate:receipt:run:v1"
    assert receipt.sha256 == sha256_hex(canonical_bytes(made))
    assert (receipt.stage, receipt.previous, receipt.subjects) == (Stage.RUN, None, (Subject("plan.json", "a" * 64),))
    assert receipt.facts == {"peak_bytes": str(2**60)}
    assert (receipt.ended_at - receipt.started_at).total_seconds() == 1.25


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "../up"},
        {"run_id": ""},
        {"attempt": 0},
        {"attempt": True},
        {"attempt": "1"},
        {"previous": "A" * 64},
        {"previous": "a" * 63},
        {"started_at": "2026-01-02 03:04:05"},
        {"started_at": "2026-13-02T03:04:05Z"},
        {"ended_at": "2026-01-02T03:04:05+02:00"},
        {"facts": {"x": float("nan")}},
        {"subjects": []},
        {"subjects": [Subject("plan.json", "a" * 64), Subject("plan.json", "b" * 64)]},
        {"subjects": [Subject("plan.json", "z" * 64)]},
        {"subjects": [Subject("../plan.json", "a" * 64)]},
        {"subjects": [Subject("/etc/passwd", "a" * 64)]},
    ],
)
def test_a_field_that_no_reader_would_accept_is_refused_when_it_is_written(change):
    with pytest.raises(ReceiptError):
        statement(Stage.RUN, **FIELDS | change)


@pytest.mark.parametrize(
    "edit",
    [
        lambda tree: tree.update(extra=1),
        lambda tree: tree.update(_type="https://in-toto.io/Statement/v0.1"),
        lambda tree: tree.update(predicateType="urn:orchestrate:receipt:plan:v1"),
        lambda tree: tree.update(subject={}),
        lambda tree: tree["predicate"].update(stage="other"),
        lambda tree: tree["predicate"].update(stage=["run"]),
        lambda tree: tree["predicate"].update(schema="orchestrate.receipt/2"),
        lambda tree: tree["predicate"].update(facts=[]),
        lambda tree: tree["predicate"].pop("previous"),
        lambda tree: tree["subject"][0]["digest"].update(sha1="0"),
        lambda tree: tree["subject"].append("plan.json"),
    ],
)
def test_a_statement_with_other_fields_is_refused(edit):
    tree = copy.deepcopy(statement(Stage.RUN, **FIELDS))
    edit(tree)
    with pytest.raises(ReceiptError):
        parse(canonical_bytes(tree))


@pytest.mark.parametrize(
    "name", ["", "/a", "a//b", "a/", "..", "a/../b", "./a", "a/.", "a\\b", "a\nb", "a\x00b", "a" * 1025, "\u202ea"]
)
def test_a_name_that_could_lead_elsewhere_or_hide_itself_is_not_safe(name):
    assert not is_safe_name(name)


@pytest.mark.parametrize("name", ["plan.json", "evidence/cells/a-b.c_d/rows.jsonl", "evidence/..hidden", "é/ü"])
def test_plain_relative_names_are_safe(name):
    assert is_safe_name(name)


@given(st.data())
def test_no_single_changed_byte_reads_as_the_same_receipt(data):
    original = canonical_bytes(statement(Stage.RUN, **FIELDS))
    place = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ReceiptError):
        assert parse(bytes(changed)).sha256 != sha256_hex(original)
