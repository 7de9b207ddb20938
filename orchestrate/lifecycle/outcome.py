"""The verdict of a run as a pure function of what is known about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrate.verdict import Verdict

__all__ = ["Decision", "Ended", "Ending", "Known", "decide"]


class Ended(StrEnum):
    """Why a run stopped going forward."""

    BY_ITSELF = "by-itself"
    DEADLINE = "deadline"
    SIGNAL = "signal"
    LAUNCHER_LOST = "launcher-lost"
    REFUSED = "refused"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run stopped going forward.

    `detail` is the signal's name, or what went wrong in words. `verdict` is the verdict of a refusal or fault. The
    rest is about the payload: exit code or signal, what struck it from outside (`fault`), and its wall time.
    """

    ended: Ended
    detail: str = ""
    verdict: Verdict | None = None
    exit_code: int | None = None
    signal: str | None = None
    fault: str | None = None
    wall_s: float = 0.0
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What `decide` looks at.

    `cancelled` says, in words, who stopped the run or who was lost, at whatever stage (None: nobody).
    `ran` says that a payload was started. `statuses` are the node's words on its cells, `told` its reasons for those
    that are not complete, `gaps` what keeps the evidence
    from being complete, `changed` the source files that changed during the run, `missing` the stages without a
    receipt, `unconfirmed` what may still exist (or could not be looked for), `problems` what went wrong while closing.
    """

    ending: Ending
    cancelled: str | None
    ran: bool
    statuses: Sequence[str]
    gaps: Sequence[str]
    changed: Sequence[str]
    missing: Sequence[str]
    unconfirmed: Sequence[str]
    problems: Sequence[str]
    told: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """`verdict` of the run; `result`, the verdict if its teardown is proven; `test_verdict`, what the cells said."""

    verdict: Verdict
    result: Verdict
    test_verdict: Verdict
    reason: str


def decide(known: Known) -> Decision:
    """The verdict by who died and what was proven (DESIGN section 5, Signals).

    Launcher or machine lost, or a person's signal: `cancelled`. The payload struck from outside: `infrastructure`. A
    rank that exits non-zero by itself: `failed`. The deadline: `hung` where the node saw a stall, else `incomplete`.
    Something that may still exist overrides all: `teardown-unconfirmed`.
    """
    tests, why = _tests(known)
    result, reason = _result(known, tests, why)
    if known.unconfirmed:
        may_exist = f"may still exist: {', '.join(known.unconfirmed[:5])}"
        return Decision(Verdict.TEARDOWN_UNCONFIRMED, result, tests, f"{may_exist}; otherwise {result}: {reason}")
    return Decision(result, result, tests, reason)


_BY_EXIT_CODE = {
    1: Verdict.FAILED,
    3: Verdict.HUNG,
    4: Verdict.INCOMPLETE,
    5: Verdict.INFRASTRUCTURE,
}
_BY_STATUS = {"infrastructure": Verdict.INFRASTRUCTURE, "hung": Verdict.HUNG, "failed": Verdict.FAILED}


def _tests(known: Known) -> tuple[Verdict, str]:
    ending = known.ending
    if not known.ran:
        return ending.verdict or Verdict.INCOMPLETE, ending.detail or "no cell ran"
    tests, why = _cells(known)
    if known.changed and tests in {Verdict.PASSED, Verdict.INCOMPLETE}:
        return Verdict.FAILED, f"source files changed during the run: {', '.join(known.changed[:5])}"
    return tests, why


def _cells(known: Known) -> tuple[Verdict, str]:
    ending = known.ending
    if ending.ended is Ended.BY_ITSELF and ending.fault is None:
        if ending.exit_code == 0 and not known.gaps and set(known.statuses) <= {"complete"}:
            return Verdict.PASSED, "every expected cell is complete"
        if ending.exit_code == 0:
            return Verdict.INCOMPLETE, (known.gaps or ["a cell did not end as complete"])[0]
        by_code = _BY_EXIT_CODE.get(ending.exit_code or -1, Verdict.INFRASTRUCTURE)
        return by_code, f"the node's exit code is {ending.exit_code}{_first_cause(known)}"
    worst = next((verdict for status, verdict in _BY_STATUS.items() if status in known.statuses), None)
    if ending.fault is not None:
        return worst or Verdict.INFRASTRUCTURE, ending.fault
    return worst or Verdict.INCOMPLETE, f"the cells were cut short ({ending.ended})"


def _result(known: Known, tests: Verdict, why: str) -> tuple[Verdict, str]:
    ending = known.ending
    if known.cancelled is not None:
        return Verdict.CANCELLED, known.cancelled
    match ending.ended:
        case Ended.SIGNAL | Ended.LAUNCHER_LOST:
            return Verdict.CANCELLED, ending.detail or ending.ended.value
        case Ended.REFUSED | Ended.FAULT:
            return ending.verdict or Verdict.INFRASTRUCTURE, ending.detail
        case Ended.DEADLINE:
            result = Verdict.HUNG if tests is Verdict.HUNG else Verdict.INCOMPLETE
            return result, f"deadline: {ending.detail}"
        case Ended.BY_ITSELF:
            if tests is Verdict.PASSED and (known.missing or known.problems):
                missing = [f"there is no {stage} receipt" for stage in known.missing]
                return Verdict.INCOMPLETE, [*known.problems, *missing][0]
            return (Verdict.INFRASTRUCTURE if ending.fault is not None else tests), why


def _first_cause(known: Known) -> str:
    """What the node itself said went wrong; where it said nothing, what is missing from the evidence."""
    causes = [*known.told, *known.gaps]
    return f": {causes[0]}" if causes else ""
