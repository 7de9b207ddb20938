"""SkyPilot's exceptions in the words of the product. They have no common base class, so they are told by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrate.errors import BackendError, OrchestrateError

__all__ = ["failed", "is_gone", "names_of", "said"]

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 600


def names_of(error: BaseException) -> tuple[str, ...]:
    """The names of the classes of `error`, the most special first."""
    return tuple(each.__name__ for each in type(error).__mro__ if each not in {object, BaseException})


def said(error: BaseException) -> str:
    """The provider's own words, on one line, without colours, cut to what a person reads."""
    text = error.cause if isinstance(error, OrchestrateError) else str(error)
    words = " ".join(_COLOUR.sub("", text).split())
    detail = getattr(error, "error_msg", "") or ""
    if detail and str(detail) not in words:
        words = f"{words} {' '.join(_COLOUR.sub('', str(detail)).split())}"
    return words[:_LONGEST] or type(error).__name__


def is_gone(error: BaseException) -> bool:
    """Whether `error` says that there is no such cluster."""
    return "ClusterDoesNotExist" in names_of(error)


def failed(what: str, error: BaseException, *, case: object = None) -> BackendError:
    """`error` as an error of the product: itself where it is one, else with SkyPilot's answer kept."""
    if isinstance(error, BackendError):
        return error
    return BackendError(
        f"SkyPilot: {what} failed: {type(error).__name__}: {said(error)}",
        remedy=_remedy(names_of(error)),
        answer=str(error)[:4000],
        case=case,
    )


_REMEDIES: Mapping[str, str] = {
    "ApiServerConnectionError": "see whether its API server runs: `sky api info`",
    "ApiServerAuthenticationError": "log in: `sky api login`",
    "RequestCancelled": "somebody cancelled the request; launch again",
    "CommandError": "see that the infra's login works: `sky check`",
}


def _remedy(names: Sequence[Any]) -> str:
    return next((_REMEDIES[name] for name in names if name in _REMEDIES), "see `sky check` and `sky api logs`")
