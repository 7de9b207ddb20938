"""The node's side of a qualification: unpack the source of one commit, run command groups in it, leave evidence.

    python -m harness qualify --plan groups.json --archive source.tar --source work/ --evidence DIR

It writes preflight.json, sources.json (every file by digest), node.jsonl (progress), a folder for each group (output,
test report) and, at the end, node.json. Nothing is retried and nothing is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.metadata import distributions
from pathlib import Path

from harness.documents import Place, read_json, write_json
from harness.errors import InputError, report
from harness.group_run import Group, GroupRun, QualifyJob
from harness.nvml import GpuProcess, open_nvml
from harness.outcome import INFRASTRUCTURE_EXIT_CODE
from harness.preflight import busy_gpus, look
from harness.source_files import unpack

__all__ = ["PLAN_SCHEMA", "main", "read_plan"]

PLAN_SCHEMA = "orchestrate.groups/1"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_REPORTS = ("pytest", "junit", "exit-code")


def main(argv: Sequence[str]) -> int:
    """`python -m harness qualify`: returns 0, or the exit code of the worst group.

    Raises:
        InputError: the plan or an option is wrong. Nothing was run.
    """
    options = _parser().parse_args(argv)
    job = read_plan(options)
    source_problems = _unpack(options.archive, job)
    run = GroupRun(
        job,
        os.environ,
        check=lambda: look(job.device, job.slots, os.environ).with_problems(source_problems),
        idle=lambda: () if job.device == "cpu" else busy_gpus(),
        gpu_processes=who_is_on_gpus(),
    )
    try:
        job.evidence.mkdir(parents=True, exist_ok=True)
        write_json(job.evidence / "packages.json", installed_packages())
        return run.run()
    except OSError as error:
        print(f"error: {error}\nremedy: make room or rights for the evidence, or another kernel", file=sys.stderr)
        return INFRASTRUCTURE_EXIT_CODE


def _unpack(archive: Path, job: QualifyJob) -> tuple[str, ...]:
    """Unpack the source; why it can not be is a fault of every group, so that the evidence says it."""
    try:
        unpack(archive, job.archive_sha256, job.source)
    except InputError as error:
        report(error)
        return (error.cause,)
    return ()


def read_plan(options: argparse.Namespace) -> QualifyJob:
    """What the plan asks for.

    Raises:
        InputError: it is damaged, names nothing to run, a name twice, or a need that does not come before.
    """
    if (options.evidence / "node.jsonl").exists():
        raise InputError(f"{options.evidence} already holds evidence", remedy="name an empty directory")
    if options.source.exists():
        raise InputError(f"{options.source} exists already", remedy="name a directory that is not there yet")
    top = read_json(options.plan).fields(("schema", "run_id", "name", "device", "archive_sha256", "groups"))
    top["schema"].schema(PLAN_SCHEMA)
    groups: list[Group] = []
    for place in top["groups"].items():
        group = _group(place)
        before = [other.name for other in groups]
        if group.name in before:
            raise place.error(f"has the name {group.name!r} a second time")
        unknown = [name for name in group.needs if name not in before]
        if unknown:
            raise place.error(f"needs {unknown[0]!r}, which does not come before it")
        groups.append(group)
    if not groups:
        raise top["groups"].error("names no group, so there is nothing to run")
    device = top["device"].text()
    if device not in {"cpu", "h200"}:
        raise top["device"].error(f"must be cpu or h200, is {device!r}")
    return QualifyJob(
        run_id=top["run_id"].text(),
        name=top["name"].text(),
        device=device,
        slots=options.procs,
        source=options.source,
        archive_sha256=top["archive_sha256"].text(),
        groups=tuple(groups),
        evidence=options.evidence,
        lifeline_fd=options.lifeline_fd,
    )


def who_is_on_gpus() -> Callable[[], Collection[GpuProcess]] | None:
    """What asks NVML; None where this node has none. One that does not work raises at each question."""
    try:
        nvml = open_nvml()
    except OSError as error:
        problem = str(error)

        def broken() -> Collection[GpuProcess]:
            raise OSError(problem)

        return broken
    return None if nvml is None else nvml.processes


def installed_packages() -> dict[str, str]:
    """Name -> version of every distribution that this Python sees."""
    found = {each.metadata["Name"]: each.version for each in distributions() if each.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _group(place: Place) -> Group:
    fields = place.fields(("name", "command", "timeout_s", "report"), ("env", "needs", "junit", "gpus"))
    name, report = fields["name"].text(), fields["report"].text()
    if not _NAME.fullmatch(name):
        raise fields["name"].error(f"must be lower-case letters, digits and '-', is {name!r}")
    if report not in _REPORTS:
        raise fields["report"].error(f"must be one of {', '.join(_REPORTS)}, is {report!r}")
    junit = fields["junit"].text() if "junit" in fields else None
    if (report == "junit") != (junit is not None):
        raise place.error("must name `junit`, the file, exactly where its report is `junit`")
    command = tuple(item.text() for item in fields["command"].items())
    if not command:
        raise fields["command"].error("is empty")
    return Group(
        name=name,
        command=command,
        env={key: value.text() for key, value in fields["env"].members().items()} if "env" in fields else {},
        timeout_s=float(fields["timeout_s"].integer(1)),
        needs=tuple(item.text() for item in fields["needs"].items()) if "needs" in fields else (),
        report=report,
        junit=junit,
        gpus=fields["gpus"].integer(0) if "gpus" in fields else 0,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness qualify",
        description="Unpack the source of one commit and run command groups in it, each as a process family.",
        epilog="example: python -m harness qualify --plan groups.json --archive source.tar --source work/ --evidence e",
    )
    parser.add_argument("--plan", type=Path, required=True, metavar="FILE", help=f"groups to run ({PLAN_SCHEMA})")
    parser.add_argument("--archive", type=Path, required=True, metavar="FILE", help="`git archive` of the commit")
    parser.add_argument("--source", type=Path, required=True, metavar="DIR", help="where to unpack it; must not exist")
    parser.add_argument("--evidence", type=Path, required=True, metavar="DIR", help="an empty or new directory")
    parser.add_argument("--procs", type=int, default=4, metavar="N", help="GPUs that the node must have (default 4)")
    parser.add_argument("--lifeline-fd", type=int, metavar="FD", help="end everything when this descriptor is at EOF")
    return parser
