"""The attempts of a run, as its receipts and its folders of evidence tell them.

An attempt begins with its admission; one that did not come so far shows by the number of its closure alone. The
evidence of the first lies in `evidence/`, that of a later one in `evidence-N/`, N being the attempt with which its
receipts begin: no later attempt writes over a file that a receipt binds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrate.receipts.statement import Receipt, Stage

__all__ = ["attempt_of_evidence", "attempts_of", "evidence_folder", "final_attempt"]


def evidence_folder(attempt: int) -> str:
    """The folder of that attempt's evidence, in the run directory."""
    return "evidence" if attempt == 1 else f"evidence-{attempt}"


def attempt_of_evidence(name: str) -> int | None:
    """The attempt whose evidence the file at this path (from the run directory) is; None for any other file."""
    match = _FOLDER.match(name)
    if match is None:
        return None
    return 1 if match["attempt"] is None else int(match["attempt"])


def attempts_of(receipts: Sequence[Receipt]) -> tuple[tuple[Receipt, ...], ...]:
    """The receipts of each attempt, in their order; the plan's stands before all of them."""
    attempts: list[list[Receipt]] = [[]]
    for receipt in receipts:
        if receipt.stage is Stage.PLAN:
            continue
        before = attempts[-1][-1] if attempts[-1] else None
        if before is not None and (receipt.stage is Stage.ADMIT or _is_later(receipt, before)):
            attempts.append([])
        attempts[-1].append(receipt)
    return tuple(tuple(attempt) for attempt in attempts)


def final_attempt(receipts: Sequence[Receipt]) -> tuple[Receipt, ...]:
    """The plan's receipt and those of the newest attempt: what a verdict is judged by."""
    plan = tuple(receipt for receipt in receipts if receipt.stage is Stage.PLAN)
    return (*plan, *attempts_of(receipts)[-1])


def _is_later(receipt: Receipt, before: Receipt) -> bool:
    """Whether an attempt without an admission lies between: a stage that is only done again has a number of its own."""
    at_a_closure = Stage.CLOSURE in {receipt.stage, before.stage}
    return at_a_closure and receipt.attempt > before.attempt


_FOLDER = re.compile(r"evidence(?:-(?P<attempt>[2-9]|[1-9][0-9]{1,5}))?/", re.ASCII)
