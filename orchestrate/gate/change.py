"""The change that a gate judges: head, base, tested commit and tree are four facts.

GitHub checks out a merge commit for a pull request. That commit is neither its head nor its base: what a receipt says
of it holds for exactly that head merged into exactly that base.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrate.errors import UsageError

__all__ = [
    "GATE_SCHEMA",
    "Change",
    "Checkout",
    "attempt_of",
    "differences",
    "identity_problems",
    "owner_of",
    "read_change",
    "read_sha",
]

GATE_SCHEMA = "orchestrate.gate/1"
_MENDS = "; push to the branch, or update it, and GitHub names this base"
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NO_COMMIT = re.compile(r"0+")
_REPOSITORY = re.compile(r"[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class Change:
    """What GitHub says is to be tested.

    Attributes:
        repository: `owner/name` of the repository that the workflow runs in.
        event: name of the event.
        branch: the branch that the change comes from.
        head, base: the change's own commit, and what it goes on top of; None where there is no base.
        tested: the commit that the workflow checks out (GITHUB_SHA).
        from_fork: the change comes from another repository: it gets no secrets, so nothing can be asked for.
        run, attempt: number of the workflow run, and which try of it this is.
    """

    repository: str
    event: str
    branch: str
    head: str
    base: str | None
    tested: str
    from_fork: bool
    run: int
    attempt: int

    @property
    def base_is_named(self) -> bool:
        """Whether the event itself says what the change goes on top of; of a push it says what was there before."""
        return self.event in {"pull_request", "pull_request_target", "merge_group"}

    def as_json(self) -> dict[str, Any]:
        """As in gate.json."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Checkout:
    """What git says of the files that are there: the commit, its parents, its tree, and whether they are changed."""

    commit: str
    parents: tuple[str, ...]
    tree: str
    dirty: bool


def read_change(environ: Mapping[str, str], event: Mapping[str, Any]) -> Change:
    """The change from the runner's environment and the event's payload.

    Raises:
        UsageError: a variable or member is missing or has another form; it is named.
    """
    name = _variable(environ, "GITHUB_EVENT_NAME")
    repository = _variable(environ, "GITHUB_REPOSITORY")
    if not _REPOSITORY.fullmatch(repository):
        raise _wrong("GITHUB_REPOSITORY", repository)
    tested = read_sha("GITHUB_SHA", _variable(environ, "GITHUB_SHA"))
    head, base, branch, from_fork = tested, None, environ.get("GITHUB_REF_NAME", ""), False
    match name:
        case "pull_request" | "pull_request_target":
            head = read_sha("pull_request.head.sha", _member(event, "pull_request", "head", "sha"))
            base = read_sha("pull_request.base.sha", _member(event, "pull_request", "base", "sha"))
            branch = str(_member(event, "pull_request", "head", "ref"))
            source = _member(event, "pull_request", "head", "repo")
            from_fork = not isinstance(source, dict) or source.get("full_name") != repository
        case "merge_group":
            head = read_sha("merge_group.head_sha", _member(event, "merge_group", "head_sha"))
            base = read_sha("merge_group.base_sha", _member(event, "merge_group", "base_sha"))
            branch = str(_member(event, "merge_group", "head_ref"))
        case "push":
            before = str(event.get("before") or "")
            base = before if _SHA.fullmatch(before) and not _NO_COMMIT.fullmatch(before) else None
    return Change(
        repository=repository,
        event=name,
        branch=branch[:300],
        head=head,
        base=base,
        tested=tested,
        from_fork=from_fork,
        run=_number(environ, "GITHUB_RUN_ID"),
        attempt=_number(environ, "GITHUB_RUN_ATTEMPT"),
    )


def identity_problems(change: Change, checkout: Checkout) -> tuple[str, ...]:
    """Why what is checked out is not this change, empty where it is.

    It is the head itself, or the merge of exactly this head and this base, and nothing in it is changed.
    """
    problems = []
    if checkout.commit != change.tested:
        problems.append(f"{checkout.commit[:12]} is checked out, GitHub names {change.tested[:12]}")
    if checkout.commit != change.head and checkout.parents != (change.base, change.head):
        parents = ", ".join(parent[:12] for parent in checkout.parents) or "none"
        base = (change.base or "none")[:12]
        problems.append(
            f"{checkout.commit[:12]} is neither the head {change.head[:12]} nor its merge into the base {base} "
            f"(its parents: {parents})"
            + (
                "; push to the branch, or update it, and GitHub names this base"
                if _merges_head(change, checkout)
                else ""
            )
        )
    if checkout.dirty:
        problems.append("the checkout has changes that are in no commit")
    return tuple(problems)


def _merges_head(change: Change, checkout: Checkout) -> bool:
    """Whether it is a merge of the head into another base than the event names."""
    return len(checkout.parents) == 2 and checkout.parents[1] == change.head


def owner_of(repository: str, run: int, attempt: int) -> str:
    """The owner that every resource of a workflow run's attempt names: from it alone an audit can find them."""
    return f"gh:{repository}:{run}.{attempt}"


def attempt_of(owner: object, repository: str, run: int) -> int | None:
    """Which attempt of that workflow run an owner names; None where it names none of it."""
    head, _, attempt = str(owner).rpartition(".")
    is_one = f"{head}." == owner_of(repository, run, 0)[:-1] and re.fullmatch(r"[1-9][0-9]{0,8}", attempt, re.ASCII)
    return int(attempt) if is_one else None


def differences(recorded: tuple[Change, Checkout], now: tuple[Change, Checkout]) -> tuple[str, ...]:
    """In what a record of an earlier job, or of an earlier attempt of it, is not what GitHub and git say now."""
    (change, checkout), (change_now, checkout_now) = recorded, now
    names = ("repository", "event", "branch", "head", "base", "tested", "from_fork", "run")
    found = [f"another {name}" for name in names if getattr(change, name) != getattr(change_now, name)]
    found += ["a later attempt"] if change.attempt > change_now.attempt else []
    found += [
        f"another {name}"
        for name in ("commit", "parents", "tree")
        if getattr(checkout, name) != getattr(checkout_now, name)
    ]
    return tuple(f"the record of `gate classify` is of {each}" for each in dict.fromkeys(found))


def _variable(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise UsageError(f"{name} is not set", remedy="run this as a step of a GitHub workflow")
    return value


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _variable(environ, name)
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise _wrong(name, text)
    return int(text)


def _member(event: Mapping[str, Any], *path: str) -> Any:
    value: Any = event
    for name in path:
        if not isinstance(value, dict) or name not in value:
            raise UsageError(f"the event has no {'.'.join(path)}", remedy="look at the file GITHUB_EVENT_PATH names")
        value = value[name]
    return value


def read_sha(what: str, value: object) -> str:
    """`value` where it is the id of a git object; `UsageError` names `what` otherwise."""
    if not isinstance(value, str) or not _SHA.fullmatch(value):
        raise _wrong(what, value)
    return value


def _wrong(what: str, value: object) -> UsageError:
    return UsageError(f"{what} is {str(value)[:100]!r}", remedy="run this as a step of a GitHub workflow")
