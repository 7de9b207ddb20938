"""When the required check is green: a pure function of what was classified, what ran, and what is proven gone.

Nothing is waived here. What is not known is not a pass, and something of ours that may still be there overrides all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from orchestrate.gate.asked import Look, Target, uncovered
from orchestrate.gate.change import Change, Checkout
from orchestrate.gate.policy import GatePolicy
from orchestrate.receipts.completeness import CellJudgement
from orchestrate.receipts.verify import Verification
from orchestrate.verdict import Verdict

__all__ = [
    "CLOCKS_DIFFER",
    "Classified",
    "Conclusion",
    "Evidence",
    "Reconciled",
    "Refused",
    "conclude",
    "never_classified",
    "unconfirmed",
    "unusable",
]

CLOCKS_DIFFER = timedelta(minutes=5)
"""Of the machines of two jobs."""


@dataclass(frozen=True, slots=True)
class Classified:
    """What the first step found.

    Attributes:
        change, checkout: the change, and what is checked out.
        needed, reason: whether GPUs are needed, and why.
        problems: why nothing that runs here can make the check green: what is checked out is not the change, the
            options of run and look do not fit together.
        launch, audit: the options that the run and the look afterwards are to have; None where nobody said.
        own_files: files of the gate itself that the change touches: a reviewer must see them.
    """

    change: Change
    checkout: Checkout
    needed: bool
    reason: str
    problems: tuple[str, ...] = ()
    launch: tuple[str, ...] | None = None
    audit: tuple[str, ...] | None = None
    own_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """The run that was fetched: verified now, with the facts that its newest receipts state.

    `cells` are its cells or groups, judged from their own evidence; `attempt` is the attempt of the workflow run that
    asked for it, `targets` where it may have had something, `ended_at` when its newest closure was made, `ran` whether
    its payload ever began. Of a run of an earlier workflow run, `reused_from` cites that one, and `earlier_look` is the
    look of a fresh machine after it.
    """

    found: Verification
    closure: Mapping[str, Any]
    census: Mapping[str, Any]
    image: Mapping[str, Any]
    tree: str | None
    cells: Sequence[CellJudgement] = ()
    attempt: int = 1
    targets: tuple[Target, ...] = ()
    ended_at: datetime | None = None
    ran: bool = True
    reused_from: str | None = None
    earlier_look: Reconciled | None = None


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What a fresh machine found afterwards: whether nothing of this workflow run is left, and in words what was.

    It looked at what every attempt up to `attempt` owns, at the time `at`, where `look` says; None is not known.
    """

    confirmed: bool
    found: tuple[str, ...]
    left: tuple[str, ...]
    unknown: tuple[str, ...]
    attempt: int = 1
    at: datetime | None = None
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """What a launch said that made no run directory: why nothing was asked for."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The check's result. `verdict` is None where no GPU was needed. `problems` keep a pass from being green."""

    green: bool
    verdict: Verdict | None
    title: str
    reason: str
    problems: tuple[str, ...]


def conclude(
    classified: Classified,
    jobs: Mapping[str, str] | None,
    admitted: bool | None,
    evidence: Evidence | None,
    reconciled: Reconciled | None,
    policy: GatePolicy,
    said: Refused | None = None,
) -> Conclusion:
    """Decide.

    Args:
        classified: what the first step found, held to what GitHub and git say now.
        jobs: name of each earlier job to its result as GitHub says it: success, failure, cancelled, skipped; where
            there is none, nobody spoke of them, and that is no pass. None weighs the run of an earlier attempt alone.
        admitted: whether the run was let through in time; None where that was never decided.
        evidence: None where no run directory came.
        reconciled: None where nobody looked afterwards.
        policy: the repository's.
        said: what the launch said where it left no run directory; it can make the check red by its right name only.
    """
    if not classified.needed:
        return _not_needed(classified, jobs, evidence, reconciled)
    seen = reconciled is not None and (reconciled.found or reconciled.left)
    if evidence is None and classified.change.from_fork and not seen:
        return _red(Verdict.NOT_RUN, "the change is of another repository: it gets no credentials, and so no GPUs", ())
    if reconciled is not None and not reconciled.confirmed:
        return unconfirmed(reconciled)
    if admitted is False:
        return _red(Verdict.NOT_RUN, "the admission deadline passed before anything was asked for", ())
    if evidence is None:
        return _without_evidence(classified, jobs, reconciled, said, decided=admitted is not None)
    if evidence.found.verdict is not Verdict.PASSED:
        return _not_passed(evidence, jobs)
    problems = tuple(_problems(classified, evidence, reconciled, policy, jobs))
    if problems:
        return _red(Verdict.INCOMPLETE, problems[0], problems)
    cited = f" (a pass of {evidence.reused_from}, verified again now)" if evidence.reused_from else ""
    title = f"GPU gate: passed{cited}"
    return Conclusion(True, Verdict.PASSED, title, "every expected cell or group complete, teardown proven twice", ())


