"""Admission of a cell's forwards: a layout is one request, because a split of it would measure something else.

There is no price before anything was measured, and in a warm-up often none that is trusted: a layout may be many times
as large as the one before. So a warm-up may run on the caller's word, which its record says, and is what prices come
from. A measured round is admitted at the price that its own warm-up taught, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.admission.admission import Admission, Admitted
from harness.admission.estimator import Estimator, Measured
from harness.admission.ledger import Ledger
from harness.admission.probe import Probe
from harness.admission.record import RecoveryRecord, as_json
from harness.admission.search import Goal
from harness.admission.vote import cast
from harness.parallel.plan import ExecutionPlan
from harness.parallel.topology import Topology

__all__ = ["CellGate", "Passage"]


@dataclass(frozen=True, slots=True)
class Passage:
    """How one forward was let through, as evidence: this rank's bytes at the check.

    `trusted` says whether the price rests on a measurement near its scale; `on_word` that the forward ran without one
    that fits: `required_bytes` is 0 where there was no price at all.
    """

    required_bytes: int
    available_bytes: int
    trusted: bool
    on_word: bool
    unsplit: bool


class CellGate:
    """Admits the forwards of one cell on one rank; every rank of the world goes through the same calls."""

    def __init__(self, topology: Topology, probe: Probe) -> None:
        self._vote = partial(cast, topology)
        self._probe = probe
        self._ledger = Ledger()
        self._estimator: Estimator | None = None
        self._warmups: Admission[ExecutionPlan, ExecutionPlan] | None = None
        self._rounds: Admission[ExecutionPlan, ExecutionPlan] | None = None
        self._records: list[RecoveryRecord] = []

    def admit(self, plan: ExecutionPlan, *, measured: bool) -> Passage:
        """Let `plan` through; a `measured` one only if it fits.

        Raises:
            AdmissionRefused: it does not fit, on every rank.
            PeerFailed: admission failed on another rank.
        """
        admission = self._rounds if measured else self._warmups
        if admission is None:
            return Passage(0, self._probe.read().free_bytes, trusted=False, on_word=True, unsplit=True)
        return _passage(admission.admit_batch([[plan]]))

    def completed(self, plan: ExecutionPlan, needed_bytes: int, forward_ns: int, *, warm: bool) -> None:
        """Learn what `plan` took beyond what was there before it, and credit its forward."""
        needed = max(0, needed_bytes)
        measured = Measured(plan.packed_tokens, needed, needed)
        if self._estimator is None:
            self._estimator = Estimator([measured])
            self._warmups = self._admission(self._estimator, allow_oversized=True)
            self._rounds = self._admission(self._estimator, allow_oversized=False)
        else:
            self._estimator.observe(measured)
        if self._rounds is not None:
            self._rounds.credit(forward_ns, warm=warm)

    def take_records(self) -> list[dict[str, object]]:
        """The releases that were needed since the last call, as evidence."""
        taken, self._records = self._records, []
        return [as_json(record) for record in taken]

    def settle(self) -> None:
        """Bring the last forwards into the account; every rank of the world calls it when its last one is done."""
        if self._rounds is not None:
            self._rounds.settle()

    def account(self) -> dict[str, Any]:
        """What releases cost beside the forward work, summed over the world, as far as it was voted."""
        return self._ledger.budget.as_json()

    def _keep(self, record: RecoveryRecord) -> None:
        self._records.append(record)

    def _admission(self, estimator: Estimator, *, allow_oversized: bool) -> Admission[ExecutionPlan, ExecutionPlan]:
        return Admission(
            _OneLayout(),
            estimator,
            self._probe,
            vote=self._vote,
            ledger=self._ledger,
            allow_oversized=allow_oversized,
            records=self._keep,
        )


class _OneLayout:
    """The planner of a cell: the plan is there already, and it is the only one."""

    def tokens(self, request: ExecutionPlan, /) -> int:
        return request.packed_tokens

    def least_tokens(self, requests: Sequence[ExecutionPlan], /) -> int:
        return sum(plan.packed_tokens for plan in requests)

    def plan(self, requests: Sequence[ExecutionPlan], goal: Goal, /) -> ExecutionPlan:
        del goal
        (plan,) = requests
        return plan


def _passage(wave: Admitted[ExecutionPlan]) -> Passage:
    return Passage(
        wave.required_bytes, wave.available_bytes, trusted=wave.trusted, on_word=wave.oversized, unsplit=wave.unsplit
    )
