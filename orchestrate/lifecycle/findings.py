"""What an audit finds, whose it is, and which of it is meant."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

from orchestrate.backends.survey import OwnedResources, Surveyor
from orchestrate.clock import from_wire
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.render.text import cloud_label_value, label_value

__all__ = ["Action", "Filter", "Finding", "Held"]


class Action(StrEnum):
    """What a reap does about a finding."""

    NONE = "none"
    CLOSE = "close"
    LOOK_AGAIN = "look-again"
    END = "end"
    REMOVE_HUSK = "remove-husk"


@dataclass(frozen=True, slots=True)
class Filter:
    """Which findings are meant. A named run or owner also says that what has not expired may be reaped.

    `overdue` leaves out what is within its own time: a run with a living owner, and what says that it has not expired.
    """

    run_id: str | None = None
    owner: str | None = None
    older_than_s: float | None = None
    overdue: bool = False

    @property
    def names_somebody(self) -> bool:
        """Whether a run or an owner is named."""
        return self.run_id is not None or self.owner is not None

    def wants(self, finding: Finding) -> bool:
        """Whether this finding is meant."""
        return (
            (self.run_id is None or finding.run_id == self.run_id)
            and (self.owner is None or finding.owner in _written(self.owner))
            and (self.older_than_s is None or finding.age_s >= self.older_than_s)
            and not (self.overdue and finding.in_time)
        )


def _written(owner: str) -> tuple[str, ...]:
    """`owner` in each form in which a provider may keep it: a field that does not hold `ada@ws1` has a label of it."""
    return owner, label_value(owner), cloud_label_value(owner)


def _is_time(text: str | None) -> bool:
    try:
        from_wire(text or "")
    except (ValueError, OverflowError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Held:
    """Resources at one provider, with the surveyor that found them and alone can take them away."""

    surveyor: Surveyor
    resources: OwnedResources


@dataclass(frozen=True, slots=True)
class Finding:
    """Something of ours.

    `held` is what surveyors found of it, `seen` what a look with the knowledge of its own journal found besides.
    `outcome` is empty until a reap acted; `left` is what it could not remove.
    """

    run_id: str
    owner: str
    age_s: float
    expires_at: str | None
    live: bool
    action: Action
    because: str
    run: RunDirectory | None = None
    held: tuple[Held, ...] = ()
    seen: tuple[str, ...] = ()
    outcome: str = ""
    left: tuple[str, ...] = ()

    @property
    def in_time(self) -> bool:
        """Whether nobody has to do anything about it yet: its owner lives, or it says when it will have expired."""
        return self.live or (self.action is Action.NONE and _is_time(self.expires_at))

    @property
    def items(self) -> tuple[str, ...]:
        """What there is, part by part, in words."""
        if self.action is Action.REMOVE_HUSK and self.run is not None:
            return (f"folder {self.run.path}",)
        return (*chain.from_iterable(each.resources.items for each in self.held), *self.seen)

    @property
    def gpus(self) -> int | None:
        """The GPUs that it holds now; None where nobody can tell."""
        known = [each.resources.gpus for each in self.held if each.resources.gpus is not None]
        return sum(known) if known else None

    @property
    def gpu_hours(self) -> float | None:
        """The GPU hours since its oldest part was made, had it held what it holds now all the time."""
        known = [
            each.resources.gpus * each.resources.age_s / 3600 for each in self.held if each.resources.gpus is not None
        ]
        return sum(known) if known else None

    def as_json(self) -> dict[str, Any]:
        """The finding as an element of `audit --json`."""
        hours = self.gpu_hours
        return {
            "run_id": self.run_id,
            "owner": self.owner,
            "where": [f"{each.resources.backend}: {each.resources.where}" for each in self.held],
            "age_s": round(self.age_s, 1),
            "expires_at": self.expires_at,
            "live": self.live,
            "gpus": self.gpus,
            "gpu_hours": None if hours is None else round(hours, 3),
            "items": list(self.items),
            "action": self.action.value,
            "because": self.because,
            "outcome": self.outcome or None,
            "left": list(self.left),
        }
