"""Who a SkyPilot cluster belongs to, in the two fields that every infra keeps, and in the one that Slurm has besides.

SkyPilot names a cluster's resources after the cluster: on Slurm the job is `NAME-USERHASH`. The cluster's name
therefore carries token and expiry, in 29 characters, which no infra cuts: the token by the first digits of its SHA-256,
since names end up in receipts. Slurm's comment, which SkyPilot lets a task set, carries run, owner, token and expiry.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from orchestrate.clock import from_wire, to_wire

__all__ = ["Marks", "cluster_name", "is_marked", "is_of_cluster", "marks_of_comment", "marks_of_name"]

_PREFIX = "orc"
_TOKEN_DIGITS = 14
_NAME = re.compile(rf"{_PREFIX}-(?P<token>[0-9a-f]{{{_TOKEN_DIGITS}}})-(?P<expires>[0-9]{{10}})")
_USER_HASH = re.compile(r"-[0-9a-f]{8}")
_HASH_LENGTH = len("-0123abcd")
_COMMENT = re.compile(
    r"orchestrate/1,run=(?P<run>[A-Za-z0-9._-]{1,100}),owner=(?P<owner>[A-Za-z0-9._-]{1,63}),"
    r"token=(?P<token>[0-9a-f]{32}),expires=(?P<expires>[0-9]{8}T[0-9]{6}Z)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Marks:
    """What could be read from the fields of a resource: `token_digest` are the digits that a name has of the token."""

    token_digest: str
    expires_at: str
    run_id: str = ""
    owner: str = ""


def cluster_name(token: str, expires_at: str) -> str:
    """The name of the cluster of a run: `orc-0123456789abcd-2611302245`, the expiry rounded up to a minute (UTC)."""
    at = from_wire(expires_at)
    if at.second or at.microsecond:
        at = at.replace(second=0, microsecond=0) + timedelta(minutes=1)
    return f"{_PREFIX}-{_digest(token)}-{at:%y%m%d%H%M}"


def marks_of_name(name: str) -> Marks | None:
    """What the name of a cluster of ours says, None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        at = datetime.strptime(match["expires"], "%y%m%d%H%M").replace(tzinfo=UTC)
    except ValueError:
        return None
    return Marks(match["token"], to_wire(at))


def is_of_cluster(name: str, cluster: str) -> bool:
    """Whether `name`, on the infra, is the cluster's own: the cluster's name and SkyPilot's hash of the user."""
    return name == cluster or (name.startswith(cluster) and _USER_HASH.fullmatch(name[len(cluster) :]) is not None)


def marks_of_comment(comment: str) -> Marks | None:
    """What the comment of a Slurm job of ours says, None for any other comment."""
    match = _COMMENT.fullmatch(comment)
    if match is None:
        return None
    try:
        at = datetime.strptime(match["expires"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return Marks(_digest(match["token"]), to_wire(at), match["run"], match["owner"])


def is_marked(name: str, comment: str) -> bool:
    """Whether a Slurm job is one of ours beyond doubt: a name can be a coincidence or a copy, but both agree."""
    named = marks_of_name(name) or marks_of_name(name[:-_HASH_LENGTH])
    told = marks_of_comment(comment)
    return named is not None and told is not None and told.token_digest == named.token_digest


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:_TOKEN_DIGITS]