def never_classified(jobs: Mapping[str, str]) -> Conclusion:
    """The red check where the first step left nothing."""
    verdict = Verdict.CANCELLED if "cancelled" in jobs.values() else Verdict.INCOMPLETE
    return _red(verdict, "the change was never classified: its own step says why, and nothing else is known", ())


def unconfirmed(reconciled: Reconciled) -> Conclusion:
    """The red check after a look that did not confirm: it overrides every other."""
    what = ", ".join((*reconciled.left, *reconciled.unknown)[:5]) or "the look afterwards was not clean"
    return _red(Verdict.TEARDOWN_UNCONFIRMED, f"something of ours may still exist: {what}", ())


def unusable(why: str) -> Conclusion:
    """The red check of what can not be decided, or of a pass that could not be signed as it was asked for."""
    return _red(Verdict.INCOMPLETE, why, (why,))


def _problems(
    classified: Classified,
    evidence: Evidence,
    reconciled: Reconciled | None,
    policy: GatePolicy,
    jobs: Mapping[str, str] | None,
) -> list[str]:
    """Everything that keeps a run whose closure says `passed` from making the check green."""
    found, checkout = evidence.found, classified.checkout
    problems = [f"the receipts do not hold: {problem}" for problem in found.problems]
    problems.extend(classified.problems)
    if found.commit != checkout.commit:
        problems.append(f"the run is of the commit {found.commit}, not of the tested {checkout.commit}")
    if evidence.closure.get("dirty") is not False:
        problems.append("the run's source had changes that are in no commit")
    if evidence.tree != checkout.tree:
        problems.append(f"the run's tree is {evidence.tree}, the tested one {checkout.tree}")
    if found.device != policy.device:
        problems.append(f"the evidence is of the device {found.device!r}, the policy asks for {policy.device!r}")
    path = evidence.census.get("path")
    if path != "direct" and not (path == "via-server" and policy.via_server):
        problems.append(f"the census is {path!r}: the policy accepts no such census")
    if policy.pinned_image and evidence.image and not evidence.image.get("ran"):
        problems.append("the digest of the image that ran is not in the receipts")
    if policy.pinned_image and evidence.image and "@sha256:" not in str(evidence.image.get("asked")):
        problems.append("the image was asked for by a tag, not by its digest")
    passed = {cell.key for cell in evidence.cells if cell.complete}
    problems.extend(
        f"the group {name}, which the policy asks for, is not among those that passed"
        for name in policy.groups
        if name not in passed
    )
    problems.extend(_look_problems(evidence, evidence.earlier_look if evidence.reused_from else reconciled))
    problems.extend(_job_problems(jobs, {"success"}))
    return problems


def _look_problems(evidence: Evidence, reconciled: Reconciled | None) -> list[str]:
    """Why the look of a fresh machine says nothing of this run."""
    if reconciled is None:
        return ["nobody looked afterwards whether anything of the run is left"]
    problems = []
    if reconciled.attempt < evidence.attempt:
        problems.append("the look afterwards is of an earlier attempt than the run")
    if reconciled.at is None or (evidence.ended_at is not None and reconciled.at < evidence.ended_at - CLOCKS_DIFFER):
        problems.append("the look afterwards was made before the run had ended")
    if reconciled.look is None:
        return [*problems, "nobody says where the look afterwards was"]
    return [*problems, *uncovered(evidence.targets, reconciled.look)]


_JOBS = ("classify", "run", "reconcile")


