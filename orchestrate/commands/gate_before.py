"""`orchestrate gate classify` and `admit`: what is tested, whether it needs GPUs, and whether it is still in time."""

from __future__ import annotations

import os
import subprocess
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import click

from orchestrate.clock import from_wire, to_wire, utc_now
from orchestrate.commands.duration import DURATION
from orchestrate.commands.gate_step import POLICY_OPTION, RECORDS_OPTION, answer, change_here, git, policy_in
from orchestrate.commands.saying import say
from orchestrate.commands.signing import required_keys, signature_options
from orchestrate.errors import BackendError, UsageError
from orchestrate.gate.change import Change, Checkout, identity_problems, owner_of
from orchestrate.gate.conclusion import Classified, conclude
from orchestrate.gate.earlier import EarlierPass, artifact_key, find_earlier_pass
from orchestrate.gate.fetched import evidence_of, find_run_of
from orchestrate.gate.policy import GatePolicy, needs_gpus
from orchestrate.gate.records import ADMITTED, CLASSIFIED, as_classified, read_record, write_record
from orchestrate.receipts.signing import PublicKey
from orchestrate.verdict import Verdict

__all__ = ["admit", "classify"]

_SHOWN = 5
_CLOCKS_DIFFER = timedelta(minutes=5)
"""Of the machines of two jobs."""


@click.command("classify")
@RECORDS_OPTION
@POLICY_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def classify(records: Path, policy: Path, *, as_json: bool) -> int:
    """Find out which change is tested, and whether any path of it needs GPUs.

    Outputs: needed (true, false), head, base, tested, tree, owner, key (of the artifact of a pass). Where git can not
    tell what changed, GPUs are needed. With GITHUB_TOKEN also earlier-run and earlier-expires: which workflow run left
    an earlier pass of the same change, if any, for `gate admit` to judge. The exit code is 0, or 4 where what is
    checked out is not the change.

    \b
    Example:
      orchestrate gate classify --records gate
    """
    change = change_here()
    checkout = _checkout()
    wanted = policy_in(policy, change.base)
    needed, reason = _needed(change, checkout, wanted)
    problems = identity_problems(change, checkout)
    owner = owner_of(change.repository, change.run, change.attempt)
    record = {
        "change": change.as_json(),
        "checkout": asdict(checkout),
        "needed": needed,
        "reason": reason,
        "owner": owner,
        "problems": list(problems),
        "at": to_wire(utc_now()),
    }
    write_record(records / CLASSIFIED, "classified", record)
    outputs = {
        "needed": str(needed).lower(),
        "head": change.head,
        "base": change.base or "",
        "tested": checkout.commit,
        "tree": checkout.tree,
        "owner": owner,
        "key": artifact_key(change),
    }
    earlier, why_none = _earlier_pass(change) if needed else (None, None)
    if earlier is not None:
        outputs |= {"earlier-run": str(earlier.run), "earlier-expires": earlier.expires}
    answer(outputs, record if as_json else None)
    looked = [] if why_none is None else [f"no earlier pass: {why_none}"]
    for line in (f"needed: {needed} ({reason})", *problems, *looked):
        say(line, err=as_json)
    return Verdict.INCOMPLETE.exit_code if problems else 0


@click.command("admit")
@RECORDS_OPTION
@POLICY_OPTION
@click.option("--within", type=DURATION, default="6h", show_default=True, metavar="DURATION",
              help="After the classification; later nothing is asked for any more.")  # fmt: skip
@click.option("--earlier", type=click.Path(path_type=Path), metavar="DIR",
              help="The artifact of an earlier run: its records and runs.")  # fmt: skip
