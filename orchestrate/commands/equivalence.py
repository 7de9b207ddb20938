"""`orchestrate equivalence`: whether evidence of one source supports another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from orchestrate.commands.saying import say
from orchestrate.errors import UsageError
from orchestrate.qualify.equivalence import Answer, Equivalence, compare
from orchestrate.qualify.trees import Tree, read_folder, read_revision
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
@click.option("--evidence", "kind", type=click.Choice(["tests", "cells"]), default="tests", show_default=True,
              help="What ran on OLD: tests, which then have to be the same, or measured cells.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(old: str, new: str, repo: Path, kind: str, *, as_json: bool) -> int:
    """Say what differs between OLD and NEW, and whether evidence of OLD supports NEW.

    OLD and NEW are commits, branches or tags of the repository, or folders. Exit code 0: it supports; 1: it does not;
    4: nobody can tell. Evidence is never relabelled: it keeps the commit that ran, and is cited by the relation.

    \b
    Example:
      orchestrate equivalence HEAD~1 HEAD
      orchestrate equivalence v1.0 ./checkout --evidence cells --json
    """
    before, after = (_tree(name, repo) for name in (old, new))
    found = compare(before, after, of_tests=kind == "tests")
    if as_json:
        say(json.dumps(_as_json(before, after, found, kind), sort_keys=True))
    else:
        say("\n".join(_lines(before, after, found, kind)))
    return _EXIT_CODES[found.answer]


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
    ran, cited = (_said(tree.commit or tree.name) for tree in (old, new))
    return f"a receipt of {ran} keeps that commit, and is cited for {cited} by the relation {found.relation}"


def _said(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
