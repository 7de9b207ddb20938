"""Whether a tree holds a schema, as fast as the many documents of one session need it.

jsonschema spends most of its time on knowing where an error would be. This looks only for whether there is one: it
walks the four keywords that lead into a tree itself and leaves all others to jsonschema's own functions. A (subschema,
subtree) pair that was found valid is not looked at again, since validity depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Validity"]

_MAX_REMEMBERED = 16384


class Validity:
    """Decides whether trees of plain values hold one schema.

    `validator` is jsonschema's, made for the schema. `definitions` are what the last part of a `$ref` names; a schema
    that refers to anything else is not for this class. Trees are compared by `repr`, which tells `True` from `1`.
    """

    def __init__(self, validator: Any, definitions: Mapping[str, Any]) -> None:
        self._validator = validator
        self._definitions = definitions
        self._valid: set[tuple[int, str]] = set()

    def holds(self, tree: Any) -> bool:
        """Whether `tree` holds the schema."""
        return self._holds(tree, self._validator.schema)

    def _holds(self, tree: Any, schema: Any) -> bool:
        if isinstance(schema, bool):
            return schema
        key = (id(schema), repr(tree))
        if key in self._valid:
            return True
        if not all(self._keyword_holds(keyword, value, tree, schema) for keyword, value in schema.items()):
            return False
        if len(self._valid) >= _MAX_REMEMBERED:
            self._valid.clear()
        self._valid.add(key)
        return True

    def _keyword_holds(self, keyword: str, value: Any, tree: Any, schema: Mapping[str, Any]) -> bool:
        match keyword:
            case "$ref":
                return self._holds(tree, self._definitions[value.rpartition("/")[2]])
            case "properties" if isinstance(tree, dict):
                return all(self._holds(tree[name], value[name]) for name in tree if name in value)
            case "additionalProperties" if isinstance(tree, dict) and "patternProperties" not in schema:
                known = schema.get("properties", {})
                return all(self._holds(tree[name], value) for name in tree if name not in known)
            case "items" if isinstance(tree, list) and isinstance(value, dict):
                return all(self._holds(item, value) for item in tree)
            case _:
                check = self._validator.VALIDATORS.get(keyword)
                return check is None or next(iter(check(self._validator, value, tree, schema) or ()), None) is None
