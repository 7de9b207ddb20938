"""What a run asks of a Kubernetes API server: every question within a budget, and twice only where that is harmless.

Reading is repeated, and so is a delete with a UID precondition. A create is sent once: `created` says how a lost answer
is made up for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrate.backends.kubernetes_client import ApiError, Exit, Transport

__all__ = ["CREATE_S", "Api", "Budget", "Deleted", "Kind", "Object", "labels_of", "name_of", "uid_of"]

Object = Mapping[str, Any]
"""One object of the API, as plain JSON."""

CREATE_S = 10.0
"""A create is over after so many seconds, on the server as well: it is told so."""

_CALL_S = 10.0
_TRIES = 4
_PAGE = 500


class Kind(StrEnum):
    """The kinds that a run makes. The value is the plural of the API."""

    JOB = "jobs"
    POD = "pods"
    CONFIG_MAP = "configmaps"

    @property
    def singular(self) -> str:
        """For people and for `Resource.kind`."""
        return self.value.removesuffix("s")

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """The path of a collection (of the whole cluster without a namespace) or of one object."""
        group = "/apis/batch/v1" if self is Kind.JOB else "/api/v1"
        within = "" if namespace is None else f"/namespaces/{namespace}"
        return f"{group}{within}/{self.value}" + ("" if name is None else f"/{name}")


class Deleted(StrEnum):
    """What a delete met."""

    ASKED = "asked"
    NOT_THERE = "not-there"
    ANOTHER = "another"


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds that several calls share; `end` is a time of `clock`."""

    end: float
    clock: Callable[[], float]

    def left(self) -> float:
        """How much is left, never less than 0."""
        return max(0.0, self.end - self.clock())


class Api:
    """One API server, asked within budgets. Errors are `ApiError`, after the last try."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.transport = transport
        self._clock = clock
        self._sleep = sleep

    def budget(self, seconds: float) -> Budget:
        """`seconds` from now."""
        return Budget(self._clock() + seconds, self._clock)

    def get(self, path: str, budget: Budget, *, query: Mapping[str, str] | None = None, tries: int = _TRIES) -> Object:
        """One object."""
        return _parsed(self._repeated("GET", path, query or {}, None, budget, tries))

    def find(self, kind: Kind, namespace: str, name: str, budget: Budget) -> Object | None:
        """One object, None where the server says that there is none of that name."""
        try:
            return self.get(kind.path(namespace, name), budget)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, budget: Budget, *, tries: int = _TRIES, **selectors: str) -> tuple[Object, ...]:
        """Every object of a collection that `labelSelector` and `fieldSelector` select, page by page.

        A page that has expired (410) means that the pages before it are old: all are asked for anew.
        """
        for _ in range(3):
            found: list[Object] = []
            query = {"limit": str(_PAGE), **selectors}
            while True:
                try:
                    answer = self.get(path, budget, query=query, tries=tries)
                except ApiError as error:
                    if error.status == 410:
                        break
                    raise
                found.extend(answer.get("items") or ())
                rest = (answer.get("metadata") or {}).get("continue")
                if not rest:
                    return tuple(found)
                query["continue"] = str(rest)
        raise ApiError(0, "Expired", f"{path} changes faster than it can be listed")

    def text(self, path: str, budget: Budget, query: Mapping[str, str]) -> str:
        """What is no JSON: a log."""
        return self._repeated("GET", path, query, None, budget, 1)

    def post(self, path: str, body: Object, budget: Budget) -> Object:
        """A create, sent once; the server gives it up after `CREATE_S` too."""
        seconds = min(CREATE_S, budget.left())
        query = {"timeout": f"{max(1, round(seconds))}s"}
        return _parsed(self.transport.send("POST", path, query, body, max(0.1, seconds)))

    def delete(self, kind: Kind, namespace: str, name: str, uid: str, budget: Budget) -> Deleted:
        """Delete exactly the object of that UID, and what it owns before itself."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": uid},
        }
        try:
            self._repeated("DELETE", kind.path(namespace, name), {}, body, budget, _TRIES)
        except ApiError as error:
            if error.status == 404:
                return Deleted.NOT_THERE
            if error.status == 409 and self._is_another(kind, namespace, name, uid, budget):
                return Deleted.ANOTHER
            raise
        return Deleted.ASKED

    def run(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        write: Callable[[bytes], None],
        budget: Budget,
    ) -> Exit:
        """One command in a container."""
        return self.transport.run(namespace, pod, container, command, write, max(0.1, budget.left()))

    def may(self, namespace: str, verb: str, resource: str, budget: Budget, *, group: str = "") -> bool:
        """Whether we are allowed to; the review itself is everybody's right, and changes nothing."""
        resource, _, subresource = resource.partition("/")
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
        if subresource:
            attributes["subresource"] = subresource
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = _parsed(self._repeated("POST", path, {}, body, budget, _TRIES))
        return bool((answer.get("status") or {}).get("allowed"))

    def _is_another(self, kind: Kind, namespace: str, name: str, uid: str, budget: Budget) -> bool:
        found = self.find(kind, namespace, name, budget)
        return found is None or uid_of(found) != uid

    def _repeated(self, method: str, path: str, query: Mapping[str, str], body: Any, budget: Budget, tries: int) -> str:
        for attempt in range(tries):
            seconds = min(_CALL_S, budget.left())
            if seconds <= 0:
                raise ApiError(0, "OutOfTime", "there is no time left to ask")
            try:
                return self.transport.send(method, path, query, body, seconds)
            except ApiError as error:
                wait_s = error.retry_after_s if error.retry_after_s is not None else 0.25 * 2**attempt
                if not error.is_transient or attempt + 1 == tries or wait_s >= budget.left():
                    raise
                self._sleep(wait_s)
        raise AssertionError("the last try returns or raises")


def uid_of(thing: Object) -> str:
    """The UID that tells an object from a later one of the same name."""
    return str((thing.get("metadata") or {}).get("uid") or "")


def name_of(thing: Object) -> str:
    """The name of an object."""
    return str((thing.get("metadata") or {}).get("name") or "")


def labels_of(thing: Object) -> Mapping[str, str]:
    """The labels of an object."""
    return (thing.get("metadata") or {}).get("labels") or {}


def _parsed(text: str) -> Object:
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise ApiError(0, "NotJson", f"the answer is no JSON: {text[:100]!r}") from error
    if not isinstance(tree, dict):
        raise ApiError(0, "NotJson", f"the answer is no object: {text[:100]!r}")
    return tree
