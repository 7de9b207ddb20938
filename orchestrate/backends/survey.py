"""What an audit asks of a provider: everything of ours that is there, and to take one of them away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["OwnedResources", "Survey", "Surveyor"]


@dataclass(frozen=True, slots=True)
class OwnedResources:
    """Everything at one provider that carries the marks of one run.

    Attributes:
        backend: name of the backend, and `where` in it: context and namespace, server and infra.
        run_id, owner: who owns it; `unknown` where the provider keeps no such field.
        expires_at: RFC 3339, empty where it can not be read: then only a person can say that it may go.
        age_s: age of the oldest part.
        items: each part in words, for people: `job ns/name uid ...`.
        handle: plain JSON by which the surveyor that found it can take exactly this away, and nothing else (UIDs,
            cluster name, Slurm job ids, the token).
        gpus: how many GPUs it holds now, None where we may not see it.
        run_dir: where the owner's lock lies, as far as the marks tell; empty for none.
        token: the ownership token that it carries, empty where it should and does not; None where the provider keeps
            none, or only a part of it.
    """

    backend: str
    where: str
    run_id: str
    owner: str
    expires_at: str
    age_s: float
    items: tuple[str, ...]
    handle: dict[str, Any] = field(default_factory=dict)
    gpus: int | None = None
    run_dir: str = ""
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found, where was looked, and what could not be looked at (never absence)."""

    owned: tuple[OwnedResources, ...]
    looked: tuple[str, ...]
    unknown: tuple[str, ...]


class Surveyor(Protocol):
    """One provider, asked without local state, with the credentials of this machine."""

    name: str

    def survey(self) -> Survey:
        """Everything of ours there. Never raises for what it finds: a question without an answer is `unknown`."""

    def reap(self, owned: OwnedResources) -> tuple[str, ...]:
        """Take away exactly `owned`, re-checking its marks first; what is left afterwards, in words."""
