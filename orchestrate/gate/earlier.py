"""The look for an earlier pass of the same change: an artifact of this repository, asked for at GitHub's own API.

What is found here only says where to download from. Whether that pass stands is decided from its receipts, when they
are there (`gate admit`, `gate conclude`).
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from orchestrate.clock import from_wire, utc_now
from orchestrate.errors import BackendError
from orchestrate.gate.change import Change

__all__ = ["EarlierPass", "artifact_key", "find_earlier_pass"]

_TIMEOUT_S = 30.0
_MAX_BYTES = 8 << 20
_PER_PAGE = 100
"""GitHub's largest page, the newest artifact first. Of more than that many of one name the rest is not looked at."""


@dataclass(frozen=True, slots=True)
class EarlierPass:
    """Where an earlier pass can be downloaded.

    Attributes:
        run: number of the workflow run whose artifact it is.
        expires: when GitHub deletes it, RFC 3339.
    """

    run: int
    expires: str


def artifact_key(change: Change) -> str:
    """What names the artifact of a pass: head and base, so that a pass of the same change is found by its name."""
    return f"{change.head}-{change.base or 'none'}"


def find_earlier_pass(change: Change, api_url: str, token: str) -> EarlierPass | None:
    """The newest artifact of a pass with this head and base that can count; None where there is none.

    Any workflow can upload a file of that name. One counts only if it has not expired, and comes from a run of the same
    workflow file, of the same repository (no fork), branch and head.

    Args:
        change: what is tested now.
        api_url: base address of GitHub's REST API (GITHUB_API_URL).
        token: may read the actions of the repository; it is sent there and nowhere else.

    Raises:
        BackendError: GitHub did not answer, or with something else than it documents.
    """
    runs = f"{api_url.rstrip('/')}/repos/{change.repository}/actions"
    query = urllib.parse.urlencode({"name": f"gpu-gate-passed-{artifact_key(change)}", "per_page": _PER_PAGE})
    found = _get(f"{runs}/artifacts?{query}", token).get("artifacts")
    if not isinstance(found, list):
        _unusable("its list of artifacts is none")
    candidates = [each for each in found if isinstance(each, Mapping) and _may_count(each, change)]
    ours = _workflow_file(f"{runs}/runs/{change.run}", token) if candidates else None
    for each in candidates:
        number = each["workflow_run"]["id"]
        if _workflow_file(f"{runs}/runs/{number}", token) == ours:
            return EarlierPass(number, each["expires_at"])
    return None


def _may_count(artifact: Mapping[str, Any], change: Change) -> bool:
    origin = artifact.get("workflow_run")
    if artifact.get("expired") is not False or not isinstance(origin, Mapping):
        return False
    try:
        live = from_wire(str(artifact.get("expires_at"))) > utc_now()
    except (ValueError, OverflowError):
        return False
    repository = origin.get("repository_id")
    return (
        live
        and type(origin.get("id")) is int
        and type(repository) is int
        and repository == origin.get("head_repository_id")
        and origin.get("head_sha") == change.head
        and origin.get("head_branch") == change.branch.removeprefix("refs/heads/")
    )


def _workflow_file(url: str, token: str) -> str:
    """The file of a run's workflow; GitHub may add `@` and a branch to its path."""
    path = _get(url, token).get("path")
    if not isinstance(path, str) or not path:
        _unusable("a workflow run has no path")
    return path.partition("@")[0]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token goes to the API's own address alone."""

    def redirect_request(self, *_: object) -> None:
        return None


def _get(url: str, token: str) -> dict[str, Any]:
    if not url.startswith(("https://", "http://")):
        _unusable(f"its address {url[:100]!r} is none of the web")
    request = urllib.request.Request(  # noqa: S310  # looked at above
        url,
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {token}",
            "User-Agent": "orchestrate",
            "X-GitHub-Api-Version": "2022-11-28",
        },
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S) as answer:
            tree = json.loads(answer.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        _unusable(f"{error.code} {error.reason}")
    except (OSError, ValueError, RecursionError) as error:
        _unusable(f"{type(error).__name__}: {error}")
    if not isinstance(tree, dict):
        _unusable("the answer is no object")
    return tree


def _unusable(why: str) -> NoReturn:
    raise BackendError(
        f"GitHub can not be asked for an earlier pass: {why}",
        remedy="give the job `actions: read` and GITHUB_TOKEN; without an answer there is no earlier pass",
    )
