"""`orchestrate review`: say something of a closed run, by name, without editing anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from orchestrate.clock import to_wire, utc_now
from orchestrate.commands.run_dir import RUNS_DIR_OPTION
from orchestrate.commands.saying import say
from orchestrate.commands.signing import SIGN_KEY_OPTION, check_sign_key, sign_closure_of
from orchestrate.errors import ReceiptError, UsageError
from orchestrate.lifecycle.recovery import redactions
from orchestrate.lifecycle.reviewing import add_review
from orchestrate.lifecycle.run_directory import find_run
from orchestrate.receipts.reviews import Review, ReviewKind
from orchestrate.receipts.verify import verify_run
from orchestrate.user import home_folder

__all__ = ["command"]

_MAX_TEXT = 2000


@click.command("review")
@click.argument("run", metavar="RUN")
@click.option("--kind", type=click.Choice([kind.value for kind in ReviewKind]), required=True,
              help="audit: verify it again, independently; hold, release: keep it from being a pass, or let it go; "
              "review: a reviewer's finding.")  # fmt: skip
@click.option("--by", required=True, metavar="NAME", help="Who says it.")
@click.option("--why", required=True, metavar="TEXT", help="In words.")
@click.option("--fails", is_flag=True, help="review: the finding is that it does not hold.")
@SIGN_KEY_OPTION
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    run: str, kind: str, by: str, why: str, sign_key: str | None, runs_dir: Path, *, fails: bool, as_json: bool
) -> int:
    """Add a further closure to a closed run: a second audit, a hold, its release, or a review. Nothing is edited.

    A review can take a pass away, never give one. While somebody holds a run its verdict is `incomplete`; where the
    newest word of an auditor or reviewer is that it fails, the verdict is `failed`, and the review stays in the chain
    whatever comes later. Who held it must release it. An audit verifies the receipts now and says what it found. The
    exit code is that of the verdict afterwards.

    \b
    Example:
      orchestrate review latest --kind hold --by ada --why "the clocks of node 3 were off" --sign-key ada.pem
      orchestrate review latest --kind audit --by second-eyes --why "monthly"
    """
    chosen, by = ReviewKind(kind), by.strip()
    if fails and chosen is not ReviewKind.REVIEW:
        raise UsageError(
            "--fails goes with --kind review", remedy="an audit finds out by itself; a hold needs no finding"
        )
    for name, text in (("--by", by), ("--why", why)):
        if not text.strip() or len(text) > _MAX_TEXT or not text.isprintable():
            raise UsageError(f"{name} is empty, too long, or not printable", remedy=f"give at most {_MAX_TEXT} letters")
    check_sign_key(sign_key)
    directory = find_run(runs_dir, run)
    found = verify_run(directory.path)
    if not found.holds and chosen is not ReviewKind.AUDIT:
        raise ReceiptError(
            f"the receipts of {directory.run_id} do not hold: {found.problems[0]}",
            remedy="`orchestrate verify` lists all that is wrong; only an audit can say something of it",
        )
    holds = found.holds if chosen is ReviewKind.AUDIT else not fails
    told = why if found.holds else f"{why}; the receipts do not hold: {found.problems[0]}"
    now = utc_now()
    redact = redactions(directory.read_token(), home_folder()) if directory.token.exists() else {}
    closure = add_review(directory, Review(chosen, by, holds, told[:_MAX_TEXT]), redact, now, to_wire(now))
    signature = None if sign_key is None else sign_closure_of(directory.path, closure.sha256, sign_key)
    answer: dict[str, Any] = {
        "run_id": directory.run_id,
        "verdict": closure.facts["verdict"],
        "test_verdict": closure.facts["test_verdict"],
        "reason": closure.facts["reason"],
        "exit_code": closure.facts["exit_code"],
        "closure_sha256": closure.sha256,
        "supersedes": closure.facts["supersedes"],
        "signature": None if signature is None else os.fspath(signature),
    }
    if as_json:
        say(json.dumps(answer, sort_keys=True))
    reason = f" ({answer['reason']})" if answer["reason"] else ""
    say(f"{directory.run_id}: {answer['verdict']}{reason}", err=as_json)
    return int(answer["exit_code"])
