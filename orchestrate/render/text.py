"""What a value must look like to fit the field it goes to: labels, names, environment variables.

Kubernetes label syntax: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/. A value that does
not fit is shortened to a readable part plus eight hex digits of its SHA-256, so that two values never become one.
"""

from __future__ import annotations

import hashlib
import re

from orchestrate.errors import UsageError

__all__ = ["MAX_VALUE_BYTES", "cloud_label_value", "dns_label", "escape_dollars", "label_value", "require_text"]

MAX_VALUE_BYTES = 4096
"""The longest run id, owner or path that is accepted: all of them end up on one command line or in one label."""

_LABEL_LENGTH = 63
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_CLOUD_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def label_value(text: str) -> str:
    """`text` as a Kubernetes label value: itself where it is one already, else a readable part and a hash."""
    return _fit(text, _LABEL, r"[^A-Za-z0-9._-]+")


def cloud_label_value(text: str) -> str:
    """`text` as a label value that every cloud takes (lower case, digits, `_`, `-`; Google's are the narrowest)."""
    return _fit(text, _CLOUD_LABEL, r"[^a-z0-9_-]+", lower=True)


def dns_label(text: str) -> str:
    """`text` as an RFC 1123 label, which is also a valid SkyPilot task name."""
    return _fit(text, _DNS_LABEL, r"[^a-z0-9]+", lower=True, refuse="--")


def escape_dollars(text: str) -> str:
    """`text` so that Kubernetes delivers it literally in `env` and `args`.

    The kubelet expands `$(NAME)` and turns `$$` into `$` there, and nothing else: doubling every dollar sign undoes
    both (https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/).
    """
    return text.replace("$", "$$")


def require_text(name: str, value: str, *, empty_ok: bool = False) -> str:
    """`value`, if an environment variable can hold it; `UsageError` names the option otherwise."""
    if not value and not empty_ok:
        raise UsageError(f"{name} is empty", remedy=f"give {name} a value, or leave the option out")
    try:
        length = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} is not text: {value!a} holds a lone surrogate", remedy=f"give {name} in valid UTF-8"
        ) from error
    if "\0" in value:
        raise UsageError(
            f"{name} holds a NUL character, which no environment variable can", remedy=f"remove it from {name}"
        )
    if length > MAX_VALUE_BYTES:
        raise UsageError(f"{name} is {length} bytes long, more than {MAX_VALUE_BYTES}", remedy=f"give a shorter {name}")
    return value


def _fit(text: str, valid: re.Pattern[str], replaced: str, *, lower: bool = False, refuse: str | None = None) -> str:
    if valid.fullmatch(text) and not (refuse is not None and refuse in text):
        return text
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()[:8]
    readable = re.sub(replaced, "-", text.lower() if lower else text).strip("._-")
    readable = readable[: _LABEL_LENGTH - len(digest) - 1].rstrip("._-")
    return f"{readable}-{digest}" if readable else digest
