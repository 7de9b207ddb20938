"""The patches that a server takes."""

import copy
import json

from k8s_emulator.answers import ApiError

KEYS = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath",
    "ports": "containerPort", "ownerReferences": "uid", "conditions": "type",
}  # fmt: skip
"""The lists of a strategic merge that are merged by a key; other lists are replaced."""
SETS = {"finalizers"}


def apply(content_type, tree, body):
    """`tree` with the patch `body` applied, by the content type of the request."""
    patch = json.loads(body)
    match content_type:
        case "application/merge-patch+json":
            return merge(tree, patch)
        case "application/strategic-merge-patch+json":
            return merge(tree, patch, strategic=True)
        case "application/json-patch+json":
            return operations(tree, patch)
    raise ApiError(415, f"the body of the request was in an unknown format: {content_type}")


def merge(tree, patch, *, strategic=False, field=""):
    """RFC 7386, or the strategic kind of it."""
    if strategic and isinstance(patch, list) and isinstance(tree, list):
        if field in SETS:
            return [*tree, *(item for item in patch if item not in tree)]
        if (key := KEYS.get(field)) is not None:
            return _merge_list(tree, patch, key)
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    out = dict(tree) if isinstance(tree, dict) else {}
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            out.pop(name, None)
        else:
            out[name] = merge(out.get(name), value, strategic=strategic, field=name)
    return out


def operations(tree, patch):
    """RFC 6902: add, remove, replace, test."""
    tree = copy.deepcopy(tree)
    for operation in patch:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        holder = tree
        try:
            for part in parts[:-1]:
                holder = holder[int(part) if isinstance(holder, list) else part]
            last = parts[-1]
            if isinstance(holder, list) and last != "-":
                last = int(last)
            match operation["op"]:
                case "add" if isinstance(holder, list):
                    holder.insert(len(holder) if last == "-" else last, operation["value"])
                case "add" | "replace":
                    holder[last] = operation["value"]
                case "remove":
                    del holder[last]
                case "test":
                    if holder[last] != operation["value"]:
                        raise ApiError(422, f"testing value {operation['path']} failed")
        except (KeyError, IndexError) as error:
            raise ApiError(422, f"the server rejected our request due to an error in our request: {error}") from error
    return tree


def _merge_list(tree, patch, key):
    out = {item.get(key): item for item in tree}
    for item in patch:
        if item.get("$patch") == "delete":
            out.pop(item.get(key), None)
        else:
            out[item.get(key)] = merge(out.get(item.get(key), {}), item, strategic=True)
    return list(out.values())
