"""What the server says about itself, as far as `kubectl` needs it."""

from k8s_emulator.resources import RESOURCES, REVIEWS

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
VERSION = {
    "major": "1", "minor": "36", "gitVersion": "v1.36.0-emulated", "gitCommit": "0" * 40, "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z", "goVersion": "go0", "compiler": "gc", "platform": "linux/amd64",
}  # fmt: skip


def answer(path):
    """The document at a discovery path, None where there is none."""
    match [part for part in path.split("/") if part]:
        case ["version"]:
            return VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in _groups()]}
        case ["apis", group] if group in _groups():
            return {"apiVersion": "v1", "kind": "APIGroup", **_group(group)}
        case ["api", "v1"]:
            return _resources("")
        case ["apis", group, version] if _groups().get(group) == version:
            return _resources(group)
        case ["openapi", "v3"]:
            return {"paths": {}}
        case ["livez" | "readyz" | "healthz"]:
            return {}
    return None


def _groups():
    """Version by group, without the core group."""
    found = {resource.group: resource.version for resource in RESOURCES if resource.group}
    return found | {group: "v1" for group, _ in REVIEWS.values()}


def _group(name):
    version = {"groupVersion": f"{name}/{_groups()[name]}", "version": _groups()[name]}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resources(group):
    entries = []
    for resource in RESOURCES:
        if resource.group == group:
            entries.append({
                "name": resource.plural, "singularName": resource.kind.lower(), "namespaced": resource.namespaced,
                "kind": resource.kind, "verbs": VERBS, "shortNames": list(resource.short),
                "categories": ["all"] if resource.plural in {"pods", "jobs", "cronjobs", "services"} else [],
            })  # fmt: skip
            entries += [
                {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced,
                 "kind": resource.kind, "verbs": ["get", "create"]}
                for name in resource.subresources
            ]  # fmt: skip
    entries += [
        {"name": plural, "singularName": kind.lower(), "namespaced": False, "kind": kind, "verbs": ["create"]}
        for plural, (owner, kind) in REVIEWS.items()
        if owner == group
    ]
    name = f"{group}/{_groups()[group]}" if group else "v1"
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": entries}
