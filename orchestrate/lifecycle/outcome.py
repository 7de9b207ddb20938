"""The verdict of a run as a pure function of what is known about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrate.verdict import Verdict

__all__ = ["BY_STATUS", "Cause", "Decision", "Ended", "Ending", "Known", "decide"]


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
class Cause:
    """Why one cell or group is not complete: the verdict that this is, and the words, which name it."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Known:
    """What `decide` looks at.

    `cancelled` says, in words, who stopped the run or who was lost, at whatever stage (None: nobody).
    `ran` says that a payload was started. `statuses` are the node's words on its cells, `told` why those that are not
    complete are not, in order, `judged` what the groups' own evidence amounts to (None where cells ran). `gaps` is
    what keeps the evidence from being complete, `changed` the source files that changed during the run, `missing` the
    stages without a receipt, `unconfirmed` what may still exist (or could not be looked for), `problems` what went
    wrong while closing.
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
    told: Sequence[Cause] = ()
    judged: Verdict | None = None


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
    0: Verdict.PASSED,
    1: Verdict.FAILED,
    3: Verdict.HUNG,
    4: Verdict.INCOMPLETE,
    5: Verdict.INFRASTRUCTURE,
}
BY_STATUS = {"infrastructure": Verdict.INFRASTRUCTURE, "hung": Verdict.HUNG, "failed": Verdict.FAILED}
"""The node's words on a cell that are verdicts, the worst first; every other one but `complete` is `incomplete`."""


def _tests(known: Known) -> tuple[Verdict, str]:
    ending = known.ending
    if not known.ran:
        return ending.verdict or Verdict.INCOMPLETE, ending.detail or f"no {_noun(known)} ran"
    tests, why = _cells(known)
    if known.changed and tests in {Verdict.PASSED, Verdict.INCOMPLETE}:
        return Verdict.FAILED, f"source files changed during the run: {', '.join(known.changed[:5])}"
    return tests, why


def _cells(known: Known) -> tuple[Verdict, str]:
    ending = known.ending
    if ending.ended is Ended.BY_ITSELF and ending.fault is None:
        verdict = _by_itself(known)
        if verdict is Verdict.PASSED:
            passed = "every expected cell is complete" if known.judged is None else "every expected group passed"
            return verdict, passed
        cause = _first_cause(known, verdict)
        if ending.exit_code == 0:
            return verdict, cause or f"a {_noun(known)} did not end as complete"
        return verdict, f"the node's exit code is {ending.exit_code}{f': {cause}' if cause else ''}"
    worst = next((verdict for status, verdict in BY_STATUS.items() if status in known.statuses), None)
    if ending.fault is not None:
        return worst or Verdict.INFRASTRUCTURE, ending.fault
    return worst or Verdict.INCOMPLETE, f"the {_noun(known)}s were cut short ({ending.ended})"


def _noun(known: Known) -> str:
    return "cell" if known.judged is None else "group"


def _by_itself(known: Known) -> Verdict:
    """By the node's exit code; where groups ran and the node had no fault of its own, their evidence decides."""
    code = known.ending.exit_code
    by_code = Verdict.INFRASTRUCTURE if code is None else _BY_EXIT_CODE.get(code, Verdict.INFRASTRUCTURE)
    judged = known.judged or Verdict.PASSED
    if judged is not Verdict.PASSED and by_code is not Verdict.INFRASTRUCTURE:
        return judged
    if by_code is Verdict.PASSED and (known.gaps or not set(known.statuses) <= {"complete"}):
        return Verdict.INCOMPLETE
    return by_code


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


def _first_cause(known: Known, verdict: Verdict) -> str:
    """Of the first that is to blame for the verdict; where nobody says so, of the first, or what is missing."""
    of_verdict = (cause.reason for cause in known.told if cause.verdict is verdict)
    return next(of_verdict, "") or next(iter([*(cause.reason for cause in known.told), *known.gaps]), "")
