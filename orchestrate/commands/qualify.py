"""`orchestrate qualify`: run the command groups of a repository at one commit, with receipts."""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from orchestrate.backends.catalogue import PROVIDERS
from orchestrate.commands.duration import DURATION
from orchestrate.commands.launch import place_here, run_and_tell
from orchestrate.commands.provider_options import places_of, provider_options, settings_of
from orchestrate.commands.provider_values import Needs
from orchestrate.commands.run_dir import RUNS_DIR_OPTION
from orchestrate.commands.signing import SIGN_KEY_OPTION, check_sign_key
from orchestrate.errors import UsageError
from orchestrate.lifecycle.launching import Launch
from orchestrate.lifecycle.payload import GroupsPayload
from orchestrate.lifecycle.source_archive import archive_commit
from orchestrate.qualify.group_file import Qualification, parse_qualification
from orchestrate.qualify.overview import first_files
from orchestrate.render.kubernetes import claim_and_folder
from orchestrate.render.qualification import QualificationFiles
from orchestrate.report.console import ConsoleProgress
from orchestrate.user import default_owner

__all__ = ["command"]

_MARGIN_S = {"local": 120, "k8s": 600, "sky": 1200}
"""What a run takes beside its groups and its wait for the node: start, collection, teardown."""

_PROVISION_S = 600
"""How long the node of a remote run is waited for, unless `--provision-timeout` says otherwise."""

_DAY_S = 86400


@click.command("qualify")
@click.option("--backend", type=click.Choice(list(PROVIDERS)), default="local", show_default=True,
              help="Where the groups run: this machine, SkyPilot, or a Kubernetes cluster.")  # fmt: skip
@click.option("--repo", type=click.Path(path_type=Path), default=Path(), show_default="the folder you are in",
              metavar="PATH", help="The repository.")  # fmt: skip
@click.option("--commit", default="HEAD", show_default=True, metavar="SHA", help="What is tested.")
@click.option("--head", metavar="SHA", help="The change that the commit is, or merges into --base.")
@click.option("--base", metavar="SHA", help="What the change was merged into: the merge's first parent.")
@click.option("--file", "name", default="qualification.yaml", show_default=True, metavar="FILE",
              help="The groups: a file of that commit, by its path from the top.")  # fmt: skip
@click.option("--deadline", type=DURATION, metavar="DURATION",
              help="The whole run is over by then.  [default: what groups and backend may take]")  # fmt: skip
@click.option("--source-claim", metavar="pvc:CLAIM[/FOLDER]",
              help="k8s: where a source too large for ConfigMaps lies, as SHA256.tar.")  # fmt: skip
@click.option("--max-gpu-hours", type=click.FloatRange(min=0), metavar="HOURS",
              help="Refuse a run that may take more.")  # fmt: skip
@click.option("--wait", type=click.FloatRange(min=0, max=10080), metavar="MINUTES", default=0.0,
              help="Ask again for so long where nothing is free.  [default: ask once]")  # fmt: skip
@click.option("--owner", envvar="ORCHESTRATE_OWNER", default=default_owner, show_default="user@host",
              help="The owner that everything of the run names.")  # fmt: skip
@SIGN_KEY_OPTION
@provider_options
@RUNS_DIR_OPTION
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, also when the run fails.")
def command(
    backend: str,
    repo: Path,
    commit: str,
    head: str | None,
    base: str | None,
    name: str,
    deadline: int | None,
    source_claim: str | None,
    max_gpu_hours: float | None,
    wait: float,
    owner: str,
    sign_key: str | None,
    runs_dir: Path,
    *,
    as_json: bool,
    **given: Any,
) -> int:
    """Run named command groups on the source of one commit, each as a process family of its own.

    What travels is `git archive` of the commit: nothing of the working tree. The groups are a file of that commit. Test
    counts come from structured reports; a group without tests, one that could not collect all of them, or one whose
    tests were all skipped is incomplete, not passed. The run has the life cycle, receipts and verdicts of a launch, and
    its backends and their options. There is no resumption: a rerun is a run of its own.

    \b
    Example:
      orchestrate qualify
      orchestrate qualify --repo ../trainer --commit v1.2 --file qualification.yaml --json
      orchestrate qualify --backend k8s --namespace TEAM --image NAME@sha256:DIGEST --file qualification-h200.yaml
      orchestrate qualify --backend sky --infra slurm/CLUSTER --python PATH --accelerators none
    """
    check_sign_key(sign_key)
    progress = ConsoleProgress(sys.stderr)
    with tempfile.TemporaryFile() as tar:  # without a name: a SIGKILL leaves nothing
        archive = archive_commit(repo, commit, tar, os.environ, head=head, base=base)
        qualification = _qualification(archive.path, name)
        runs = GroupsPayload(qualification, archive)
        if archive.left_out:
            files = first_files(archive.left_out, len(archive.left_out))
            progress.note(f"the archive of the commit leaves out what no group will see: {files}")
        deadline_s = _default_deadline_s(backend, qualification, given) if deadline is None else deadline
        settings = settings_of(backend, given, Needs.of_groups(qualification), deadline_s)
        places = places_of(backend, given)
        settings |= _source_claim(backend, source_claim)
        if backend == "k8s":
            _refuse_too_large(runs, source_claim)
        return run_and_tell(
            lambda: Launch(
                runs=runs,
                deadline_s=float(deadline_s),
                owner=owner,
                place=place_here(runs_dir),
                narrator=progress,
                backend=backend,
                settings=settings,
                places=places,
                wait_s=wait * 60,
                max_gpu_hours=max_gpu_hours,
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
                f"the commit has no file {name!r}",
                remedy="add one (docs/qualify.md), or name it with --file, by its path from the top of the repository",
            )
        return parse_qualification(member.read((1 << 20) + 1), name)


def _default_deadline_s(backend: str, qualification: Qualification, given: Mapping[str, Any]) -> int:
    """Time for every group to use up its own, and for what is around them; at most a day, as everywhere."""
    wait_s = (given["provision_timeout"] or _PROVISION_S) if PROVIDERS[backend].is_remote else 0
    return min(_DAY_S, qualification.timeout_s + _MARGIN_S[backend] + int(wait_s))


def _source_claim(backend: str, claim: str | None) -> dict[str, str]:
    if claim is None:
        return {}
    if backend != "k8s":
        raise UsageError(
            f"--source-claim means nothing to the backend {backend}; it is for k8s",
            remedy="leave --source-claim out, or change --backend",
        )
    claim_and_folder("--source-claim", claim)
    return {"source_claim": claim}


def _refuse_too_large(runs: GroupsPayload, claim: str | None) -> None:
    """Now, before anything is made; the run's own id is as long as any other."""
    with tempfile.TemporaryFile() as groups:
        groups.write(runs.groups_json("r0"))
        groups.flush()
        files = QualificationFiles(Path(f"/proc/self/fd/{groups.fileno()}"), runs.archive.path, claim)
        files.groups_text()
        files.chunks()
