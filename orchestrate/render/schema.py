"""Rendered documents against the schemas of those who will read them.

SkyPilot's own task and resources schemas are beside this module, exported from the pinned release, so that checking
needs no import of SkyPilot. Kubernetes' OpenAPI schemas, in their strict form (an unknown field is an error), come
with the package kubernetes-validate. Validators are compiled once a process, and a subtree that was found valid under
a subschema is not looked at again under the same one: validity depends on nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

import jsonschema
from jsonschema.protocols import Validator
from referencing import Registry, Resource

from orchestrate.errors import RenderError
from orchestrate.render.document import Tree

__all__ = ["KUBERNETES_VERSION", "SKYPILOT_VERSION", "check_manifest", "check_task"]

SKYPILOT_VERSION = "0.14.1"
KUBERNETES_VERSION = "1.36"

_MAX_REMEMBERED = 8192
_KINDS = {("batch/v1", "Job"): "job-batch-v1.json", ("v1", "ConfigMap"): "configmap-v1.json"}


def check_task(tree: Tree, document: str) -> None:
    """`tree` holds SkyPilot's schema of a task; `RenderError` names the document and the path inside it otherwise."""
    task, resources_schema = _task_validators()
    schema = f"SkyPilot {SKYPILOT_VERSION}'s task schema"
    _check(task, tree, document, (), schema)
    if "resources" in tree:
        _check(resources_schema, tree["resources"], document, ("resources",), schema)


def check_manifest(tree: Tree, document: str) -> None:
    """`tree` holds the strict Kubernetes schema of its kind; `RenderError` otherwise."""
    kind = (tree.get("apiVersion"), tree.get("kind"))
    if kind not in _KINDS:
        known = ", ".join(f"{api_version} {name}" for api_version, name in _KINDS)
        raise RenderError(
            f"{document}: apiVersion and kind are {kind[0]!r} and {kind[1]!r}", remedy=f"only {known} are rendered"
        )
    schema = f"the strict schema of Kubernetes {KUBERNETES_VERSION}"
    _check(_manifest_validator(_KINDS[kind]), tree, document, (), schema)


def _check(validator: Validator, tree: Any, document: str, prefix: tuple[str, ...], schema: str) -> None:
    error = jsonschema.exceptions.best_match(validator.iter_errors(tree))
    if error is None:
        return
    path = ".".join(str(part) for part in (*prefix, *error.absolute_path)) or "the top level"
    message = error.message if len(error.message) <= 300 else error.message[:300] + "..."
    raise RenderError(
        f"{document}: at {path}: {message}",
        remedy=f"correct that field in the template, or the option that sets it, to hold {schema}",
    )


@cache
def _task_validators() -> tuple[Validator, Validator]:
    text = resources.files("orchestrate.render").joinpath("schemas", f"skypilot-task-{SKYPILOT_VERSION}.json")
    schemas = json.loads(text.read_text(encoding="utf-8"))
    # SkyPilot validates with draft 7 whatever `$schema` says, plus a keyword of its own (sky/utils/validator.py).
    validator = _remembering(jsonschema.Draft7Validator, {"case_insensitive_enum": _case_insensitive_enum})
    return validator(schemas["task"]), validator(schemas["resources"])


@cache
def _manifest_validator(filename: str) -> Validator:
    folder = resources.files("kubernetes_validate").joinpath("kubernetes-json-schema")
    strict = folder.joinpath(f"v{KUBERNETES_VERSION}.0-local-strict")
    registry: Registry[Any] = Registry()
    for name in ("_definitions.json", filename):
        contents = json.loads(strict.joinpath(name).read_text(encoding="utf-8"))
        registry = Resource.from_contents(contents) @ registry
    validator: Validator = _remembering(jsonschema.Draft202012Validator, {})(contents, registry=registry.crawl())
    return validator


def _remembering(base: Any, keywords: dict[str, Any]) -> Any:
    """A validator class like `base` that descends into each valid (subschema, subtree) pair once.

    Trees are compared by `repr`, which tells `True` from `1`. A subschema is an object of the validator's own schema
    and lives as long as the memory of it, so its `id` names it.
    """
    seen: set[tuple[int, str]] = set()

    def descend(validator: Any, instance: Any, schema: Any, path: str | int, schema_path: Any = None) -> Iterator[Any]:
        key = (id(schema), repr(instance))
        if key in seen:
            return
        valid = True
        for error in validator.descend(instance, schema, path=path, schema_path=schema_path):
            valid = False
            yield error
        if valid:
            if len(seen) >= _MAX_REMEMBERED:
                seen.clear()
            seen.add(key)

    def properties(validator: Any, schemas: Any, instance: Any, _schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "object"):
            for name, schema in schemas.items():
                if name in instance:
                    yield from descend(validator, instance[name], schema, name, name)

    def items(validator: Any, schema: Any, instance: Any, _schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "array"):
            for index, item in enumerate(instance):
                yield from descend(validator, item, schema, index)

    extend: Any = jsonschema.validators.extend
    return extend(base, {"properties": properties, "items": items, **keywords})


def _case_insensitive_enum(_validator: Any, enums: list[str], instance: Any, _schema: Any) -> Iterator[Any]:
    if not isinstance(instance, str) or instance.lower() not in {enum.lower() for enum in enums}:
        yield jsonschema.ValidationError(f"{instance!r} is not one of {enums!r}")
