"""No value changes the structure of a rendered document."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import InputError
from harness.node import node_job
from orchestrate.errors import UsageError
from orchestrate.render import Backend, Corpus, HarnessArchive, RenderRequest, parse_image, render
from orchestrate.render.document import dump, dump_with_pyyaml, walk

NASTY = [
    "'",
    '"',
    "a\nb: c\n",
    "a\r\n- b",
    "${{ secrets.TOKEN }}",
    "$(HOME)",
    "$((1))",
    "$$",
    "${CELL_SET}",
    "`id`",
    "!!python/object/apply:os.system ['id']",
    "!!binary aGk=",
    "&a *a",
    "{{ x }}",
    "| \n block",
    "--- \n...",
    "# comment",
    "null",
    "~",
    "yes",
    "1e3",
    "0o17",
    "0x1f",
    "12:30:45",
    "2026-01-02",
    "=",
    "<<",
    "\ufeff",
    "\u0085\u2028\u2029",
    "\x07\x1b[31m",
    "\U0001f600",
    "é" * 900,
    "x" * 4096,
]
HOSTILE = st.one_of(
    st.sampled_from(NASTY),
    st.lists(st.sampled_from(NASTY[:20]), min_size=2, max_size=4).map("".join),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200),
)
ARCHIVE = HarnessArchive(gz=b"gz", sha256="0" * 64)


def request(value, *, backend):
    path = value.replace("$", "S").replace("\n", "N")
    fields = {
        Backend.SKY: {"infra": f"k8s/{path}", "corpus": Corpus(path, "0" * 64), "workdir": path},
        Backend.K8S: {"corpus": Corpus(f"claim/x{value.replace('..', '')}", "0" * 64)},
    }
    return RenderRequest(
        run_id="r1",
        cell_set="ellavox",
        cells=("a|b|L1|tp1|cp4|g1",),
        group_variable="ELLAVOX_GROUPS",
        groups=("1", "4"),
        owner=value,
        image=parse_image("a/b@sha256:" + "0" * 64),
        token="0" * 32,
        **fields[backend],
    )


def skeleton(tree):
    """The paths of all leaves with their types: everything but the values of the strings."""
    return [(path, type(leaf), None if isinstance(leaf, str) else leaf) for path, leaf in walk(tree)]


@cache
def plain_skeletons(backend):
    rendered = render(backend, request("plain", backend=backend), archive=ARCHIVE)
    return [skeleton(document.tree) for document in rendered.documents]


@pytest.mark.parametrize("backend", Backend)
@given(value=HOSTILE.filter(lambda value: len(value.encode()) <= 4000))
@settings(max_examples=100, deadline=None)
def test_a_hostile_value_differs_from_a_plain_one_in_leaf_values_alone(backend, value):
    rendered = render(backend, request(value, backend=backend), archive=ARCHIVE)
    parsed = list(yaml.safe_load_all(rendered.text))
    assert [skeleton(tree) for tree in parsed] == plain_skeletons(backend)
    # The text says what the tree says, whatever is in it.
    assert parsed == [document.tree for document in rendered.documents]


@given(value=HOSTILE.filter(lambda value: len(value.encode()) <= 4000))
@settings(max_examples=50, deadline=None)
def test_a_task_delivers_a_hostile_value_literally(value):
    asked = request(value, backend=Backend.SKY)
    (tree,) = yaml.safe_load_all(render(Backend.SKY, asked).text)
    assert tree["resources"]["infra"] == asked.infra
    assert tree["workdir"] == asked.workdir
    assert tree["file_mounts"] == {"~/orchestrate-corpus/tokens": asked.corpus.location}


@given(value=HOSTILE.filter(lambda value: len(value.encode()) <= 4000))
@settings(max_examples=50, deadline=None)
def test_a_job_holds_a_hostile_value_in_its_environment_with_every_dollar_doubled(value):
    asked = request(value, backend=Backend.K8S)
    tree = next(iter(yaml.safe_load_all(render(Backend.K8S, asked, archive=ARCHIVE).text)))
    env = {one["name"]: one["value"] for one in tree["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["CORPUS"] == "/corpus/" + asked.corpus.location.removeprefix("claim/").replace("$", "$$")
    assert tree["metadata"]["annotations"]["orchestrate/owner"] == value


RUN_IDS = ["r20260102-030405-0a1b2c", "x", "A.b_c-", "9" * 100]
NO_RUN_IDS = ["a b", "it's", "é", "a/b", "x" * 101, "x" * 200, "", "-a", ".a", "a\n", "\u0661", "\ud800", *NASTY[:17]]


@pytest.mark.parametrize("run_id", [*RUN_IDS, *NO_RUN_IDS])
def test_a_run_id_is_taken_exactly_where_the_node_takes_it(plain, run_id):
    taken = run_id in RUN_IDS
    assert (taken_by_render(plain, run_id), taken_by_the_node(run_id)) == (taken, taken)


def taken_by_render(plain, run_id):
    try:
        return replace(plain, run_id=run_id).run_id == run_id
    except UsageError as error:
        return "--run-id" not in error.cause


def taken_by_the_node(run_id):
    budgets = dict.fromkeys(["load_budget", "compile_budget", "step_budget"])
    options = argparse.Namespace(evidence=Path("no", "such", "folder"), procs=4, lifeline_fd=None, **budgets)
    try:
        return node_job(options, {"CELL_SET": "smoke", "RUN_ID": run_id}).run_id == run_id
    except InputError as error:
        return "RUN_ID" not in str(error)


SCALARS = HOSTILE | st.sampled_from(["#!/bin/sh\n\nset -e\n  x\n", "a\n", "a\n\n", " a\n", "a \nb\n", "\na\n", ""])
TREES = st.dictionaries(
    # Keys are never a user's; PyYAML writes long and odd ones in a form of their own.
    st.from_regex(r"[ -~]{1,60}", fullmatch=True),
    st.recursive(
        SCALARS | st.integers() | st.booleans() | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b/c", "d e", "y"]), inner),
        max_leaves=8,
    ),
    min_size=1,
    max_size=3,
)


@given(TREES)
@settings(deadline=None)
def test_dumping_loses_nothing_and_is_what_the_safe_dumper_writes(tree):
    assert yaml.safe_load(dump(tree)) == tree
    assert dump(tree) == dump_with_pyyaml(tree)


@pytest.mark.parametrize("text", ["y", "N", "on", "1e3", "0o17", "1_000", ".5", "0x1f", "2026-01-02", "1:30", "~", "="])
def test_a_string_that_some_yaml_dialect_reads_as_no_string_is_quoted(text):
    assert dump({"key": text}) == f'key: "{text}"\n'


@pytest.mark.parametrize("option", ["workdir", "harness_mount", "corpus"])
@pytest.mark.parametrize("path", ["/data/$CELL_SET", "/data/${RUN_ID}", "/a\n/b"])
def test_a_path_in_which_skypilot_would_substitute_is_refused(plain, option, path):
    value = Corpus(path) if option == "corpus" else path
    with pytest.raises(UsageError, match="literally"):
        render(Backend.SKY, replace(plain, **{option: value}))


@pytest.mark.parametrize("field", ["owner", "infra", "workdir"])
@pytest.mark.parametrize("value", ["a\0b", "\ud800", "x" * 4097, ""])
def test_a_value_that_its_field_can_not_hold_is_refused(plain, field, value):
    with pytest.raises(UsageError) as caught:
        replace(plain, **{field: value})
    assert caught.value.remedy


@pytest.mark.parametrize("group", ["1 4", "1;id", "$(id)", "", "-1", "1\n", "१"])
def test_a_group_that_is_no_number_is_refused(plain, group):
    with pytest.raises(UsageError, match="group"):
        replace(plain, group_variable="ELLAVOX_GROUPS", groups=("1", group))
