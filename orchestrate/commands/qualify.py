"""`orchestrate qualify`: run the command groups of a repository at one commit, with receipts."""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from pathlib import Path

import click

from orchestrate.commands.duration import DURATION
from orchestrate.commands.launch import default_owner, place_here, run_and_tell
from orchestrate.commands.run_dir import RUNS_DIR_OPTION
from orchestrate.commands.signing import SIGN_KEY_OPTION, check_sign_key
from orchestrate.errors import UsageError
from orchestrate.lifecycle.launching import Launch
from orchestrate.lifecycle.payload import GroupsPayload
from orchestrate.lifecycle.source_archive import archive_commit
from orchestrate.qualify.group_file import Qualification, parse_qualification
from orchestrate.report.console import ConsoleProgress

__all__ = ["command"]

_MARGIN_S = 120
"""What a run takes beside its groups: start, collection, teardown."""


@click.command("qualify")
@click.option("--repo", type=click.Path(path_type=Path), default=Path(), show_default="the folder you are in",
              metavar="PATH", help="The repository.")  # fmt: skip
@click.option("--commit", default="HEAD", show_default=True, metavar="SHA", help="What is tested.")
@click.option("--head", metavar="SHA", help="The change that the commit is, or merges.")
@click.option("--base", metavar="SHA", help="What the change was merged into.")
@click.option("--file", "name", default="qualification.yaml", show_default=True, metavar="FILE",
              help="The groups: a file of that commit.")  # fmt: skip
@click.option("--deadline", type=DURATION, metavar="DURATION",
              help="The whole run is over by then.  [default: the groups' time-outs and two minutes]")  # fmt: skip
@click.option("--owner", envvar="ORCHESTRATE_OWNER", default=default_owner, show_default="user@host",
              help="The owner that everything of the run names.")  # fmt: skip
@SIGN_KEY_OPTION
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, also when the run fails.")
def command(
    repo: Path,
    commit: str,
    head: str | None,
    base: str | None,
    name: str,
    deadline: int | None,
    owner: str,
    sign_key: str | None,
    runs_dir: Path,
    *,
    as_json: bool,
) -> int:
    """Run named command groups on the source of one commit, each as a process family of its own.

    What travels is `git archive` of the commit: nothing of the working tree. The groups are a file of that commit. Test
    counts come from structured reports; a group without tests, one that could not collect all of them, or one whose
    tests were all skipped is incomplete, not passed. The run has the life cycle, receipts and verdicts of a launch.

    \b
    Example:
      orchestrate qualify
      orchestrate qualify --repo ../trainer --commit v1.2 --file qualification.yaml --json
    """
    check_sign_key(sign_key)
    progress = ConsoleProgress(sys.stderr)
    with tempfile.TemporaryDirectory(prefix="orchestrate-source-") as folder:
        archive = archive_commit(repo, commit, Path(folder) / "source.tar", os.environ, head=head, base=base)
        qualification = _qualification(archive.path, name)
        deadline_s = qualification.timeout_s + _MARGIN_S if deadline is None else deadline
        return run_and_tell(
            lambda: Launch(
                runs=GroupsPayload(qualification, archive),
                deadline_s=float(deadline_s),
                owner=owner,
                place=place_here(runs_dir),
                narrator=progress,
            ),
            len(qualification.groups),
            progress,
            sign_key,
            json_wanted=as_json,
        )


def _qualification(archive: Path, name: str) -> Qualification:
    """The file of groups in the archive: what the commit says, not what lies here."""
    with tarfile.open(archive, "r:") as tar:
        try:
            member = tar.extractfile(name)
        except KeyError:
            member = None
        if member is None:
            raise UsageError(
                f"the commit has no file {name!r}", remedy="add one (docs/qualify.md), or name it with --file"
            )
        return parse_qualification(member.read((1 << 20) + 1), name)
