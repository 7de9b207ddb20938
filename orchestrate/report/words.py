"""How values are put into words, the same on a console and on a page."""

from __future__ import annotations

import unicodedata

from orchestrate.redaction import without_secrets

__all__ = ["byte_size", "clean", "duration", "printable", "short", "text_of"]


def clean(value: object) -> str:
    """`value` as one line of text that can not steer a terminal: control characters become `?`, 300 characters."""
    text = without_secrets(value if isinstance(value, str) else str(value))
    return "".join(character if character.isprintable() else "?" for character in text[:300])


def printable(text: str) -> str:
    """`text` with every character that steers how others are shown, or that UTF-8 can not say, as `?`.

    Those are control characters but for newline and tab, format characters (bidirectional controls among them), line
    separators and lone surrogates.
    """
    steering = {each for each in set(text) - {"\n", "\t"} if unicodedata.category(each) in _STEERING}
    return text.translate(dict.fromkeys(map(ord, steering), "?"))


_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def duration(seconds: float) -> str:
    """A duration as people say it: `16ms`, `0.4s`, `12s`, `3m 05s`, `2h 07m`; negative ones are `0s`."""
    if seconds < 0.0005:
        return "0s"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def byte_size(count: int) -> str:
    """A number of bytes with a binary unit: `512 B`, `3.2 KiB`, `1.5 GiB`."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1024 or unit == "TiB":
            return f"{size:.1f} {unit}"
    raise AssertionError("unreachable: the last unit always returns")


def short(sha256: str) -> str:
    """The first 16 digits of a digest: enough to find it, not enough to rely on."""
    return sha256[:16]


def text_of(value: object) -> str:
    """Whatever a record holds as text of at most 400 characters; nothing is empty."""
    text = "" if value is None else value if isinstance(value, str) else str(value)
    return text if len(text) <= 400 else f"{text[:400]}…"
