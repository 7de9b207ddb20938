"""`orchestrate verify`: check the receipts of a run, offline."""

from __future__ import annotations

import json
from pathlib import Path

import click

from orchestrate.clock import to_wire
from orchestrate.commands.run_dir import RUNS_DIR_OPTION, locate_run
from orchestrate.commands.saying import say
from orchestrate.commands.signing import required_keys, signature_options
from orchestrate.errors import UsageError
from orchestrate.receipts.reviews import WrittenReview
from orchestrate.receipts.verify import Verification, verify_run

__all__ = ["command"]


@click.command("verify")
@click.argument("runs", metavar="RUN_OR_DIR...", nargs=-1, required=True)
@click.option("--expect-closure", metavar="SHA256", help="The newest closure must have this digest.")
@click.option("--commit", metavar="SHA", help="This commit must have run, with a clean tree (7 or more hex digits).")
@click.option("--require-passed", is_flag=True, help="The verdict must be passed as well: what a gate needs.")
@signature_options
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    runs: tuple[str, ...],
    expect_closure: str | None,
    commit: str | None,
    keys: tuple[str, ...],
    identity: str | None,
    issuer: str,
    runs_dir: Path,
    *,
    require_passed: bool,
    as_json: bool,
) -> int:
    """Check that the receipts of runs are whole and that their verdicts follow from them, offline.

    Several runs hold only if each does; --expect-closure is for one alone. Exit code 0 says that the receipts hold, 1
    that they do not. A failed run whose receipts truly say `failed` holds: add --require-passed where only a pass will
    do. Without --expect-closure or --require-signature whoever holds the files could have recomputed them all.

    \b
    Example:
      orchestrate verify r20260102-030405-0a1b2c
      orchestrate verify ./fetched-run --expect-closure SHA256 --commit SHA --require-passed --json
    """
    if expect_closure is not None and len(runs) > 1:
        raise UsageError("--expect-closure is of one run, and several are named", remedy="verify that one by itself")
    public = required_keys(keys, identity, issuer)
    found = [
        verify_run(
            locate_run(run, runs_dir),
            expect_closure=expect_closure,
            expect_commit=commit,
            require_passed=require_passed,
            require_signatures=public,
        )
        for run in runs
    ]
    holds = all(each.holds for each in found)
    if as_json:
        trees = [each.as_json() for each in found]
        say(json.dumps(trees[0] if len(trees) == 1 else {"holds": holds, "runs": trees}, sort_keys=True))
    for number, each in enumerate(found):
        if number:
            say("", err=as_json)
        _explain(each, to_stderr=as_json)
    return 0 if holds else 1


def _explain(found: Verification, *, to_stderr: bool) -> None:
    head = "HOLDS" if found.holds else "DOES NOT HOLD"
    say(click.style(f"receipts {head}", fg="green" if found.holds else "red", bold=True), err=to_stderr)
    verdict = found.verdict
    said = f"{verdict.label.upper()} {'' if found.closure_sha256 else '(there is no closure)'}".strip()
    line, colour = (found.meaning, "red") if found.doubt else (f"{said}  {found.meaning}", verdict.colour)
    say(click.style(f"verdict  {_shown(line)}", fg=colour, bold=True), err=to_stderr)
    for name, value in (
        ("run", found.run_id),
        ("cells", f"claimed {found.test_verdict}" if found.doubt else found.test_verdict.label),
        ("device", found.device),
        ("commit", found.commit),
        ("closure", found.closure_sha256),
    ):
        say(f"{name:8} {_shown(value)}", err=to_stderr)
    for title, lines in (
        ("problems", found.problems),
        ("reviews", tuple(map(_review, found.reviews))),
        ("what the receipts prove", found.proves),
        ("what they do not prove", found.does_not_prove),
    ):
        if lines:
            say(f"\n{title}:", err=to_stderr)
        for line in lines:
            say(f"  - {_shown(line)}", err=to_stderr)


def _review(said: WrittenReview) -> str:
    review, counts = said.review, "counts" if said.counts else "does not count"
    words = ", ".join(word for word in (said.finding, said.signature, counts) if word)
    return f"{to_wire(said.at)} {review.kind} by {review.by} ({words}): {review.why}"


def _shown(value: str | None) -> str:
    return "none" if value is None else "".join(letter if letter.isprintable() else "?" for letter in value)
