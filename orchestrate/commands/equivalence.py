"""`orchestrate equivalence`: whether evidence of one source supports another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from orchestrate.commands.output import write_output
from orchestrate.commands.run_dir import RUNS_DIR_OPTION, locate_run
from orchestrate.commands.saying import say
from orchestrate.errors import ReceiptError, UsageError
from orchestrate.qualify.equivalence import Answer, Equivalence, compare
from orchestrate.qualify.trees import Tree, read_folder, read_revision
from orchestrate.receipts.canonical import canonical_bytes
from orchestrate.receipts.carried import carried_receipt
from orchestrate.receipts.record import load_record
from orchestrate.receipts.verify import Verification, verify_record
from orchestrate.verdict import Verdict

__all__ = ["command"]

_EXIT_CODES = {
    Answer.SUPPORTS: Verdict.PASSED.exit_code,
    Answer.DOES_NOT: Verdict.FAILED.exit_code,
    Answer.CAN_NOT_TELL: Verdict.INCOMPLETE.exit_code,
}


@click.command("equivalence")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--repo", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path(),
              show_default="here", metavar="DIR", help="The repository of the revisions.")  # fmt: skip
@click.option("--evidence", "kind", type=click.Choice(["tests", "cells"]), show_default="what --run is of, else tests",
              help="What ran on OLD: tests, which then have to be the same, or measured cells.")  # fmt: skip
@click.option(
    "--run", metavar="RUN_OR_DIR", help="A run of OLD: it is verified, and cited for NEW where that is right."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="With --run: write the carried receipt here.")  # fmt: skip
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(
    old: str,
    new: str,
    repo: Path,
    kind: str | None,
    run: str | None,
    output: Path | None,
    runs_dir: Path,
    *,
    as_json: bool,
) -> int:
    """Say what differs between OLD and NEW, and whether evidence of OLD supports NEW.

    OLD and NEW are commits, branches or tags of the repository, or folders. Exit code 0: it supports; 1: it does not;
    4: nobody can tell. Evidence is never relabelled: it keeps the commit that ran, and is cited by the relation. With
    --run, that is done for one run: a carried receipt names its closure, its verdict and its commit, and the relation
    by which it is cited for NEW. Nothing is carried from a run whose receipts do not hold.

    \b
    Example:
      orchestrate equivalence HEAD~1 HEAD
      orchestrate equivalence v1.0 ./checkout --evidence cells --json
      orchestrate equivalence v1.0 v1.0.1 --run RUN_ID -o carried.json
    """
    if output is not None and run is None:
        raise UsageError("-o is for a carried receipt, and no run is named", remedy="add --run")
    before, after = (_tree(name, repo) for name in (old, new))
    verified = None
    if run is not None:
        verified, ran = _verified(run, runs_dir, before, after)
        if kind not in {None, ran}:
            raise UsageError(f"--evidence {kind}, and the run is of {ran}", remedy="leave --evidence out")
        kind = ran
    kind = kind or "tests"
    found = compare(before, after, of_tests=kind == "tests")
    carried = None
    if verified is not None and found.answer is Answer.SUPPORTS:
        carried = carried_receipt(verified, before, after, found, kind)
        if output is not None:
            write_output(output, canonical_bytes(carried) + b"\n")
    if as_json:
        say(json.dumps({**_as_json(before, after, found, kind), "carried": carried}, sort_keys=True))
    else:
        say("\n".join(_lines(before, after, found, kind)))
        if carried is not None and verified is not None:
            written = f", written to {output}" if output else ""
            say(f"the run {verified.run_id} ({verified.verdict.label}) is cited for it{written}")
    if output is not None and carried is None:
        say(f"nothing is carried: {output} is not written", err=True)
    return _EXIT_CODES[found.answer]


def _verified(run: str, runs_dir: Path, old: Tree, new: Tree) -> tuple[Verification, str]:
    """The run, verified now as one of `old`, and what it is evidence of."""
    if old.commit is None or new.commit is None:
        raise UsageError("a receipt is carried from a commit to a commit, and a folder is named", remedy="commit it")
    record = load_record(locate_run(run, runs_dir))
    found = verify_record(record, expect_commit=old.commit)
    if not found.holds:
        raise ReceiptError(f"nothing is carried from {run}: {found.problems[0]}", remedy="orchestrate verify says more")
    return found, "cells" if record.groups is None else "tests"


def _tree(name: str, repo: Path) -> Tree:
    """The folder or the revision that `name` is; a folder is meant only where it is written as one."""
    folder = Path(name)
    if "/" in name and folder.is_dir():
        return read_folder(folder)
    try:
        tree = read_revision(repo, name, os.environ)
    except UsageError:
        if folder.is_dir():
            return read_folder(folder)
        raise
    if folder.is_dir():
        raise UsageError(
            f"{name!r} is a commit and a folder", remedy=f"write ./{name} for the folder, or the commit's hash"
        )
    return tree


def _as_json(old: Tree, new: Tree, found: Equivalence, kind: str) -> dict[str, Any]:
    return {
        "old": {"name": _said(old.name), "commit": old.commit, "tree": old.tree, "files": len(old.files)},
        "new": {"name": _said(new.name), "commit": new.commit, "tree": new.tree, "files": len(new.files)},
        "evidence": kind,
        "answer": found.answer.value,
        "exit_code": _EXIT_CODES[found.answer],
        "relation": found.relation.value,
        "identical": found.identical,
        "differences": [
            {"path": _said(each.path), "relation": each.relation.value, "why": each.why} for each in found.differences
        ],
        "reasons": [_said(reason) for reason in found.reasons],
        "cited_as": _cited(old, new, found),
    }


def _lines(old: Tree, new: Tree, found: Equivalence, kind: str) -> Iterator[str]:
    yield f"old  {_said(old.name)}  {old.commit or 'a folder'}"
    yield f"new  {_said(new.name)}  {new.commit or 'a folder'}"
    yield f"{found.identical} files are identical"
    for each in found.differences:
        yield f"{each.relation:<40} {_said(each.path)}"
    for reason in found.reasons:
        yield f"because {_said(reason)}"
    answer = {
        Answer.SUPPORTS: "supports",
        Answer.DOES_NOT: "does not support",
        Answer.CAN_NOT_TELL: "can not be told to support",
    }[found.answer]
    yield f"evidence of {kind} on old {answer} new"
    if (cited := _cited(old, new, found)) is not None:
        yield cited


def _cited(old: Tree, new: Tree, found: Equivalence) -> str | None:
    """How a receipt of the old source is to be cited for the new one; it is never given the new one's name."""
    if found.answer is not Answer.SUPPORTS:
        return None
    cited = new.commit or f"the folder {_said(new.name)}"
    if old.commit is None:
        stays = f"evidence of the folder {_said(old.name)} stays evidence of it"
        return f"{stays}, and supports {cited} by the relation {found.relation}"
    return f"a receipt of {old.commit} keeps that commit, and is cited for {cited} by the relation {found.relation}"


def _said(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