@click.option("--earlier-expires", metavar="RFC3339", help="When that artifact expires.")
@signature_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def admit(
    records: Path,
    policy: Path,
    within: int,
    earlier: Path | None,
    earlier_expires: str | None,
    keys: tuple[str, ...],
    identity: str | None,
    issuer: str,
    *,
    as_json: bool,
) -> int:
    """Let a change through to the GPUs, unless its time is over or an earlier pass of it still holds.

    An earlier pass counts only for the same repository, branch, head and base, from an artifact that has not expired
    and whose receipts verify now. Outputs: admitted, reuse (true, false). The exit code is 0, or 76 where the
    admission deadline has passed.

    \b
    Example:
      orchestrate gate admit --records gate --within 6h
    """
    required = required_keys(keys, identity, issuer)
    tree = read_record(records / CLASSIFIED, "classified")
    classified = as_classified(tree)
    if tree is None or classified is None:
        raise UsageError(f"{records / CLASSIFIED} is no record of `gate classify`", remedy="run that step first")
    now = utc_now()
    try:
        since = now - from_wire(str(tree.get("at")))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{records / CLASSIFIED} does not say when it was made", remedy="classify again") from error
    in_time = -_CLOCKS_DIFFER <= since <= timedelta(seconds=within)
    reuse, why = (False, "there is no earlier run")
    if earlier is not None:
        wanted = policy_in(policy, classified.change.base)
        reuse, why = _reuse(classified, wanted, earlier, earlier_expires, required)
    admitted = in_time and not reuse and classified.needed and not classified.change.from_fork
    reason = why if reuse else _why_not(classified, in_time=in_time)
    record = {"admitted": admitted, "in_time": in_time, "reuse": reuse, "reason": reason, "at": to_wire(now)}
    write_record(records / ADMITTED, "admitted", record)
    answer({"admitted": str(admitted).lower(), "reuse": str(reuse).lower()}, record if as_json else None)
    say(reason, err=as_json)
    return 0 if in_time or reuse else Verdict.NOT_RUN.exit_code


def _earlier_pass(change: Change) -> tuple[EarlierPass | None, str | None]:
    """An earlier pass, or why there is none. That GitHub does not answer keeps no change from being tested."""
    token = os.environ.get("GITHUB_TOKEN", "")
    if not token:
        return None, "not asked for, GITHUB_TOKEN is not set"
    try:
        found = find_earlier_pass(change, os.environ.get("GITHUB_API_URL") or "https://api.github.com", token)
    except BackendError as error:
        return None, error.cause
    return found, None if found else "no artifact of one"


def _why_not(classified: Classified, *, in_time: bool) -> str:
    if not classified.needed:
        return classified.reason
    if classified.change.from_fork:
        return "the change comes from another repository: it gets no credentials, and so no GPUs"
    return "admitted" if in_time else "the admission deadline has passed: nothing is asked for"


def _reuse(
    classified: Classified, policy: GatePolicy, folder: Path, expires: str | None, keys: tuple[PublicKey, ...]
) -> tuple[bool, str]:
    try:
        expired = expires is None or from_wire(expires) <= utc_now()
    except ValueError:
        expired = True
    if expired:
        return False, "the earlier artifact has expired, or nobody says when it does"
    before = as_classified(read_record(folder / "records" / CLASSIFIED, "classified"))
    if before is None:
        return False, "the earlier artifact has no record of what it tested"
    ours, theirs = classified.change, before.change
    for name in ("repository", "branch", "head", "base"):
        if getattr(ours, name) != getattr(theirs, name):
            return False, f"the earlier run is of another {name}"
    run = find_run_of(folder / "runs", owner_of(theirs.repository, theirs.run, theirs.attempt))
    if run is None:
        return False, "the earlier artifact has no run of its own"
    cited = f"workflow run {theirs.run}, attempt {theirs.attempt}"
    conclusion = conclude(before, None, True, evidence_of(run, keys=keys, reused_from=cited), None, policy)
    return conclusion.green, f"{cited}: {conclusion.reason}"


def _needed(change: Change, checkout: Checkout, policy: GatePolicy) -> tuple[bool, str]:
    if change.base is None:
        return True, "there is no base to compare with"
    try:
        changed = git("diff", "--name-only", "--no-renames", "-z", change.base, checkout.commit).split(b"\0")
    except (OSError, subprocess.SubprocessError):
        return True, "git can not tell what changed"
    paths = [os.fsdecode(path) for path in changed if path]
    matching = needs_gpus(policy, paths)
    if not matching:
        return False, f"none of the {len(paths)} changed paths needs GPUs"
    more = f" and {len(matching) - _SHOWN} more" if len(matching) > _SHOWN else ""
    return True, f"{', '.join(matching[:_SHOWN])}{more} need GPUs"


def _checkout() -> Checkout:
    try:
        commit, *parents = git("rev-list", "--parents", "-n", "1", "HEAD").decode().split()
        tree = git("rev-parse", "HEAD^{tree}").decode().strip()
        return Checkout(commit, tuple(parents), tree, dirty=bool(git("status", "--porcelain", "--untracked-files=no")))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UsageError(
            "git can not say what is checked out here", remedy="check the repository out first, with its history"
        ) from error
