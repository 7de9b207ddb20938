"""One value has one spelling, and nothing that two readers could read differently is read at all."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.errors import ReceiptError
from orchestrate.receipts.canonical import MAX_DEPTH, canonical_bytes, parse_canonical, parse_strict, sha256_hex
from orchestrate.receipts.statement import Stage

TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(TREES)
def test_what_is_written_is_its_own_canonical_form(tree):
    data = canonical_bytes(tree)
    assert canonical_bytes(parse_canonical(data, what="it")) == data


@given(TREES)
def test_the_order_of_keys_does_not_change_the_bytes(tree):
    def backwards(value):
        if isinstance(value, dict):
            return {key: backwards(value[key]) for key in reversed(value)}
        return [backwards(item) for item in value] if isinstance(value, list) else value

    assert canonical_bytes(backwards(tree)) == canonical_bytes(tree)


def test_the_published_vector_of_rfc_8785_comes_out():
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert canonical_bytes(value).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


@pytest.mark.parametrize(
    ("number", "spelled"),
    [
        (2**53 - 1, b"9007199254740991"),
        (1 - 2**53, b"-9007199254740991"),
        (2**53, b'"9007199254740992"'),
        (-(2**64), b'"-18446744073709551616"'),
    ],
)
def test_integers_beyond_two_to_the_53_are_strings(number, spelled):
    assert canonical_bytes(number) == spelled


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, {1: "a"}, b"bytes", {"a": object()}, "\ud800", {"\ud800": 1}]
)
def test_what_json_can_not_say_is_refused(value):
    with pytest.raises(ReceiptError):
        canonical_bytes({"a": [value]})


def test_a_string_enum_is_its_value():
    assert canonical_bytes({"stage": Stage.RUN}) == b'{"stage":"run"}'


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"a":1,"a":2}', "twice"),
        (b'{"x":{"a":1,"a":1}}', "twice"),
        (b"[NaN]", "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"[1e999]", "beyond every double"),
        (b"[" + b"9" * 5000 + b"]", "beyond every double"),
        (b'"\xff"', "utf-8"),
        (b'"\\ud800"', "surrogates"),
        (b'{"\\uDFFF": 1}', "surrogates"),
        (b"[1,]", "strict JSON"),
        (b"", "strict JSON"),
        (b"[1] [2]", "strict JSON"),
        (b"[" * 100_000, "too deep"),
        (b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2), "deeper"),
    ],
)
def test_text_that_two_readers_could_read_differently_is_refused(data, why):
    with pytest.raises(ReceiptError, match=why):
        parse_strict(data, what="it")


@pytest.mark.parametrize(
    "data", [b'{"b":1,"a":2}', b'{"a": 1}', b"[1]\n", b"[1.0]", b"[9007199254740993]", b'"\\u0041"', b"[-0]"]
)
def test_another_spelling_of_the_same_value_is_refused(data):
    with pytest.raises(ReceiptError, match="canonical"):
        parse_canonical(data, what="it")


@given(st.binary(max_size=64))
def test_reading_any_bytes_gives_a_value_or_a_receipt_error(data):
    with contextlib.suppress(ReceiptError):
        parse_canonical(data, what="it")


def test_the_digest_is_sha256():
    assert sha256_hex(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
