"""`orchestrate gate classify` and `admit`: what is tested, whether it needs GPUs, and whether it is still in time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import click

from orchestrate.clock import from_wire, to_wire, utc_now
from orchestrate.commands.duration import DURATION
from orchestrate.commands.gate_asked import asked_problems, file_of_groups
from orchestrate.commands.gate_change import judged_here
from orchestrate.commands.gate_step import (
    POLICY_OPTION,
    RECORDS_OPTION,
    answer,
    checkout_here,
    git,
)
from orchestrate.commands.saying import say
from orchestrate.commands.signing import policy_keys, required_keys, signature_options
from orchestrate.errors import BackendError, UsageError
from orchestrate.gate.change import Change, identity_problems, owner_of
from orchestrate.gate.conclusion import CLOCKS_DIFFER, Classified, conclude
from orchestrate.gate.earlier import EarlierPass, artifact_key, find_earlier_pass
from orchestrate.gate.fetched import earlier_run_of, evidence_of
from orchestrate.gate.policy import GatePolicy, needs_gpus
from orchestrate.gate.records import ADMITTED, CLASSIFIED, as_classified, read_record, write_record
from orchestrate.markup import brief
from orchestrate.receipts.signing import PublicKey
from orchestrate.verdict import Verdict

__all__ = ["admit", "classify", "classify_here"]

_SHOWN = 5


@click.command("classify")
@RECORDS_OPTION
@POLICY_OPTION
@click.option("--launch", metavar="OPTIONS", help="What `gate run` will be given, as one text: an earlier pass counts "
              "only where it was asked for the same.")  # fmt: skip
@click.option("--audit", metavar="OPTIONS",
              help="What `gate reconcile` will be given, as one text: it must look where the run goes.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def classify(records: Path, policy: Path, launch: str | None, audit: str | None, *, as_json: bool) -> int:
    """Find out which change is tested, and whether any path of it needs GPUs.

    Outputs: needed (true, false), head, base, tested, tree, owner, key (of the artifact of a pass), from-fork. Where
    git can not tell what changed, GPUs are needed. With GITHUB_TOKEN also earlier-run and earlier-expires: which
    workflow run left an earlier pass of the same change, if any, for `gate admit` to judge. The exit code is 0, or 4
    where what is checked out is not the change, or the look afterwards would not be where the run goes.

    \b
    Example:
      orchestrate gate classify --records gate
      orchestrate gate classify --records gate --launch "--backend k8s --cell-set main" --audit "--backend k8s"
    """
    classified, _ = classify_here(policy, _split(launch), _split(audit))
    change, checkout, needed = classified.change, classified.checkout, classified.needed
    owner = owner_of(change.repository, change.run, change.attempt)
    record = {
        **asdict(classified),
        "owner": owner,
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
        "from-fork": str(change.from_fork).lower(),
    }
    earlier, why_none = _earlier_pass(change) if needed else (None, None)
    if earlier is not None:
        outputs |= {"earlier-run": str(earlier.run), "earlier-expires": earlier.expires}
    answer(outputs, record if as_json else None)
    looked = [] if why_none is None else [f"no earlier pass: {why_none}"]
    for line in (f"needed: {needed} ({classified.reason})", *classified.problems, *looked):
        say(brief(line), err=as_json)
    return Verdict.INCOMPLETE.exit_code if classified.problems else 0


def classify_here(
    policy: Path, launch: Sequence[str] | None, audit: Sequence[str] | None
) -> tuple[Classified, GatePolicy]:
    """What GitHub and git say here and now of the change, with the options of its run and of the look afterwards.

    Beside it the policy that judges it.

    Raises:
        UsageError: there is no change, no checkout, or no policy.
    """
    change, wanted = judged_here(policy)
    checkout = checkout_here()
    changed = None if change.base is None else _changed(change.base, checkout.commit)
    problems = (*identity_problems(change, checkout), *asked_problems(launch, audit))
    groups = _groups_file(launch)
    needed, reason = _needed(change, changed, wanted, groups)
    own = {policy.as_posix(), groups}
    classified = Classified(
        change,
        checkout,
        needed,
        reason,
        problems,
        None if launch is None else tuple(launch),
        None if audit is None else tuple(audit),
        tuple(_shown(path) for path in changed or () if path in own or path.startswith(".github/workflows/")),
    )
    return classified, wanted


def _split(options: str | None) -> tuple[str, ...] | None:
    """As the workflow splits them: at blanks and ends of lines."""
    return None if options is None else tuple(options.split())


def _groups_file(launch: Sequence[str] | None) -> str | None:
    try:
        return file_of_groups(launch)
    except UsageError:  # said among the problems
        return None


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
    in_time = -CLOCKS_DIFFER <= since <= timedelta(seconds=within)
    reuse, why = (False, "")
    if earlier is not None:
        _, wanted = judged_here(policy)
        reuse, why = _reuse(classified, wanted, earlier, earlier_expires, (*required, *policy_keys(wanted)))
    admitted = in_time and not reuse and classified.needed and not classified.change.from_fork
    reason = why if reuse else _why_not(classified, in_time=in_time)
    if why and not reuse:
        reason += f" (no earlier pass: {why})"
    record = {"admitted": admitted, "in_time": in_time, "reuse": reuse, "reason": reason, "at": to_wire(now)}
    write_record(records / ADMITTED, "admitted", record)
    answer({"admitted": str(admitted).lower(), "reuse": str(reuse).lower()}, record if as_json else None)
    say(brief(reason), err=as_json)
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
    found = earlier_run_of(folder, classified)
    if isinstance(found, str):
        return False, found
    record, attempt, cited, looked = found
    evidence = evidence_of(record, attempt, keys=keys, reused_from=cited, earlier_look=looked)
    conclusion = conclude(classified, None, True, evidence, None, policy)
    return conclusion.green, f"{cited}: {conclusion.reason}"


def _needed(change: Change, changed: Sequence[str] | None, policy: GatePolicy, groups: str | None) -> tuple[bool, str]:
    if change.base is None:
        return True, "there is no base to compare with"
    if changed is None:
        return True, "git can not tell what changed"
    matching = needs_gpus(policy, changed) or tuple(path for path in changed if path == groups)
    if not matching:
        return False, f"none of the {len(changed)} changed paths needs GPUs"
    more = f" and {len(matching) - _SHOWN} more" if len(matching) > _SHOWN else ""
    return True, f"{', '.join(_shown(path) for path in matching[:_SHOWN])}{more} need GPUs"


def _changed(base: str, commit: str) -> tuple[str, ...] | None:
    """The paths that differ, that of a submodule with a slash at its end; None where git can not tell."""
    try:
        raw = git("diff", "--raw", "--no-renames", "--ignore-submodules=none", "-z", base, commit).split(b"\0")
    except (OSError, subprocess.SubprocessError):
        return None
    rows = zip(raw[::2], raw[1::2], strict=False)
    is_submodule = b"160000"
    return tuple(
        os.fsdecode(path) + ("/" if is_submodule in about.removeprefix(b":").split()[:2] else "")
        for about, path in rows
    )


def _shown(path: str) -> str:
    """A path as text that every reader takes: what is no character in it stands as `\\xNN`."""
    return brief(os.fsencode(path).decode("utf-8", "backslashreplace").removesuffix("/"))
