"""Beats while dynamo compiles, from its own callbacks: a rank that compiles slowly is no rank that hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["beat_on_compilations"]


def beat_on_compilations(handler: Any, compiling: Callable[[bool], None]) -> None:
    """Call `compiling` with True when a compilation begins and with False when it has ended.

    `handler` is `torch._dynamo.callback.callback_handler`; a torch whose handler has other methods is left alone.
    """
    try:
        handler.register_start_callback(lambda _arguments: compiling(True))
        handler.register_end_callback(lambda _arguments: compiling(False))
    except AttributeError:
        return
