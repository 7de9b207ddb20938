"""Creating what a run consists of, and waiting until its container runs or more waiting can not help.

A create whose answer is lost is looked for by name and token: it is ours, or it is not there and is sent again under
the same name, so that it can not be there twice. An object of our name that is somebody else's is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrate.backends.kubernetes_api import CREATE_S, Api, Kind, Object, name_of, uid_of
from orchestrate.backends.kubernetes_census import InFlight
from orchestrate.backends.kubernetes_client import ApiError
from orchestrate.backends.kubernetes_job import Wanted, owned_by
from orchestrate.backends.kubernetes_preflight import refused, refused_by
from orchestrate.backends.kubernetes_watch import Watch
from orchestrate.backends.protocol import Fact
from orchestrate.capacity.kubernetes import refusal
from orchestrate.capacity.seen import Seen, condition, started
from orchestrate.clock import to_wire, utc_now
from orchestrate.errors import BackendError, UnsatisfiableError

__all__ = ["CAPS", "Creation", "Start", "caps_read"]

CAPS = ("activeDeadlineSeconds", "ttlSecondsAfterFinished", "backoffLimit")
"""Fields of a Job that end it, and remove it, without us."""

_CREATE_WINDOW_S = 30.0
_CLOCK_SLACK_S = 1.0
_LOOK_S = 15.0
_CLUSTER_EVERY_S = 30.0
_YOUNG_S = 30.0


@dataclass(slots=True)
class Creation:
    """Creates objects of a run, each once.

    Args:
        tell: takes a fact for the journal; `pause(0)` then puts it on the disk.
    """

    api: Api
    chosen: Wanted
    token: str
    in_flight: InFlight
    tell: Callable[[Fact], None]
    pause: Callable[[float], None]

    def create(self, kind: Kind, body: Object) -> Object:
        """`body` as the API server has it. `BackendError` (or a refusal) where it can not be made or known."""
        what = f"{kind.singular}/{name_of(body)}"
        window = self.api.budget(_CREATE_WINDOW_S)
        while True:
            until = self.in_flight.now() + CREATE_S + _CLOCK_SLACK_S
            self.in_flight.until[what] = until
            self.tell({"kind": "asking", "what": what, "until": until})
            self.pause(0)
            try:
                made = self.api.post(kind.path(self.chosen.names.namespace), body, self.api.budget(CREATE_S))
            except ApiError as error:
                if not error.may_have_acted:
                    self._answered(what)
                found = self._adopt(kind, name_of(body), error)
                if found is None:
                    if window.left() <= 0 or not (error.is_transient or error.status == 409):
                        raise refused_by(error, self.chosen.asked, self.chosen.names.where) from error
                    self.pause(min(error.retry_after_s or 1.0, max(0.1, window.left())))
                    continue
                made = found
            self._answered(what)
            self.tell({"kind": "made", "what": kind.singular, "name": name_of(made), "uid": uid_of(made)})
            self.pause(0)
            return made

    def _adopt(self, kind: Kind, name: str, error: ApiError) -> Object | None:
        """What a create without a good answer made; None where nothing of that name is there, or nobody can tell."""
        if not (error.may_have_acted or error.status == 409):
            return None
        try:
            found = self.api.find(kind, self.chosen.names.namespace, name, self.api.budget(_LOOK_S))
        except ApiError:
            return None
        if found is not None and not owned_by(found, self.token):
            self._answered(f"{kind.singular}/{name}")
            raise BackendError(
                f"{self.chosen.names.where}: there is a {kind.singular} {name!r} already, and it is not of this run "
                f"(UID {uid_of(found)}); it was left alone",
                remedy="launch again: the next run has another name",
                answer=str(error),
            )
        return found

    def _answered(self, what: str) -> None:
        self.in_flight.until.pop(what, None)
        self.tell({"kind": "answered", "what": what})


def caps_read(sent: Object, made: Object, *, accept_no_cap: bool) -> dict[str, Any]:
    """The caps as the API server gave the Job back.

    Raises `UnsatisfiableError` where it changed one, unless that is accepted: a policy of the cluster may do so.
    """
    read = {name: (made.get("spec") or {}).get(name) for name in CAPS}
    changed = [f"{name} is {read[name]}, not {sent['spec'][name]}" for name in CAPS if read[name] != sent["spec"][name]]
    if changed and not accept_no_cap:
        raise UnsatisfiableError(
            f"the cluster changed the caps of the Job: {', '.join(changed)}",
            remedy="ask who runs the cluster, or give --accept-no-cap to run without them",
        )
    return read


@dataclass(slots=True)
class Start:
    """Waits for a created Job's container."""

    watch: Watch
    asked: Mapping[str, Any]
    where: str
    pause: Callable[[float], None]
    clock: Callable[[], float]
    _cluster_at: float = field(default=float("-inf"))

    def wait(self, seconds: float) -> Seen:
        """The look that found the container started, or ended; a refusal is raised as `refused` makes it."""
        began = self.clock()
        while True:
            waited_s = self.clock() - began
            over = waited_s >= seconds
            try:
                seen = self._look()
            except ApiError as error:
                if over or not error.is_transient:
                    raise refused_by(error, self.asked, self.where) from error
            else:
                case = None if started(seen) else refusal(
                    seen,
                    asked=self.asked,
                    where=self.where,
                    at=to_wire(utc_now()),
                    waited_s=waited_s,
                    out_of_time=over or _is_terminal(seen),
                )  # fmt: skip
                if case is not None:
                    raise refused(case)
                if started(seen) or over or _is_terminal(seen):
                    return seen
            self.pause(min(1.0 if waited_s < _YOUNG_S else 3.0, max(0.1, seconds - waited_s)))

    def _look(self) -> Seen:
        cluster = self.clock() - self._cluster_at >= _CLUSTER_EVERY_S
        seen = self.watch.look(self.watch.api.budget(_LOOK_S), events=True, cluster=cluster)
        if cluster:
            self._cluster_at = self.clock()
        return seen


def _is_terminal(seen: Seen) -> bool:
    return seen.job_gone or bool(condition(seen.job, "Failed") or condition(seen.job, "Complete"))
