"""Words of providers and users where markup would mean something: Markdown, workflow commands, one line of text."""

from __future__ import annotations

from orchestrate.redaction import without_secrets

__all__ = ["annotation", "brief", "code", "escaped"]

_LITERAL = frozenset(" ,-/;()")


def brief(text: object, limit: int = 400) -> str:
    """A provider's words on one line, cut to a sentence or two; what could steer a terminal or a page becomes `?`.

    What looks like a credential is taken out.
    """
    line = "".join(each if each.isprintable() else "?" for each in " ".join(without_secrets(str(text)).split()))
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def escaped(text: object) -> str:
    """Text that Markdown shows as it is: what could be markup, a link or a table's wall is a character reference."""
    return "".join(
        each if each.isalnum() or each in _LITERAL or not each.isascii() else f"&#{ord(each)};" for each in brief(text)
    )


def code(text: object) -> str:
    """The same in a code element, in which GitHub makes no mentions, issue links or emoji."""
    return f"<code>{escaped(text) or '&#45;'}</code>"


def annotation(level: str, title: str, message: str) -> str:
    """One workflow command of GitHub Actions. `level` is notice, warning or error."""
    return f"::{level} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return brief(text, 4000).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
