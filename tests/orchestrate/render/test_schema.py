"""The fast look at a document agrees with jsonschema's thorough one."""

from __future__ import annotations

import copy
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrate.errors import RenderError
from orchestrate.render import check_manifest
from orchestrate.render.document import walk
from orchestrate.render.schema import _manifest_schema, _task_schemas
from orchestrate.render.validity import Validity

GOLDEN = Path(__file__).parents[2] / "golden" / "render"
TASK = yaml.safe_load((GOLDEN / "cp2-options.sky.yaml").read_text())
JOB, CONFIG_MAP = yaml.safe_load_all((GOLDEN / "ellavox-launched.k8s.yaml").read_text())
CASES = {
    "task": (_task_schemas()[0], TASK),
    "resources": (_task_schemas()[1], TASK["resources"]),
    "job": (_manifest_schema("job-batch-v1.json"), JOB),
    "config map": (_manifest_schema("configmap-v1.json"), CONFIG_MAP),
}
VALUES = st.sampled_from([None, True, False, 0, 1, -1, 2.5, "", "x", "none", "NONE", "a\nb", [], ["x"], {}, {"x": "y"}])
PATHS = {name: [path for path, _ in walk(tree)] for name, (_, tree) in CASES.items()}


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(deadline=None)
def test_a_changed_document_holds_or_fails_for_both(name, data):
    schema, tree = CASES[name]
    changed = copy.deepcopy(tree)
    path = data.draw(st.sampled_from(PATHS[name]))
    path = path[: data.draw(st.integers(1, len(path)))]
    spot = changed
    for part in path[:-1]:
        spot = spot[part]
    key = data.draw(st.sampled_from([path[-1], "unknown", "envs"])) if isinstance(spot, dict) else path[-1]
    spot[key] = data.draw(VALUES)
    assert schema.validity.holds(changed) == schema.explain().is_valid(changed)


@pytest.mark.parametrize("name", CASES)
def test_the_unchanged_document_holds(name):
    schema, tree = CASES[name]
    assert schema.validity.holds(tree)
    assert schema.explain().is_valid(tree)


def test_true_is_not_taken_for_the_one_that_was_valid():
    validity = Validity(jsonschema.Draft7Validator({"properties": {"a": {"type": "integer"}}}), {})
    assert validity.holds({"a": 1})
    assert not validity.holds({"a": True})


def test_what_was_valid_under_one_subschema_is_not_so_under_another():
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    validity = Validity(jsonschema.Draft7Validator(schema), {})
    assert validity.holds({"a": 1})
    assert not validity.holds({"b": 1})


def test_a_document_that_was_invalid_stays_so():
    for _ in range(2):
        with pytest.raises(RenderError):
            check_manifest(JOB | {"unknown": 1}, "x")
