"""Saying something to whoever may not be there any more: a closed pipe or a full disk never changes an exit code."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import click

__all__ = ["say"]


def say(text: str, *, err: bool = False) -> None:
    """`text` as a line on standard output, or with `err` on standard error; silence where that can not be written.

    A stream that failed once leads nowhere from then on, so that the interpreter does not stumble over it at its end.
    """
    try:
        click.echo(text, err=err)
    except OSError:
        _lead_nowhere(sys.stderr if err else sys.stdout)


def _lead_nowhere(stream: TextIO) -> None:
    try:
        descriptor = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    except (OSError, ValueError):  # a stream without a descriptor has nothing to lead anywhere
        return
    try:
        os.dup2(nowhere, descriptor)
    finally:
        os.close(nowhere)
