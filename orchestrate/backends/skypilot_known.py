"""What a run on SkyPilot knows of itself: chosen beforehand, learnt on the way, and told to whoever goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from orchestrate.backends.protocol import Fact

__all__ = ["Known"]


@dataclass(slots=True)
class Known:
    """The state of one run at the provider, as far as it is known here.

    Attributes:
        cluster: the cluster's name, chosen before anything is asked for.
        evidence: the folder that the node writes, relative to the job's working directory.
        job_limit_s: after how many seconds the payload ends by itself.
        requests: ids of the requests that may create something.
        job: SkyPilot's number of the job on the cluster.
        on_cloud: what the cluster is called at the infra.
        granted_at: when the GPUs were seen to be ours (RFC 3339), `released_at` when they were seen to be gone.
        usd_per_hour: the price, where SkyPilot knows one.
    """

    cluster: str
    evidence: str = "evidence"
    job_limit_s: float = 0.0
    requests: list[str] = field(default_factory=list)
    job: int | None = None
    on_cloud: str | None = None
    granted_at: str | None = None
    released_at: str | None = None
    usd_per_hour: float | None = None
    _news: list[Fact] = field(default_factory=list)

    def names(self, **more: Any) -> Fact:
        """The fact that is on disk before anything is asked for."""
        return {
            "kind": "names",
            "cluster": self.cluster,
            "evidence": self.evidence,
            "job_limit_s": self.job_limit_s,
            **more,
        }

    @property
    def name_there(self) -> str:
        """The name by which the infra is asked: in full where that is known, for a stranger's may differ in its end."""
        return self.on_cloud or self.cluster

    def learn_request(self, request_id: str) -> None:
        """A request that may create something was accepted."""
        self.requests.append(request_id)
        self._news.append({"kind": "sky-request", "id": request_id})

    def learn(self, **facts: Any) -> None:
        """Set attributes and tell them, unless they are known already."""
        new = {name: value for name, value in facts.items() if getattr(self, name) != value}
        for name, value in new.items():
            setattr(self, name, value)
        if new:
            self._news.append({"kind": "sky", **new})

    def told(self) -> tuple[Fact, ...]:
        """What was learnt since the last call."""
        news, self._news = tuple(self._news), []
        return news

    def recall(self, facts: Iterable[Fact]) -> None:
        """Learn what another process knew."""
        for fact in facts:
            match fact.get("kind"):
                case "names":
                    self._set(fact, ("evidence", "job_limit_s"))
                case "sky-request":
                    self.requests.append(str(fact["id"]))
                case "sky":
                    self._set(fact, ("job", "on_cloud", "granted_at", "released_at", "usd_per_hour"))
                case _:
                    continue

    def _set(self, fact: Fact, names: Iterable[str]) -> None:
        for name in names:
            if name in fact:
                setattr(self, name, fact[name])
