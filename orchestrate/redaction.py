"""Credentials in texts of others: what looks like one is taken out before a text is shown, written or sent.

Providers and tools quote requests in their errors, and a request carries a token. What is none by its look (a password
among words) stays: this is a net below the rule that no secret is put into a text, not instead of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["SECRET", "holds_secret", "without_secrets", "without_secrets_in"]

SECRET = "<secret>"  # noqa: S105 - what stands in place of one

_WHOLE = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r"|\bgh[pousr]_\w{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}|\bhf_[A-Za-z0-9]{16,}|\bsk-[\w-]{20,}"
    r"|\bxox[abprs]-[\w-]{10,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    re.DOTALL | re.ASCII,
)
_AFTER = re.compile(
    r"(?P<before>\bbearer\s{1,4}"
    r"|\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:(?:basic|bearer|token|negotiate)\s{1,4})?"
    r"|(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|client-key-data)[\"']?\s{0,4}[:=]"
    r"\s{0,4}[\"']?)[^\s\"',;&<>()]{8,}",
    re.IGNORECASE | re.ASCII,
)
_USER_INFO = re.compile(
    r"(?P<before>\b[a-z][a-z0-9+.-]{0,30}://)(?:[^\s/@:]{0,200}:[^\s/@]{1,500}|[^\s/@:]{16,500})@", re.IGNORECASE
)


_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SIGN_?KEY|CREDENTIAL", re.IGNORECASE)
_NO_SECRET = re.compile(r"[/~.]|https?://[^@]*\Z")
_MIN_LENGTH, _SURELY_LENGTH = 8, 20


def holds_secret(name: str, value: str) -> bool:
    """Whether a variable holds a secret, by its name; harness/concealing.py has the same rule.

    Paths, addresses and plain words are none: `TOKENIZERS_PARALLELISM` is `false`.
    """
    return bool(_SECRET_NAME.search(name)) and not _NO_SECRET.match(value) and any(map(_is_secret, value.splitlines()))


def without_secrets(text: str) -> str:
    """`text` with `<secret>` in place of whatever looks like a credential."""
    text = _WHOLE.sub(SECRET, text)
    text = _AFTER.sub(rf"\g<before>{SECRET}", text)
    return _USER_INFO.sub(rf"\g<before>{SECRET}@", text)


def without_secrets_in(value: Any) -> Any:
    """The same for every text in a JSON tree; names stay."""
    match value:
        case str():
            return without_secrets(value)
        case Mapping():
            return {name: without_secrets_in(item) for name, item in value.items()}
        case list() | tuple():
            return [without_secrets_in(item) for item in value]
        case _:
            return value


def _is_secret(line: str) -> bool:
    mixed = any(each.isdigit() for each in line) and any(each.isalpha() for each in line)
    return len(line) >= _SURELY_LENGTH or (len(line) >= _MIN_LENGTH and mixed)
