"""Writing the receipts of a run: chained, redacted, and with the reserved room where the disk is full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrate.lifecycle.journal import Journal, is_disk_full
from orchestrate.lifecycle.plan import Plan
from orchestrate.lifecycle.run_directory import RunDirectory
from orchestrate.receipts.attempts import final_attempt
from orchestrate.receipts.canonical import canonical_bytes
from orchestrate.receipts.statement import Receipt, Stage, Subject, parse, statement
from orchestrate.receipts.store import ReceiptStore
from orchestrate.redaction import without_secrets

__all__ = ["ReceiptWriter"]


class ReceiptWriter:
    """Writes the receipts of one run after those that are there already.

    Args:
        run, plan, journal: the run; the caller holds its lock.
        redact: texts that must not leave this machine (token, home folder), each with what stands in its place.
    """

    def __init__(self, run: RunDirectory, plan: Plan, journal: Journal, redact: Mapping[str, str]) -> None:
        self._run = run
        self._plan = plan
        self._journal = journal
        self._redact = {text: instead for text, instead in redact.items() if text}
        self._store = ReceiptStore(run.receipts)
        self.written = list(self._store.load())
        self._least_attempt = 1

    @property
    def next_attempt(self) -> int:
        """The number of the attempt that would begin now."""
        return max((receipt.attempt for receipt in self.written), default=0) + 1

    def begin_attempt(self, number: int) -> None:
        """What is written from now on belongs to the attempt `number`."""
        self._least_attempt = number

    def has(self, stage: Stage) -> bool:
        """Whether there is a receipt of this stage in the newest attempt."""
        return any(receipt.stage is stage for receipt in self._current())

    def facts(self, stage: Stage) -> Mapping[str, Any]:
        """The facts of the newest receipt of this stage in the newest attempt; empty without one."""
        return next((receipt.facts for receipt in reversed(self._current()) if receipt.stage is stage), {})

    def write(
        self,
        stage: Stage,
        *,
        started_at: str,
        ended_at: str,
        facts: Mapping[str, Any],
        subjects: Iterable[Subject] = (),
    ) -> str:
        """Write one receipt and return its SHA-256. `plan.json` is always among its subjects."""
        previous = self.written[-1] if self.written else None
        made = statement(
            stage,
            run_id=self._plan.run_id,
            attempt=self._attempt(stage),
            previous=None if previous is None else previous.sha256,
            started_at=started_at,
            ended_at=ended_at,
            facts=facts if stage is Stage.PLAN else self._clean(facts),
            subjects=(Subject("plan.json", self._plan.sha256), *subjects),
        )
        try:
            sha256 = self._store.put(made)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._run.free_reserve()
            sha256 = self._store.put(made)
        self.written.append(parse(canonical_bytes(made)))
        if stage is not Stage.CLOSURE:
            self._journal.append("receipt", stage=stage.value, attempt=self.written[-1].attempt, sha256=sha256)
        return sha256

    def _current(self) -> tuple[Receipt, ...]:
        newest = final_attempt(self.written)
        if self.written and self.written[-1].attempt < self._least_attempt:  # one began, and wrote nothing yet
            return tuple(receipt for receipt in newest if receipt.stage is Stage.PLAN)
        return newest

    def _attempt(self, stage: Stage) -> int:
        # Stages rise within an attempt; a stage that must be done again (its doer died) opens the next one.
        if not self.written:
            return self._least_attempt
        last = self.written[-1]
        order = list(Stage)
        rises = last.stage is Stage.CLOSURE or order.index(stage) > order.index(last.stage)
        return max(last.attempt if rises else last.attempt + 1, self._least_attempt)

    def _clean(self, value: Any) -> Any:
        match value:
            case str():
                for text, instead in self._redact.items():
                    value = value.replace(text, instead)
                return without_secrets(value)
            case Mapping():
                return {name: self._clean(item) for name, item in value.items()}
            case list() | tuple():
                return [self._clean(item) for item in value]
            case _:
                return value
