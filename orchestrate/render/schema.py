"""Rendered documents against the schemas of those who will read them.

SkyPilot's own task and resources schemas are beside this module, exported from the pinned release, so that checking
needs no import of SkyPilot. Kubernetes' OpenAPI schemas, in their strict form (an unknown field is an error), come
with the package kubernetes-validate. Schemas are loaded once a process; jsonschema says what is wrong with a document,
once `Validity` has found that something is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jsonschema
from jsonschema.protocols import Validator
from referencing import Registry, Resource

from orchestrate.errors import RenderError
from orchestrate.render.document import Tree
from orchestrate.render.validity import Validity

__all__ = ["KUBERNETES_VERSION", "SKYPILOT_VERSION", "check_manifest", "check_task"]

SKYPILOT_VERSION = "0.14.1"
KUBERNETES_VERSION = "1.36"

_KINDS = {("batch/v1", "Job"): "job-batch-v1.json", ("v1", "ConfigMap"): "configmap-v1.json"}


def check_task(tree: Tree, document: str) -> None:
    """`tree` holds SkyPilot's schema of a task; `RenderError` names the document and the path inside it otherwise."""
    task, resources_schema = _task_schemas()
    _check(task, tree, document, ())
    if "resources" in tree:
        _check(resources_schema, tree["resources"], document, ("resources",))


def check_manifest(tree: Tree, document: str) -> None:
    """`tree` holds the strict Kubernetes schema of its kind; `RenderError` otherwise."""
    kind = (tree.get("apiVersion"), tree.get("kind"))
    if kind not in _KINDS:
        known = ", ".join(f"{api_version} {name}" for api_version, name in _KINDS)
        raise RenderError(
            f"{document}: apiVersion and kind are {kind[0]!r} and {kind[1]!r}", remedy=f"only {known} are rendered"
        )
    _check(_manifest_schema(_KINDS[kind]), tree, document, ())


@dataclass(frozen=True, slots=True)
class _Schema:
    """`name` is for people; `explain` makes the validator that says what is wrong, which is slow to make and to run."""

    name: str
    validity: Validity
    explain: Callable[[], Validator]


def _check(schema: _Schema, tree: Any, document: str, prefix: tuple[str, ...]) -> None:
    if schema.validity.holds(tree):
        return
    error = jsonschema.exceptions.best_match(schema.explain().iter_errors(tree))
    if error is None:
        return
    path = ".".join(str(part) for part in (*prefix, *error.absolute_path)) or "the top level"
    message = error.message if len(error.message) <= 300 else error.message[:300] + "..."
    raise RenderError(
        f"{document}: at {path}: {message}",
        remedy=f"correct that field in the template, or the option that sets it, to hold {schema.name}",
    )


@cache
def _task_schemas() -> tuple[_Schema, _Schema]:
    text = resources.files("orchestrate.render").joinpath("schemas", f"skypilot-task-{SKYPILOT_VERSION}.json")
    schemas = json.loads(text.read_text(encoding="utf-8"))
    # SkyPilot validates with draft 7 whatever `$schema` says, plus a keyword of its own (sky/utils/validator.py).
    extend: Any = jsonschema.validators.extend
    dialect = extend(jsonschema.Draft7Validator, {"case_insensitive_enum": _case_insensitive_enum})
    name = f"SkyPilot {SKYPILOT_VERSION}'s task schema"
    task, resources_schema = dialect(schemas["task"]), dialect(schemas["resources"])
    return (
        _Schema(name, Validity(task, {}), lambda: task),
        _Schema(name, Validity(resources_schema, {}), lambda: resources_schema),
    )


@cache
def _manifest_schema(filename: str) -> _Schema:
    definitions, schema = _kubernetes_json("_definitions.json"), _kubernetes_json(filename)

    @cache
    def explain() -> Validator:
        registry: Registry[Any] = Registry()
        for contents in (definitions, schema):
            registry = Resource.from_contents(contents) @ registry
        return jsonschema.Draft202012Validator(schema, registry=registry.crawl())

    name = f"the strict schema of Kubernetes {KUBERNETES_VERSION}"
    return _Schema(name, Validity(jsonschema.Draft202012Validator(schema), definitions["$defs"]), explain)


@cache
def _kubernetes_json(filename: str) -> dict[str, Any]:
    folder = resources.files("kubernetes_validate").joinpath("kubernetes-json-schema")
    strict = folder.joinpath(f"v{KUBERNETES_VERSION}.0-local-strict", filename)
    contents: dict[str, Any] = json.loads(strict.read_text(encoding="utf-8"))
    return contents


def _case_insensitive_enum(_validator: Any, enums: list[str], instance: Any, _schema: Any) -> Iterator[Any]:
    if not isinstance(instance, str) or instance.lower() not in {enum.lower() for enum in enums}:
        yield jsonschema.ValidationError(f"{instance!r} is not one of {enums!r}")
