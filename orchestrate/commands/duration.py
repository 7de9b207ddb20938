"""Durations on the command line: `90`, `90s`, `15m`, `4h`, `1h30m`."""

from __future__ import annotations

import re

import click

__all__ = ["DURATION", "Duration"]

_PARTS = re.compile(r"(?:(?P<h>[0-9]{1,6})h)?(?:(?P<m>[0-9]{1,6})m)?(?:(?P<s>[0-9]{1,8})s?)?", re.ASCII)


class Duration(click.ParamType):
    """A duration as whole seconds: a plain number is seconds; `h`, `m` and `s` may be combined in this order."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Seconds; a usage error for anything else than a duration above zero."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        match = _PARTS.fullmatch(text)
        hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
        total = hours * 3600 + minutes * 60 + seconds
        if not total:
            self.fail(f"{text!r} is not a duration; give 90s, 15m, 4h, 1h30m or a number of seconds", param, ctx)
        return total


DURATION = Duration()
