"""`python -m harness NAME ...`: the node's entry points, each imported when it is used: not all of them need torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

from harness.errors import BAD_INPUT_EXIT_CODE, InputError, report

__all__ = ["ENTRY_POINTS", "main"]

ENTRY_POINTS = {
    "admission": "play the scenarios of memory admission in a simulated world",
    "calibrate": "measure one cell on the ranks of this process group (under torchrun)",
    "cells": "print the cells that CELL_SET and its group variable select",
    "checks": "compare packed, parallel outputs and gradients of one cell with a single rank (under torchrun)",
    "layouts": "print prefix tree, candidate family and features of a workload",
    "node": "run the selected cells, each in fresh processes",
    "qualify": "unpack a source and run command groups in it, each as a process family",
    "trace_run": "run a command whose ranks record their collectives, and watch it",
}
"""Name -> what it does. The module `harness.<name>` has `main(argv) -> exit code`."""


def main(argv: Sequence[str]) -> int:
    """Run the entry point that `argv` names, with the arguments after its name; returns its exit code."""
    if not argv or argv[0] in {"-h", "--help"}:
        print(_usage(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else BAD_INPUT_EXIT_CODE
    name, *rest = argv
    if name not in ENTRY_POINTS:
        known = ", ".join(ENTRY_POINTS)
        return report(InputError(f"no entry point {name!r}", remedy=f"choose one of {known}"))
    entry: Callable[[Sequence[str]], int] = importlib.import_module(f"harness.{name}").main
    try:
        return entry(rest)
    except InputError as error:
        return report(error)


def _usage() -> str:
    lines = [f"  {name:<10} {what}" for name, what in ENTRY_POINTS.items()]
    return "\n".join(
        [
            "usage: python -m harness NAME ...",
            "",
            *lines,
            "",
            "example: python -m harness layouts --workload cal-hetero",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
