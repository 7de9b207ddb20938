"""Whatever a run may own on a cluster: looked for, and given back.

Ours is what carries the run's ownership token. A name alone proves nothing: an object of our name with another UID and
without the token is a neighbour's. Every delete has the UID as a precondition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from orchestrate.backends.kubernetes_api import Api, Budget, Deleted, Kind, Object, name_of, uid_of
from orchestrate.backends.kubernetes_client import ApiError
from orchestrate.backends.kubernetes_job import Names, owned_by
from orchestrate.backends.protocol import Answer, Look, Outcome, Resource, Step
from orchestrate.clock import to_wire, utc_now
from orchestrate.render.ownership import PREFIX

__all__ = ["RELEASE_S", "Holdings", "InFlight"]

RELEASE_S = 90.0
"""How long giving back may take: a pod has 60 s from SIGTERM to SIGKILL."""

_LOOK_S = 15.0
_GAP_S = 0.5
_AGAIN_S = 2.0


@dataclass(slots=True)
class InFlight:
    """Creates whose answer nobody got: each may still act until the server gives it up.

    `until` holds a time (seconds since the epoch) for each; an answer of any kind takes it away.
    """

    until: dict[str, float] = field(default_factory=dict)
    now: Callable[[], float] = time.time

    def pending_s(self) -> float:
        """For how long something may still appear."""
        return max((until - self.now() for until in self.until.values()), default=0.0)


@dataclass(slots=True)
class Holdings:
    """Everything of one run in one namespace.

    `known` are the UIDs of what we saw being made: it stays ours when somebody takes its labels away.
    """

    api: Api
    names: Names
    token: str
    in_flight: InFlight
    known: frozenset[str] = frozenset()
    pause: Callable[[float], None] = time.sleep

    def look(self) -> Look:
        """Ask once for every kind by token, and for every name."""
        at = to_wire(utc_now())
        budget = self.api.budget(_LOOK_S)
        asked: list[Answer] = []
        remaining: dict[str, Resource] = {}
        unknown: list[str] = []
        for what, ask in self._questions(budget):
            try:
                found, answer = ask()
            except ApiError as error:
                asked.append(Answer(what, f"unknown: {error}"))
                unknown.append(f"{what}: {error}")
                continue
            asked.append(Answer(what, answer))
            remaining.update((uid_of(each), resource) for each, resource in found)
        pending_s = self.in_flight.pending_s()
        if pending_s > 0:
            unknown.append(f"a create whose answer was lost may still act for {pending_s:.0f}s")
        return Look(at, tuple(asked), tuple(remaining.values()), tuple(unknown))

    def release(self) -> tuple[Step, ...]:
        """Delete the Job, wait until it and its pods are gone, then whatever was left behind without an owner.

        What failed because the API did not answer is tried again until the time is over: an outage may end.
        """
        budget = self.api.budget(RELEASE_S)
        steps: list[Step] = []
        pending_s = self.in_flight.pending_s()
        if pending_s > 0:
            self.pause(min(pending_s, budget.left()))
            steps.append(_step("await-create", self.names.job, Outcome.DONE, "a create without an answer is over"))
        while True:
            outages: list[ApiError] = []
            tried = [
                step for kind in (Kind.JOB, Kind.POD, Kind.CONFIG_MAP) for step in self._release(kind, budget, outages)
            ]
            if not any(error.is_transient for error in outages) or budget.left() <= _AGAIN_S:
                return (*steps, *tried)
            steps.extend(step for step in tried if step.outcome is Outcome.DONE)
            self.pause(_AGAIN_S)

    def _release(self, kind: Kind, budget: Budget, outages: list[ApiError]) -> Iterator[Step]:
        what = f"{kind.singular} of the run in {self.names.namespace}"
        try:
            found = self._found(kind, budget)
        except ApiError as error:
            outages.append(error)
            yield _step(f"find-{kind}", what, Outcome.FAILED, str(error))
            return
        if not found:
            yield _step(f"delete-{kind.singular}", what, Outcome.NOTHING_THERE)
        waiting: list[tuple[Object, str]] = []
        for each in found:
            target = _target(self.names.namespace, each)
            try:
                met = self.api.delete(kind, self.names.namespace, name_of(each), uid_of(each), budget)
            except ApiError as error:
                outages.append(error)
                yield _step(f"delete-{kind.singular}", target, Outcome.FAILED, str(error))
                continue
            if met is Deleted.ASKED:
                waiting.append((each, target))
            else:
                yield _step(f"delete-{kind.singular}", target, Outcome.NOTHING_THERE, f"it is {met}")
        for each, target in waiting:
            left = self._await_gone(kind, each, budget)
            outcome = Outcome.DONE if left is None else Outcome.FAILED
            yield _step(f"delete-{kind.singular}", target, outcome, left or "gone")

    def _await_gone(self, kind: Kind, thing: Object, budget: Budget) -> str | None:
        """None once the API says that it is gone, what is known otherwise when the time is over."""
        left = "it was not asked again"
        while budget.left() > 0:
            try:
                found = self.api.find(kind, self.names.namespace, name_of(thing), budget)
            except ApiError as error:
                left = f"whether it is gone is unknown: {error}"
            else:
                if found is None or uid_of(found) != uid_of(thing):
                    return None
                holds = (found.get("metadata") or {}).get("finalizers") or ()
                left = f"it is still there, finalizers: {', '.join(map(str, holds)) or 'none'}"
            self.pause(min(_GAP_S, budget.left()))
        return left

    def _found(self, kind: Kind, budget: Budget) -> tuple[Object, ...]:
        """By the token, and by name what we know by its UID."""
        found = {uid_of(each): each for each in self._owned(kind, budget)}
        for named, name in self._named():
            thing = self.api.find(kind, self.names.namespace, name, budget) if named is kind else None
            if thing is not None and self._is_ours(thing):
                found.setdefault(uid_of(thing), thing)
        return tuple(found.values())

    def _owned(self, kind: Kind, budget: Budget) -> tuple[Object, ...]:
        path = kind.path(self.names.namespace)
        found = self.api.items(path, budget, labelSelector=f"{PREFIX}token={self.token}")
        return tuple(each for each in found if self._is_ours(each))

    def _is_ours(self, thing: Object) -> bool:
        return owned_by(thing, self.token) or uid_of(thing) in self.known

    def _named(self) -> list[tuple[Kind, str]]:
        return [(Kind.JOB, self.names.job), *((Kind.CONFIG_MAP, name) for name in self.names.config_maps)]

    def _questions(
        self, budget: Budget
    ) -> Iterator[tuple[str, Callable[[], tuple[list[tuple[Object, Resource]], str]]]]:
        namespace = self.names.namespace
        for kind in (Kind.JOB, Kind.POD, Kind.CONFIG_MAP):
            yield f"{kind} with the run's token in {namespace}", lambda kind=kind: self._by_token(kind, budget)  # type: ignore[misc]
        for kind, name in self._named():
            yield (
                f"{kind.singular} {namespace}/{name}",
                lambda kind=kind, name=name: self._by_name(kind, name, budget),  # type: ignore[misc]
            )

    def _by_token(self, kind: Kind, budget: Budget) -> tuple[list[tuple[Object, Resource]], str]:
        found = [(each, self._resource(kind, each)) for each in self._owned(kind, budget)]
        return found, ", ".join(resource.id for _, resource in found) or "none"

    def _by_name(self, kind: Kind, name: str, budget: Budget) -> tuple[list[tuple[Object, Resource]], str]:
        thing = self.api.find(kind, self.names.namespace, name, budget)
        if thing is None:
            return [], "not found"
        if not self._is_ours(thing):
            return [], f"another object has that name (UID {uid_of(thing)}): not of this run"
        resource = self._resource(kind, thing)
        return [(thing, resource)], f"there: {resource.id}"

    def _resource(self, kind: Kind, thing: Object) -> Resource:
        return Resource(kind.singular, _target(self.names.namespace, thing))


def _target(namespace: str, thing: Object) -> str:
    return f"{namespace}/{name_of(thing)} uid {uid_of(thing)}"


def _step(step: str, target: str, outcome: Outcome, detail: str = "") -> Step:
    return Step(step, target, outcome, to_wire(utc_now()), detail)
