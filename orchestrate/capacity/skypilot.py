"""What an exception of SkyPilot means for a request, read from a plain description of it.

SkyPilot's exceptions have no common base, and one for an outage derives from the one for a lack of resources. They
come in as data, so that this needs no SkyPilot:

    {"types": ["KubeAPIUnreachableError", "ResourcesUnavailableError", "Exception"],    # the MRO, most derived first
     "message": "...", "failover_history": [{...}, ...],
     "returncode": 1, "error_type": "ClientError", "errors": [{"code": "..."}], "where": "...", "cause": {...}}

Only `types` and `message` are required. `errors` are a provisioner's own (code, message) pairs; `where` is the place
that an entry of the history is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrate.capacity.taxonomy import Availability, Basis, Case, Offer, Reason, classify
from orchestrate.markup import brief

__all__ = ["offers_of", "refusal"]

Description = Mapping[str, Any]

_MAX_DEPTH = 8


def refusal(
    description: Description,
    *,
    asked: Mapping[str, Any],
    where: str,
    at: str,
    availability: Sequence[Availability] = (),
) -> Case:
    """The case that SkyPilot's exception makes: one offer for each candidate that its failover tried.

    `where` is the infra that was asked for; an entry that names its own place is told there.
    """
    offers = tuple(offers_of(description, asked=str(asked.get("accelerators") or "resources"), where=where, at=at))
    reason = classify(offers).reason
    return Case(dict(asked), offers, tuple(availability), retry_after_s=reason.retry_after_s)


def offers_of(description: Description, *, asked: str, where: str, at: str, depth: int = 0) -> list[Offer]:
    """The offers of one exception, with its whole failover history walked."""
    where = str(description.get("where") or where)
    history = [entry for entry in description.get("failover_history") or () if isinstance(entry, Mapping)]
    offers: list[Offer] = []
    if depth < _MAX_DEPTH:
        for entry in history:
            offers.extend(offers_of(entry, asked=asked, where=where, at=at, depth=depth + 1))
    if offers and not _is_outage(description):
        return offers
    reason, basis = _read(description)
    return [*offers, Offer(where, asked, reason, basis, brief(description.get("message") or ""), at)]


_OUTAGE = {
    "KubeAPIUnreachableError",
    "ApiServerConnectionError",
    "ServerTemporarilyUnavailableError",
    "ConnectionError",
    "ClusterStatusFetchingError",
    "NetworkError",
    "SkyletUnavailableError",
    "ConcurrentWorkerExhaustedError",
    "ExecutionPoolFullError",
    "RequestInterruptedError",
}
_BY_TYPE: tuple[tuple[Reason, frozenset[str]], ...] = (
    (Reason.UNREACHABLE, frozenset(_OUTAGE)),
    (Reason.TAKEN_AWAY, frozenset({"RequestCancelled", "ManagedJobUserCancelledError"})),
    (
        Reason.DENIED,
        frozenset(
            {
                "ApiServerAuthenticationError",
                "PermissionDeniedError",
                "InvalidCloudCredentials",
                "NoCloudAccessError",
                "CloudUserIdentityError",
                "ClusterOwnerIdentityMismatchError",
                "UserRequestRejectedByPolicy",
                "PermissionError",
            }
        ),
    ),
    (
        Reason.MISCONFIGURED,
        frozenset(
            {
                "InvalidSkyPilotConfigError",
                "InvalidClusterNameError",
                "InvalidWorkspaceNameError",
                "InvalidCloudConfigs",
                "KubernetesValidationError",
                "ProvisionUnsupportedError",
                "NotSupportedError",
                "ResourcesMismatchError",
                "APIVersionMismatchError",
                "APINotSupportedError",
                "StorageSpecError",
                "VolumeNotFoundError",
            }
        ),
    ),
)
"""Types that decide by themselves, the first row first: an outage whose class says `unavailable` is an outage."""

_STOCKOUT = (
    "InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity", "InsufficientReservedInstance",
    "ReservationCapacityExceeded", "SpotMaxPriceTooLow", "UnfulfillableCapacity", "ZONE_RESOURCE_POOL_EXHAUSTED",
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "insufficientCapacity", "RESOURCE_POOL_EXHAUSTED",
    "SkuNotAvailable", "AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest",
    "OverconstrainedZonalAllocationRequest", "insufficient-capacity", "RESOURCE_EXHAUSTED", "OutOfHostCapacity",
    "Out of host capacity", "NOT_ENOUGH_RESOURCES", "NotEnoughResources",
)  # fmt: skip
_QUOTA = (
    "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded", "QUOTA_EXCEEDED", "quotaExceeded",
    "QuotaExceeded", "LimitExceeded", "SpotQuotaExceeded", "QUOTA_LIMIT",
)  # fmt: skip
_KINDS = ("InvalidInstanceType", "UnsupportedOperation", "Unsupported", "InstanceTypeNotSupported")
_RIGHTS = ("UnauthorizedOperation", "AccessDenied", "AuthFailure", "AuthorizationFailed", "PERMISSION_DENIED",
           "OptInRequired", "InvalidClientTokenId", "ExpiredToken")  # fmt: skip
_THROTTLED = ("RequestLimitExceeded", "Throttling", "rateLimitExceeded", "RESOURCE_OPERATION_RATE_EXCEEDED")
_CODES: Mapping[str, Reason] = {
    **dict.fromkeys(_STOCKOUT, Reason.STOCKOUT),
    **dict.fromkeys(_QUOTA, Reason.QUOTA_USED),
    **dict.fromkeys(_KINDS, Reason.UNKNOWN_KIND),
    **dict.fromkeys(_RIGHTS, Reason.DENIED),
    **dict.fromkeys(_THROTTLED, Reason.PROVIDER_FAULT),
    "UNSUPPORTED_OPERATION": Reason.STOCKOUT,  # GCP says so where a VM is preempted while it is made
    "RESOURCE_NOT_READY": Reason.PROVIDER_FAULT,
}
_CODE = re.compile(r"(?<![A-Za-z0-9_-])(" + "|".join(sorted(map(re.escape, _CODES), key=len, reverse=True)) + r")"
                   r"(?![A-Za-z0-9_-])")  # fmt: skip
_QUOTA_OF_NOTHING = re.compile(r"limit(?:ed)?(?: of|:|=| is)? *'?0(?:\.0+)?(?![0-9.])", re.IGNORECASE)

_NEVER = (
    (Reason.NEVER_FITS, "catalog does not contain any instances"),
    (Reason.NEVER_FITS, "no gpu nodes matching"),
    (Reason.NEVER_FITS, "no launchable resource found"),
    (Reason.MISCONFIGURED, "invalid cloud config"),
    (Reason.DENIED, "invalid cloud credentials"),
)
_LATER = (
    (Reason.UNREACHABLE, "unreachable"),
    (Reason.UNREACHABLE, "unable to contact slurm controller"),
    (Reason.NOTHING_FREE, "did not get nodes allocated"),
    (Reason.NOTHING_FREE, "insufficient nvidia.com/gpu"),
    (Reason.NOTHING_FREE, "out of resources"),
)


def _is_outage(description: Description) -> bool:
    return not _OUTAGE.isdisjoint(_types(description))


def _read(description: Description) -> tuple[Reason, Basis]:
    """One exception without a history: types, then codes, then what kind of failure its class is, text last."""
    types = _types(description)
    for reason, names in _BY_TYPE:
        if not names.isdisjoint(types):
            return reason, Basis.STRUCTURE
    coded = _by_code(description)
    if coded is not None:
        return coded
    message = str(description.get("message") or "")
    if "CommandError" in types or "CommandFailureException" in types:
        # 255 is ssh's own: the cluster's login did not answer. Else its scheduler's command failed.
        if description.get("returncode") == 255:
            return Reason.UNREACHABLE, Basis.STRUCTURE
        unreachable = "unable to contact slurm controller" in message.lower()
        return (Reason.UNREACHABLE, Basis.TEXT) if unreachable else (Reason.PROVIDER_FAULT, Basis.STRUCTURE)
    if "ResourcesUnavailableError" in types:
        by_text = _by_text(message, (*_NEVER, *_LATER))
        return (by_text, Basis.TEXT) if by_text else (Reason.NOTHING_FREE, Basis.STRUCTURE)
    if "ValueError" in types or "TypeError" in types or "KeyError" in types:
        return Reason.MISCONFIGURED, Basis.STRUCTURE
    cause = description.get("cause")
    if isinstance(cause, Mapping) and cause.get("types"):
        reason, basis = _read({**cause, "cause": None})
        if reason not in {Reason.PROVIDER_FAULT, Reason.NODE_FAULT}:
            return reason, basis
    by_text = _by_text(message, _LATER)
    if by_text is not None:
        return by_text, Basis.TEXT
    if "TimeoutError" in types:
        return Reason.UNREACHABLE, Basis.STRUCTURE
    if not {"ClusterSetUpError", "FetchClusterInfoError", "ClusterNotUpError"}.isdisjoint(types):
        return Reason.NODE_FAULT, Basis.STRUCTURE
    # What the set-up of a node's runtime raises when it fails is a plain RuntimeError.
    plain = "RuntimeError" in types[:1]
    return (Reason.NODE_FAULT if plain else Reason.PROVIDER_FAULT), Basis.STRUCTURE


def _by_code(description: Description) -> tuple[Reason, Basis] | None:
    """By a cloud's own error code: a field where there is one, else the code as a whole word of the message."""
    message = str(description.get("message") or "")
    fields: Iterable[Any] = (
        description.get("error_type"),
        *(error.get("code") for error in description.get("errors") or () if isinstance(error, Mapping)),
    )
    said = " ".join([message, *(str(error.get("message")) for error in description.get("errors") or ()
                                if isinstance(error, Mapping))])  # fmt: skip
    found = [(_CODES[str(field)], Basis.STRUCTURE) for field in fields if str(field) in _CODES]
    found += [(_CODES[match[1]], Basis.TEXT) for match in _CODE.finditer(message)]
    if not found:
        return None
    # Several codes: one that can come true later speaks for the whole.
    reason, basis = next((pair for pair in found if pair[0].retry_after_s is not None), found[0])
    if reason is Reason.QUOTA_USED and _QUOTA_OF_NOTHING.search(said):
        return Reason.QUOTA_TOO_SMALL, Basis.TEXT
    return reason, basis


def _by_text(message: str, table: Sequence[tuple[Reason, str]]) -> Reason | None:
    words = " ".join(message.lower().split())
    return next((reason for reason, mark in table if mark in words), None)


def _types(description: Description) -> list[str]:
    return [str(name).rpartition(".")[2] for name in description.get("types") or ()]
