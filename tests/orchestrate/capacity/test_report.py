"""A case told in four ways: complete in each, and no word in it can break out of its place."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from orchestrate.capacity.report import annotation, as_json, as_markdown, as_text
from orchestrate.capacity.taxonomy import Availability, Basis, Case, Offer, Reason, Withdrawal, classify

AT = "2026-11-30T18:00:00.000Z"
SCHEMA = json.loads((files("orchestrate.capacity") / "schemas" / "capacity-1.json").read_text("utf-8"))


def offer(reason=Reason.NOTHING_FREE, basis=Basis.STRUCTURE, where="ctx/ns", detail="1 Insufficient nvidia.com/gpu"):
    return Offer(where, "H200:4", reason, basis, detail, AT)


CASE = Case(
    asked={"accelerators": "H200:4", "backend": "k8s"},
    offers=(offer(),),
    availability=(Availability("ctx/ns", "nvidia.com/gpu", 8, 1, "node allocatable less what pods hold"),),
    withdrawal=Withdrawal(withdrawn=True, confirmed=True, how="Job deleted; asked twice, not found"),
    retry_after_s=600.0,
)


def held(tree):
    jsonschema.Draft202012Validator(SCHEMA).validate(tree)
    return tree


def told(case):
    """The four ways, each as one text without its own escaping."""
    unescaped = re.sub(r"&#([0-9]+);", lambda match: chr(int(match[1])), as_markdown(case))
    line = annotation(case).replace("%2C", ",").replace("%3A", ":").replace("%25", "%")
    return [json.dumps(as_json(case)), unescaped, line, "\n".join(as_text(case))]


def test_each_of_the_four_says_everything():
    for text in told(CASE):
        for part in ("capacity", "H200:4", "ctx/ns", "nothing-free", AT, "Job deleted", "Insufficient nvidia.com/gpu"):
            assert part in text, (part, text)
    for text in told(CASE)[1:]:
        for part in ("nothing ran", "withdrawn, and that was confirmed", "try again in 10 min"):
            assert part in text, (part, text)
    tree = held(as_json(CASE))
    assert (tree["nothing_ran"], tree["retry_after_s"], tree["exit_code"]) == (True, 600.0, 75)
    assert tree["withdrawal"] == {"withdrawn": True, "confirmed": True, "how": "Job deleted; asked twice, not found"}
    assert tree["availability"][0]["free"] == 1


def test_what_nobody_may_see_is_not_known_and_not_zero():
    blind = replace(CASE, availability=(Availability("w", "gpu", None, None, "no rights"),))
    assert held(as_json(blind))["availability"][0]["free"] is None
    assert "total not known, free not known" in "\n".join(as_text(blind))
    assert "| not known | not known |" in as_markdown(blind)


@pytest.mark.parametrize(
    ("withdrawal", "words"),
    [
        (None, "not known yet"),
        (Withdrawal(withdrawn=False, confirmed=False, how="timed out"), "was not withdrawn: timed out"),
        (Withdrawal(withdrawn=True, confirmed=False, how="x"), "NOT confirmed"),
    ],
)
def test_a_withdrawal_that_is_not_proven_is_said_to_be_so(withdrawal, words):
    for text in told(replace(CASE, withdrawal=withdrawal))[1:]:
        assert words in text


def test_what_ran_all_the_same_is_said():
    case = replace(CASE, ran=True)
    assert held(as_json(case))["nothing_ran"] is False
    assert all("something of it ran" in text for text in told(case)[1:])


def test_a_mixed_history_and_what_only_text_tells_are_said():
    mixed = replace(CASE, offers=(offer(basis=Basis.TEXT), offer(Reason.UNREACHABLE, where="far")))
    assert held(as_json(mixed))["mixed"] is True
    for text in told(mixed)[1:]:
        assert "a mixed history: nothing-free, unreachable" in text
    assert "read from the provider's text" in annotation(mixed)


def test_nobody_is_told_to_try_again_what_never_fits():
    never = replace(CASE, offers=(offer(Reason.NEVER_FITS),), retry_after_s=None)
    for text in told(never)[1:]:
        assert "try again in" not in text
        assert "trying again does not help" in text
    assert held(as_json(replace(never, retry_after_s=5.0)))["retry_after_s"] is None


def test_an_outage_without_a_time_is_not_said_to_be_for_ever():
    outage = replace(CASE, offers=(offer(Reason.UNREACHABLE),), retry_after_s=None)
    assert all("when to try again is not known" in text for text in told(outage)[1:])


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_in_the_schema(reason):
    assert held(as_json(replace(CASE, offers=(offer(reason),))))["reason"] == reason.label


def test_the_annotations_level_is_that_of_the_verdict():
    assert annotation(CASE).startswith("::warning title=orchestrate%3A capacity::")
    never = replace(CASE, offers=(offer(Reason.NEVER_FITS),))
    assert annotation(never).startswith("::error title=orchestrate%3A unsatisfiable::")


_NASTY = st.text(max_size=60) | st.sampled_from(
    [
        "a | b", "x\n::error::y", "%0A::set-output name=a::b", "%25", "`a`", "<img src=x>", "[a](http://x)", "@team",
        "www.x.y", "http://x.y/z", "\u202egnp", "a\r\nb", "</code>", "&lt;", "\ud800", "| --- |", "# h", "\\|", "",
    ]
)  # fmt: skip
_OFFERS = st.lists(
    st.builds(Offer, _NASTY, _NASTY, st.sampled_from(list(Reason)), st.sampled_from(list(Basis)), _NASTY, _NASTY),
    min_size=1,
    max_size=5,
)
_NUMBER = st.none() | st.integers(0, 10**6)
_CASES = st.builds(
    Case,
    asked=st.dictionaries(_NASTY, _NASTY | st.integers() | st.none() | st.floats(), max_size=3),
    offers=_OFFERS.map(tuple),
    availability=st.lists(st.builds(Availability, _NASTY, _NASTY, _NUMBER, _NUMBER, _NASTY), max_size=3).map(tuple),
    withdrawal=st.none() | st.builds(Withdrawal, st.booleans(), st.booleans(), _NASTY),
    retry_after_s=st.none() | st.floats(0, 1e6),
    notes=st.lists(_NASTY, max_size=2).map(tuple),
)


@given(_CASES)
def test_any_case_is_json_that_holds_its_schema(case):
    tree = held(as_json(case))
    assert json.loads(json.dumps(tree, allow_nan=False)) == tree
    json.dumps(tree, ensure_ascii=False).encode("utf-8")


@given(_CASES)
def test_any_case_is_one_annotation_and_not_two(case):
    line = annotation(case)
    assert line.splitlines() == [line]
    level = classify(case.offers).verdict
    match = re.fullmatch(r"::(warning|error) title=([^:,]*)::(.*)", line)
    assert match is not None
    assert match[1] == level.annotation
    assert re.fullmatch(r"(?:[^%]|%25|%0A|%0D|%3A|%2C)*", match[2] + match[3])
    assert "%0A" not in line
    assert "%0D" not in line


@given(_CASES)
def test_no_word_of_a_case_makes_markdown_of_its_own(case):
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(as_markdown(case))
    kinds = [token.type for token in tokens]
    assert kinds.count("table_open") == 1 + bool(case.availability)
    assert kinds.count("tr_open") == 1 + len(case.offers) + (1 + len(case.availability) if case.availability else 0)
    assert kinds.count("td_open") == 5 * (len(case.offers) + len(case.availability))
    assert kinds.count("heading_open") == 1
    inner = [child for token in tokens for child in token.children or ()]
    assert {child.type for child in inner} <= {"text", "text_special", "html_inline"}
    assert {child.content for child in inner if child.type == "html_inline"} <= {"<code>", "</code>"}
    assert not re.search(r"@|https?:|www\.|#[0-9]", as_markdown(case).replace("&#", ""))


@given(_CASES)
def test_no_word_of_a_case_steers_a_terminal_or_makes_a_line(case):
    for line in as_text(case):
        assert line.isprintable()
