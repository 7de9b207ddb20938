"""Whether a run can ever come true through SkyPilot, what the place is like, and what would end the run without us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrate.backends.protocol import Preflight, Request
from orchestrate.backends.skypilot_answers import failed
from orchestrate.backends.skypilot_availability import GpuCount, check_fits, gpu_counts, summed
from orchestrate.backends.skypilot_calls import Calls
from orchestrate.backends.skypilot_refusals import Asked, refused
from orchestrate.backends.skypilot_settings import SkySettings
from orchestrate.backends.slurm_login import SlurmLogin
from orchestrate.errors import BackendError, UnsatisfiableError
from orchestrate.render.rendered import Rendered

__all__ = ["PreflightCheck", "caps_of"]

REQUEST_S = 300.0
"""A local server that has just been started is a minute or more at its first request, and several on a busy machine."""


@dataclass(frozen=True, slots=True)
class PreflightCheck:
    """The questions of the admission, asked one after the other; creates nothing."""

    calls: Calls
    settings: SkySettings
    login: SlurmLogin | None
    asked: Asked

    def run(self, request: Request, rendered: Rendered) -> Preflight:
        """Every question, the cheapest first. Raises `UnsatisfiableError`, or `BackendError` for an outage."""
        if request.corpora_not_given:
            raise UnsatisfiableError(
                f"the cells read a private corpus that was not given: {', '.join(request.corpora_not_given)}",
                remedy="name it with --corpus and --corpus-sha256",
            )
        tree = rendered.documents[0].tree
        server = self._ask("its API server", self.calls.sdk.server)
        kind = self.settings.kind
        can = not kind or self._ask("what its infra can do", lambda: self.calls.sdk.can_autodown(kind))
        caps = caps_of(self.settings, tree, request, can_autodown=can)
        task = self._parsed(tree)
        self._check_infra()
        counts, blind = self._counts()
        facts: dict[str, Any] = {
            "infra": self.settings.infra or "any",
            "server": dict(server),
            "manifest_sha256": rendered.documents[0].sha256,
            "warnings": list(rendered.warnings),
        }
        if counts is not None:
            check_fits(counts, self.settings, self.asked)
            found = summed(counts, self.settings, self.login)
            facts["gpus"] = {"kind": found.kind, "total": found.total, "free": found.free, "source": found.source}
        self._optimize(task)
        if blind is not None:
            raise failed("looking for GPUs", blind) from blind
        allocated = str(self.settings.accelerators)
        return Preflight(request.device, facts, caps, {"provider": "sky", "infra": facts["infra"], "asked": allocated})

    def _counts(self) -> tuple[tuple[GpuCount, ...] | None, Exception | None]:
        """GPUs node by node, or why they can not be counted: of a place that there is not, the optimizer tells."""
        try:
            return gpu_counts(self.settings, self.calls, self.login), None
        except BackendError:
            raise
        except Exception as error:  # noqa: BLE001  # SkyPilot's exceptions have no common base
            return None, error

    def _parsed(self, tree: Mapping[str, Any]) -> Any:
        try:
            return self.calls.call("parsing the task", lambda: self.calls.sdk.parse(tree))
        except BackendError:
            raise
        except Exception as error:
            raise UnsatisfiableError(
                f"SkyPilot does not take the task: {type(error).__name__}: {error}",
                remedy="correct the option that it names",
                answer=str(error)[:4000],
            ) from error

    def _check_infra(self) -> None:
        kind = self.settings.kind
        if not kind or kind in self._enabled():
            return
        # The server remembers its last check; a new one has made none.
        calls = self.calls
        self._asked("checking its infra", lambda: calls.result("infra", lambda: calls.sdk.check(kind), REQUEST_S))
        enabled = self._enabled()
        if kind not in enabled:
            raise UnsatisfiableError(
                f"SkyPilot's server has no access to {kind}; it has {', '.join(enabled) or 'no infra'}",
                remedy=f"set it up and run `sky check {kind}`, or name another --infra",
            )

    def _enabled(self) -> list[str]:
        calls = self.calls
        found = self._asked("asking for its infras", lambda: calls.result("infras", calls.sdk.enabled_infra, REQUEST_S))
        return sorted(str(name).lower() for name in found or ())

    def _optimize(self, task: Any) -> None:
        try:
            self.calls.result("placing the task", lambda: self.calls.sdk.optimize(task), REQUEST_S)
        except BackendError:
            raise
        except Exception as error:
            raise refused(error, self.asked) from error

    def _ask(self, what: str, question: Any) -> Any:
        return self._asked(what, lambda: self.calls.call(what, question))

    def _asked(self, what: str, question: Any) -> Any:
        try:
            return question()
        except BackendError:
            raise
        except Exception as error:
            raise failed(what, error) from error


def caps_of(settings: SkySettings, tree: Mapping[str, Any], request: Request, *, can_autodown: bool) -> dict[str, Any]:
    """What ends the run without us, as it is rendered into the task; `can_autodown` is what SkyPilot says of the infra.

    Raises `UnsatisfiableError` where the infra has no such cap and `--accept-no-cap` was not given.
    """
    resources, config = tree["resources"], tree["config"]
    caps: dict[str, Any] = {
        "job_timeout_s": int(request.deadline_s - request.reserve_s),
        "autodown_minutes": resources["autostop"]["idle_minutes"],
        "autodown_wait_for": resources["autostop"]["wait_for"],
    }
    match settings.kind:
        case "slurm":
            caps["slurm_time_limit_minutes"] = config["slurm"]["sbatch_options"]["time"]
        case "kubernetes":
            caps["active_deadline_s"] = config["kubernetes"]["pod_config"]["spec"]["activeDeadlineSeconds"]
        case kind if kind and not can_autodown:
            del caps["autodown_minutes"], caps["autodown_wait_for"]
            if not settings.accept_no_cap:
                raise UnsatisfiableError(
                    f"infra {settings.infra} has no cap that would end the cluster without this machine: no time limit "
                    "of the provider and no autodown",
                    remedy="choose another --infra, or give --accept-no-cap and look after it yourself",
                )
            caps["accepted_without"] = "a cap of the provider"
        case _:
            pass
    return caps