def _job_problems(jobs: Mapping[str, str] | None, good: Collection[str]) -> list[str]:
    if jobs is None:
        return []
    if missing := [name for name in _JOBS if name not in jobs]:
        return [f"nobody says how the job {missing[0]} ended (--needs)"]
    return [f"the job {name} ended as {result}" for name, result in jobs.items() if result not in good]


def _not_needed(
    classified: Classified, jobs: Mapping[str, str] | None, evidence: Evidence | None, reconciled: Reconciled | None
) -> Conclusion:
    """Green without a run, as long as truly nothing ran and nobody stopped the decision."""
    if evidence is not None or (reconciled is not None and (reconciled.found or not reconciled.confirmed)):
        return _red(Verdict.INCOMPLETE, "no GPU was needed, and yet something ran", ())
    if classified.problems:
        return _red(Verdict.INCOMPLETE, classified.problems[0], classified.problems)
    broken = _job_problems(jobs, {"success", "skipped"})
    if not broken and jobs and jobs["run"] != "skipped":
        broken = ["no GPU was needed, and yet the job run was not skipped"]
    if broken:
        verdict = Verdict.CANCELLED if jobs and "cancelled" in jobs.values() else Verdict.INCOMPLETE
        return _red(verdict, broken[0], tuple(broken))
    return Conclusion(True, None, "GPU gate: no GPU needed, nothing ran", classified.reason, ())


def _not_passed(evidence: Evidence, jobs: Mapping[str, str] | None) -> Conclusion:
    found = evidence.found
    verdict = found.verdict if found.holds else _worse(found.verdict)
    if not evidence.closure and jobs and "cancelled" in jobs.values():
        reason = "it was cancelled before its run was closed; a fresh machine looked and found nothing left"
        return _red(Verdict.CANCELLED, reason, found.problems)
    return _red(verdict, str(evidence.closure.get("reason") or verdict.meaning), found.problems)


def _without_evidence(
    classified: Classified,
    jobs: Mapping[str, str] | None,
    reconciled: Reconciled | None,
    said: Refused | None,
    *,
    decided: bool,
) -> Conclusion:
    ran = (jobs or {}).get("run")
    if classified.problems and (ran == "skipped" or reconciled is not None):
        return _red(Verdict.INCOMPLETE, classified.problems[0], classified.problems)
    if ran == "skipped":
        return _red(Verdict.INCOMPLETE, "the job run was skipped: nothing was asked for", ())
    if reconciled is None:
        return _red(
            Verdict.TEARDOWN_UNCONFIRMED, "no run directory came, and nobody looked whether anything is left", ()
        )
    if jobs and "cancelled" in jobs.values():
        return _red(Verdict.CANCELLED, "no run directory came; a fresh machine looked and found nothing left", ())
    if said is not None and said.verdict is not Verdict.PASSED:
        return _red(said.verdict, said.reason, ())
    if not decided:
        return _red(
            Verdict.INCOMPLETE, "it was never admitted: the step `admit` says why, and nothing was asked for", ()
        )
    return _red(Verdict.INCOMPLETE, "no run directory came; a fresh machine looked and found nothing left", ())


def _worse(verdict: Verdict) -> Verdict:
    """What a closure says that does not hold: a teardown that may be unproven stays that, all else is incomplete."""
    return verdict if verdict is Verdict.TEARDOWN_UNCONFIRMED else Verdict.INCOMPLETE


_TITLES = {
    Verdict.CAPACITY: "GPU gate: no GPU was free; nothing ran",
    Verdict.NOT_RUN: "GPU gate: not run; nothing was asked for",
    Verdict.UNSATISFIABLE: "GPU gate: this request can never be granted here; nothing ran",
    Verdict.INFRASTRUCTURE: "GPU gate: the infrastructure failed",
    Verdict.INCOMPLETE: "GPU gate: incomplete, not a pass",
    Verdict.HUNG: "GPU gate: hung",
    Verdict.FAILED: "GPU gate: failed",
    Verdict.CANCELLED: "GPU gate: cancelled",
    Verdict.TEARDOWN_UNCONFIRMED: "GPU gate: something of ours may still exist",
}


def _red(verdict: Verdict, reason: str, problems: tuple[str, ...]) -> Conclusion:
    return Conclusion(False, verdict, _TITLES[verdict], reason, problems)
