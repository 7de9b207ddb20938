"""Errors that a person can act on: what is wrong and where, and what to do about it."""

from __future__ import annotations

import sys

__all__ = ["BAD_INPUT_EXIT_CODE", "InputError", "report"]

BAD_INPUT_EXIT_CODE = 2
"""Exit code of an entry point whose arguments, environment or input files are wrong."""


class InputError(ValueError):
    """An argument, an environment variable or an input file is wrong.

    `cause` names the thing and the place, `remedy` says what to do about it.
    """

    def __init__(self, cause: str, *, remedy: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy


def report(error: InputError) -> int:
    """Print `error` on stderr and return the exit code for bad input."""
    print(f"error: {error.cause}\nremedy: {error.remedy}", file=sys.stderr)
    return BAD_INPUT_EXIT_CODE
