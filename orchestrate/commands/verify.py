"""`orchestrate verify`: check the receipts of a run, offline."""

from __future__ import annotations

import json
from pathlib import Path

import click

from orchestrate.clock import to_wire, utc_now
from orchestrate.commands.output import write_output
from orchestrate.commands.run_dir import RUNS_DIR_OPTION, locate_run
from orchestrate.commands.saying import say
from orchestrate.commands.signing import check_sign_key, required_keys, signature_options, signed
from orchestrate.errors import UsageError
from orchestrate.receipts.reviews import WrittenReview
from orchestrate.receipts.root import MAX_ROOT_BYTES, Root, read_root, root_problems, root_statement
from orchestrate.receipts.signing import PublicKey
from orchestrate.receipts.verify import Verification, verify_run
from orchestrate.user import default_owner

__all__ = ["command"]


@click.command("verify")
@click.argument("runs", metavar="RUN_OR_DIR...", nargs=-1, required=True)
@click.option("--expect-closure", metavar="SHA256", help="The newest closure must have this digest.")
@click.option("--commit", metavar="SHA", help="This commit must have run, with a clean tree (7 or more hex digits).")
@click.option("--require-passed", is_flag=True, help="The verdict must be passed as well: what a gate needs.")
@signature_options
@click.option("--root", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write a root closure over these runs: who verified them, and what came of it.")  # fmt: skip
@click.option("--by", metavar="NAME", help="With --root: who verifies.  [default: user@host]")
@click.option("--sign-key", metavar="KEY", help="With --root: sign it, in a DSSE envelope (PEM file, or `sigstore:`).")
@click.option("--expect-root", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="These must be the runs of that root closure, as they were then, and "
              "--require-signature is of it.")  # fmt: skip
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    runs: tuple[str, ...],
    expect_closure: str | None,
    commit: str | None,
    keys: tuple[str, ...],
    identity: str | None,
    issuer: str,
    root: Path | None,
    by: str | None,
    sign_key: str | None,
    expect_root: Path | None,
    runs_dir: Path,
    *,
    require_passed: bool,
    as_json: bool,
) -> int:
    """Check that the receipts of runs are whole and that their verdicts follow from them, offline.

    Several runs hold only if each does; --expect-closure is for one alone. Exit code 0 says that the receipts hold, 1
    that they do not. A failed run whose receipts truly say `failed` holds: add --require-passed where only a pass will
    do. Without --expect-closure or --require-signature whoever holds the files could have recomputed them all.

    With --root the answer about all of them becomes a receipt of its own, over the closure of each, by whoever asked.
    It edits no run. --expect-root holds the same runs to it later: none more, none less, none closed again since.

    \b
    Example:
      orchestrate verify r20260102-030405-0a1b2c
      orchestrate verify RUN_1 RUN_2 --require-passed --commit SHA --root release.json --by ada --sign-key ada.pem
      orchestrate verify RUN_1 RUN_2 --expect-root release.json --require-signature ada.pub
      orchestrate verify ./fetched-run --expect-closure SHA256 --commit SHA --require-passed --json
    """
    if expect_closure is not None and len(runs) > 1:
        raise UsageError("--expect-closure is of one run, and several are named", remedy="verify that one by itself")
    if root is None and (by or sign_key):
        raise UsageError("--by and --sign-key are for a root closure", remedy="add --root FILE")
    public = required_keys(keys, identity, issuer)
    check_sign_key(sign_key)
    places = [locate_run(run, runs_dir) for run in runs]
    found = [
        verify_run(
            place,
            expect_closure=expect_closure,
            expect_commit=commit,
            require_passed=require_passed,
            require_signatures=() if expect_root else public,
        )
        for place in places
    ]
    of_root = () if expect_root is None else root_problems(_root_in(expect_root, public), found)
    holds = all(each.holds for each in found) and not of_root
    if root is not None:
        asked = {"commit": commit, "require_passed": require_passed, "expect_closure": expect_closure,
                 "signed_by": [] if expect_root else [key.id for key in public]}  # fmt: skip
        statement = root_statement(found, by=(by or default_owner()).strip(), at=to_wire(utc_now()), asked=asked)
        write_output(root, statement + b"\n" if sign_key is None else signed(statement, sign_key) + b"\n")
    if as_json:
        trees = [each.as_json() for each in found]
        whole = {"holds": holds, "runs": trees, "problems": list(of_root)}
        say(json.dumps(trees[0] if len(trees) == 1 and expect_root is None else whole, sort_keys=True))
    for number, each in enumerate(found):
        if number:
            say("", err=as_json)
        _explain(each, to_stderr=as_json)
    for problem in of_root:
        say(click.style(f"root     {_shown(problem)}", fg="red"), err=as_json)
    if root is not None:
        say(f"wrote {root}, the root closure of {len(found)} run{'' if len(found) == 1 else 's'}", err=True)
    return 0 if holds else 1


def _root_in(path: Path, keys: tuple[PublicKey, ...]) -> Root:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_ROOT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} can not be read: {error.strerror}", remedy="name a root closure") from error
    if len(data) > MAX_ROOT_BYTES:
        raise UsageError(f"{path} is larger than a root closure can be", remedy="name a root closure")
    return read_root(data.removesuffix(b"\n"), keys)


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
