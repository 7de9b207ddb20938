"""What a request asks for, read from its method and path."""

from dataclasses import dataclass

from k8s_emulator.answers import ApiError
from k8s_emulator.resources import BY_PATH, REVIEWS, Resource

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call on objects: `resource` None for a review of access, whose plural is in `review`."""

    verb: str
    resource: Resource | None
    namespace: str
    name: str
    subresource: str
    review: str = ""

    @property
    def permission(self):
        """(verb, group, resource or resource/subresource, namespace, name), as access is asked for."""
        if self.resource is None:
            return None
        plural = "/".join(filter(None, (self.resource.plural, self.subresource)))
        # A namespace is in itself: a Role there may let it be read.
        namespace = self.name if self.resource.plural == "namespaces" else self.namespace
        return (self.verb, self.resource.group, plural, namespace, self.name)

    def as_json(self):
        resource = self.review if self.resource is None else self.permission[2]
        return {"verb": self.verb, "resource": resource, "namespace": self.namespace, "name": self.name}


def parse(method, path, query):
    """The call behind a path below /api or /apis."""
    parts = [part for part in path.split("/") if part]
    if parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    else:
        group, version, rest = parts[1], parts[2], parts[3:]
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    plural = rest[0] if rest else ""
    if REVIEWS.get(plural, ("",))[0] == group and plural in REVIEWS:
        return Call("create", None, namespace, "", "", plural)
    resource = BY_PATH.get((group, version, plural))
    if resource is None:
        raise ApiError(404, "the server could not find the requested resource")
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in resource.subresources:
        raise ApiError(404, "the server could not find the requested resource")
    return Call(_verb(method, name, query), resource, namespace, name, subresource)


def _verb(method, name, query):
    if method == "GET":
        watching = query.get("watch") in {"1", "true", "True"}
        return "watch" if watching else "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    if method not in VERBS:
        raise ApiError(405, f"the server does not allow the method {method}")
    return VERBS[method]
