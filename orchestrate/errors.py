"""The exceptions of the product.

    OrchestrateError
    ├── UsageError                  the command line or an input file is wrong          exit 2
    │   ├── SelectionError          unknown, empty or duplicate cell set or group
    │   ├── EvidenceDamagedError    a file of measurements is damaged; names file and line
    │   └── RunNotFoundError        no run of that name
    ├── NotEnoughEvidenceError      what was measured can not carry the claim           exit 4
    ├── ManifestError               templates, sets and manifest disagree               exit 1
    ├── RenderError                 a rendered document does not hold its schema        exit 1
    ├── ReceiptError                a receipt or its chain does not hold                exit 1
    ├── JournalDamagedError         a journal was damaged; names file and byte          exit 1
    ├── RunIsLiveError              the run has a living owner                          exit 1
    ├── BackendError                a provider failed; keeps the provider's answer      exit 5
    │   ├── UnsatisfiableError      it can never fit here, or this machine is not set up  exit 78
    │   │   └── RunsDirError        the runs directory can not be used
    │   └── CapacityError           nothing is free now                                 exit 75
    ├── NotRunError                 the deadline leaves no room to start                exit 76
    └── TeardownUnconfirmedError    something of ours may still exist                   exit 70

Each has `code` (stable, for machines), `cause` (what is wrong and where) and `remedy` (what to do about it), and the
exit code of the verdict table.
"""

from __future__ import annotations

from orchestrate.redaction import without_secrets
from orchestrate.verdict import USAGE_EXIT_CODE, Verdict

__all__ = [
    "BackendError",
    "CapacityError",
    "EvidenceDamagedError",
    "JournalDamagedError",
    "ManifestError",
    "NotEnoughEvidenceError",
    "NotRunError",
    "OrchestrateError",
    "ReceiptError",
    "RenderError",
    "RunIsLiveError",
    "RunNotFoundError",
    "RunsDirError",
    "SelectionError",
    "TeardownUnconfirmedError",
    "UnsatisfiableError",
    "UsageError",
]


class OrchestrateError(Exception):
    """Base of every error that the product raises on purpose."""

    code = "error"
    exit_code = Verdict.FAILED.exit_code

    def __init__(self, cause: str, *, remedy: str) -> None:
        cause = without_secrets(cause)  # providers and tools quote requests, and those carry tokens
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy

    def as_json(self) -> dict[str, object]:
        """The error as the `error` member of a `--json` answer."""
        return {"code": self.code, "cause": self.cause, "remedy": self.remedy, "exit_code": self.exit_code}


class UsageError(OrchestrateError):
    """The command line or an input file is wrong."""

    code = "usage"
    exit_code = USAGE_EXIT_CODE


class SelectionError(UsageError):
    """An unknown, empty or duplicate cell set or group."""

    code = "selection"


class EvidenceDamagedError(UsageError):
    """A file of measurements is damaged. `gaps` names each place."""

    code = "evidence-damaged"

    def __init__(self, cause: str, *, remedy: str, gaps: tuple[str, ...] = ()) -> None:
        super().__init__(cause, remedy=remedy)
        self.gaps = gaps

    def as_json(self) -> dict[str, object]:
        """The error as the `error` member of a `--json` answer."""
        return {**super().as_json(), "gaps": list(self.gaps)}


class RunNotFoundError(UsageError):
    """No run of that name in the runs directory."""

    code = "run-not-found"


class NotEnoughEvidenceError(OrchestrateError):
    """What was measured is incomplete, unexpected or too little for the claim. `gaps` names each place."""

    code = "not-enough-evidence"
    exit_code = Verdict.INCOMPLETE.exit_code

    def __init__(self, cause: str, *, remedy: str, gaps: tuple[str, ...] = ()) -> None:
        super().__init__(cause, remedy=remedy)
        self.gaps = gaps

    def as_json(self) -> dict[str, object]:
        """The error as the `error` member of a `--json` answer."""
        return {**super().as_json(), "verdict": self.code, "gaps": list(self.gaps)}


class ManifestError(OrchestrateError):
    """Templates, cell sets and manifest disagree."""

    code = "manifest"


class RenderError(OrchestrateError):
    """A rendered document does not hold its schema."""

    code = "render"


class ReceiptError(OrchestrateError):
    """A receipt, or the chain of receipts, does not hold."""

    code = "receipt"


class JournalDamagedError(OrchestrateError):
    """A journal is damaged somewhere else than in a torn last line."""

    code = "journal-damaged"


class RunIsLiveError(OrchestrateError):
    """The run has a living owner, who alone may act on it."""

    code = "run-is-live"


class BackendError(OrchestrateError):
    """A provider failed. `answer` is what the provider itself said, if it said anything.

    `case` is what is known about a refusal (an `orchestrate.capacity.taxonomy.Case`), None where GPUs are no matter.
    """

    code = "infrastructure"
    exit_code = Verdict.INFRASTRUCTURE.exit_code

    def __init__(self, cause: str, *, remedy: str, answer: str | None = None, case: object = None) -> None:
        super().__init__(cause, remedy=remedy)
        self.answer = None if answer is None else without_secrets(answer)
        self.case = case


class UnsatisfiableError(BackendError):
    """It can never fit here: no such GPU, a quota below the request, a missing installation."""

    code = "unsatisfiable"
    exit_code = Verdict.UNSATISFIABLE.exit_code


class RunsDirError(UnsatisfiableError):
    """The runs directory can not be created, written or locked."""

    code = "runs-dir"


class CapacityError(BackendError):
    """It fits here, but nothing is free now; nothing ran."""

    code = "capacity"
    exit_code = Verdict.CAPACITY.exit_code


class NotRunError(OrchestrateError):
    """The deadline leaves no room for the run and its teardown; nothing was asked for."""

    code = "not-run"
    exit_code = Verdict.NOT_RUN.exit_code


class TeardownUnconfirmedError(OrchestrateError):
    """Something of ours may still exist."""

    code = "teardown-unconfirmed"
    exit_code = Verdict.TEARDOWN_UNCONFIRMED.exit_code
