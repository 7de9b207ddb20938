"""Values that fit a field stay; others are cut and hashed, or refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.errors import UsageError
from orchestrate.render.text import cloud_label_value, dns_label, escape_dollars, label_value, require_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)


def expanded(text, environment):
    """What the kubelet makes of `text`: a transcription of third_party/forked/golang/expansion."""
    out, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            out, at = out + text[at], at + 1
        elif text[at + 1] == "$":
            out, at = out + "$", at + 2
        elif text[at + 1] == "(" and ")" in text[at + 2 :]:
            end = text.index(")", at + 2)
            name = text[at + 2 : end]
            out, at = out + environment.get(name, f"$({name})"), end + 1
        elif text[at + 1] == "(":
            out, at = out + "$(", at + 2
        else:
            out, at = out + text[at : at + 2], at + 2
    return out


@given(TEXT | st.text("$()A ", max_size=30))
def test_kubernetes_delivers_an_escaped_value_literally(text):
    assert expanded(escape_dollars(text), {"A": "expanded", "": "nothing"}) == text


def test_an_unescaped_reference_would_be_expanded():
    assert expanded("$(A) $$", {"A": "expanded"}) == "expanded $"


@given(TEXT)
def test_every_text_becomes_a_valid_label(text):
    assert re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", label_value(text))
    assert re.fullmatch(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?", cloud_label_value(text))
    assert re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", dns_label(text))
    # SkyPilot's own rule for the name of a task.
    assert re.fullmatch(r"[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*", dns_label(text))


@pytest.mark.parametrize("fit", [label_value, cloud_label_value, dns_label])
def test_a_value_that_fits_is_kept_and_different_values_stay_different(fit):
    assert fit("r20260102-030405-0a1b2c") == "r20260102-030405-0a1b2c"
    assert len({fit("ann b"), fit("ann/b"), fit("ann?b"), fit("x" * 63), fit("x" * 64), fit("x" * 65)}) == 6


@pytest.mark.parametrize("value", ["a\0b", "\ud800", "x" * 4097, ""])
def test_what_no_environment_variable_can_hold_is_refused_by_name(value):
    with pytest.raises(UsageError, match="--owner") as caught:
        require_text("--owner", value)
    assert caught.value.remedy
