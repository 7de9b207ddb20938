"""The verdict table: the one place that maps a result to an exit code and to how it is shown.

Everything that prints, counts or gates reads this table, so that no two parts of the product can disagree about
what a result means.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["USAGE_EXIT_CODE", "Verdict"]

USAGE_EXIT_CODE = 2
"""click's own exit code: the command line is wrong."""


class Verdict(Enum):
    """The result of a run. Members are ordered from best to worst.

    Each member carries `exit_code`, `junit` (the JUnit element a run becomes), `annotation` (the GitHub annotation
    level), `colour` (a console colour name) and `meaning` (one line for people).
    """

    PASSED = (
        "passed",
        0,
        "testcase",
        "notice",
        "green",
        "every expected cell complete, every check passed, teardown proven",
    )
    FAILED = ("failed", 1, "failure", "error", "red", "a cell or check failed on good infrastructure")
    HUNG = ("hung", 3, "failure", "error", "red", "no progress for the budget of its phase")
    INCOMPLETE = (
        "incomplete",
        4,
        "error",
        "error",
        "red",
        "zero cells, a missing receipt, a cell never settled or a collection error: not a pass",
    )
    INFRASTRUCTURE = ("infrastructure", 5, "error", "error", "magenta", "setup, driver, node or provider fault")
    CAPACITY = (
        "capacity",
        75,
        "error",
        "warning",
        "yellow",
        "it fits this cluster but nothing is free now; nothing ran; try later",
    )
    NOT_RUN = ("not-run", 76, "error", "warning", "yellow", "the admission deadline passed before anything was asked")
    UNSATISFIABLE = (
        "unsatisfiable",
        78,
        "error",
        "error",
        "yellow",
        "it can never fit here: no such GPU, quota below the request, misconfigured",
    )
    CANCELLED = ("cancelled", 130, "error", "warning", "yellow", "a person or CI stopped it")
    TEARDOWN_UNCONFIRMED = (
        "teardown-unconfirmed",
        70,
        "error",
        "error",
        "bright_red",
        "something of ours may still exist; overrides every other verdict",
    )

    def __init__(self, label: str, exit_code: int, junit: str, annotation: str, colour: str, meaning: str) -> None:
        self.label = label
        self.exit_code = exit_code
        self.junit = junit
        self.annotation = annotation
        self.colour = colour
        self.meaning = meaning

    @classmethod
    def from_label(cls, label: str) -> Verdict:
        """The verdict whose wire name is `label`; `ValueError` names the known ones otherwise."""
        for verdict in cls:
            if verdict.label == label:
                return verdict
        known = ", ".join(verdict.label for verdict in cls)
        raise ValueError(f"unknown verdict {label!r}; known are {known}")

    @property
    def meaning_for_groups(self) -> str:
        """`meaning` of a run whose groups stand where cells do."""
        return self.meaning.replace("cell", "group")

    def __str__(self) -> str:
        return self.label
