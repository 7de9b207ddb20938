"""Why the Job controller could not create the pod: quota, policy, a limit range, a webhook that does not answer.

Nothing but a `FailedCreate` event tells it: the Job has no condition and no pod, for ever.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from orchestrate.capacity.finding import Finding
from orchestrate.capacity.node_fit import needs
from orchestrate.capacity.quantity import quantity
from orchestrate.capacity.seen import Seen, Tree, event_time, job_events
from orchestrate.capacity.taxonomy import Basis, Reason

__all__ = ["creation_refused", "quota_too_small"]

_QUOTA = re.compile(r"exceeded quota: .+?, requested: (?P<asked>\S+), used: \S+, limited: (?P<hard>\S+)")
_DENIED = (
    "denied the request",
    "violates podsecurity",
    "cannot create resource",
    "is not allowed to",
    "forbidden: user",
)
_WRONG = (
    "failed quota:",
    "must specify",
    "maximum ",
    "minimum ",
    "is invalid",
    "invalid value",
    "no priorityclass",
    "error looking up service account",
    "serviceaccount",
    "runtimeclass",
    "not found",
    "forbidden",
)
_FAULT = ("failed calling webhook", "timed out", "timeout", "deadline exceeded", "connection refused", "internal error",
          "etcdserver", "too many requests", "unavailable")  # fmt: skip


def creation_refused(seen: Seen, pod_spec: Tree) -> Finding | None:
    """What the newest `FailedCreate` event of the Job says; None without one, and once a pod has been created."""
    failed = job_events(seen, "FailedCreate")
    created = job_events(seen, "SuccessfulCreate")
    if not failed or (created and event_time(created[-1]) >= event_time(failed[-1])):
        return quota_too_small(pod_spec, seen.quotas)
    message = str(failed[-1].get("message") or "")
    quota = _quota_exceeded(message)
    if quota is not None:
        return quota_too_small(pod_spec, seen.quotas) or quota
    words = message.lower()
    # A webhook that can not be called also says "forbidden" in places: faults first.
    for marks, reason in ((_FAULT, Reason.PROVIDER_FAULT), (_DENIED, Reason.DENIED), (_WRONG, Reason.MISCONFIGURED)):
        if any(mark in words for mark in marks):
            return Finding(reason, Basis.TEXT, message, final=reason is not Reason.PROVIDER_FAULT)
    return Finding(Reason.PROVIDER_FAULT, Basis.STRUCTURE, message, final=False)


def quota_too_small(pod_spec: Tree, quotas: Sequence[Tree] | None) -> Finding | None:
    """A ResourceQuota that is smaller than one pod of ours; None without one, or where quotas may not be read.

    Quotas with scopes bind only some pods; which ones is left to the API server.
    """
    amounts = needs(pod_spec)
    asked = {**amounts, **{f"requests.{name}": amount for name, amount in amounts.items()}, "pods": Fraction(1)}
    for quota in quotas or ():
        spec = quota.get("spec") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        for name, text in (spec.get("hard") or {}).items():
            hard = quantity(text)
            if hard is not None and asked.get(name, Fraction(0)) > hard:
                title = (quota.get("metadata") or {}).get("name")
                detail = f"quota {title} allows {name} {text} in all, and {asked[name]} is asked for"
                return Finding(Reason.QUOTA_TOO_SMALL, Basis.STRUCTURE, detail, final=True)
    return None


def _quota_exceeded(message: str) -> Finding | None:
    match = _QUOTA.search(message)
    if match is None:
        return None
    asked, hard = _amounts(match["asked"]), _amounts(match["hard"])
    never = any(amount > hard[name] for name, amount in asked.items() if name in hard)
    reason = Reason.QUOTA_TOO_SMALL if never else Reason.QUOTA_USED
    return Finding(reason, Basis.TEXT, message, final=never)


def _amounts(text: str) -> dict[str, Fraction]:
    pairs = (pair.partition("=") for pair in text.split(","))
    amounts = {name.strip(): quantity(value) for name, _, value in pairs}
    return {name: amount for name, amount in amounts.items() if amount is not None}
