"""`qualification.yaml`: named command groups, read once and checked with file and place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from orchestrate.cells.documents import Place, parse_yaml
from orchestrate.errors import UsageError
from orchestrate.redaction import holds_secret

__all__ = ["GROUPS_SCHEMA", "CommandGroup", "Qualification", "Report", "parse_qualification"]

GROUPS_SCHEMA = "orchestrate.groups/1"
"""Of the JSON that the node reads; harness/qualify.py reads the same."""

_FILE_SCHEMA = "orchestrate.qualification/1"
_MAX_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,5})(s|m|h)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_KEPT = ("ORCHESTRATE_", "PYTEST_PLUGINS")
"""Variables that carry the run's own marks and reports: a group can not set them."""


class Report(StrEnum):
    """What a group says about its tests, in a structured form."""

    PYTEST = "pytest"
    JUNIT = "junit"
    EXIT_CODE = "exit-code"


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """One command: an argument list, its added environment, its bound in seconds, and the groups that must pass first.

    `junit` is the file that the command writes, below the source; None for another kind of report. `gpus` is how many
    GPUs the node must have for it: with fewer it does not run, and is incomplete.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    timeout_s: int
    needs: tuple[str, ...]
    report: Report
    junit: str | None
    gpus: int


@dataclass(frozen=True, slots=True)
class Qualification:
    """The groups of a file in order, the device that they need (`cpu` or `h200`) and how many slots of it."""

    name: str
    device: str
    slots: int
    groups: tuple[CommandGroup, ...]

    @property
    def timeout_s(self) -> int:
        """The most seconds that all groups together can take."""
        return sum(group.timeout_s for group in self.groups)

    def for_node(self, run_id: str, archive_sha256: str) -> dict[str, Any]:
        """The JSON that the node is given."""
        return {
            "schema": GROUPS_SCHEMA,
            "run_id": run_id,
            "name": self.name,
            "device": self.device,
            "archive_sha256": archive_sha256,
            "groups": [
                {
                    "name": group.name,
                    "command": list(group.command),
                    "env": dict(group.env),
                    "timeout_s": group.timeout_s,
                    "needs": list(group.needs),
                    "report": group.report.value,
                    **({} if group.junit is None else {"junit": group.junit}),
                    **({"gpus": group.gpus} if group.gpus else {}),
                }
                for group in self.groups
            ],
        }


def parse_qualification(text: bytes, file: str) -> Qualification:
    """The groups in a file.

    Raises:
        UsageError: the file is no such file, names no group, or one twice, or a need that does not come before; the
            place in it is named.
    """
    if len(text) > _MAX_BYTES:
        raise UsageError(f"{file} has {len(text)} bytes", remedy=f"a qualification has at most {_MAX_BYTES}")
    top = parse_yaml(text, file).fields(("schema", "name", "device", "groups"), ("slots",))
    top["schema"].schema(_FILE_SCHEMA)
    device = top["device"].text()
    if device not in {"cpu", "h200"}:
        raise top["device"].error(f"must be cpu or h200, is {device!r}")
    slots = _integer(top["slots"], 1, 64) if "slots" in top else 4
    groups: list[CommandGroup] = []
    for place in top["groups"].items():
        group = _group(place)
        before = [other.name for other in groups]
        if group.name in before:
            raise place.error(f"has the name {group.name!r} a second time")
        for index, need in enumerate(group.needs):
            if need not in before:
                known = ", ".join(before) or "none"
                raise place.error(f"needs[{index}] is {need!r}, which does not come before it (before it: {known})")
        if group.gpus > (slots if device == "h200" else 0):
            has = f"{slots} GPUs" if device == "h200" else f"no GPU: its device is {device}"
            raise place.error(f"needs {group.gpus} GPUs, and this qualification has {has}")
        groups.append(group)
    if not groups:
        raise top["groups"].error("names no group: a qualification of nothing can not pass")
    return Qualification(_name(top["name"]), device, slots, tuple(groups))


def _group(place: Place) -> CommandGroup:
    fields = place.fields(("name", "command"), ("env", "timeout", "needs", "report", "junit", "gpus"))
    kinds = [kind.value for kind in Report]
    report = fields["report"].text() if "report" in fields else Report.PYTEST.value
    if report not in kinds:
        raise fields["report"].error(f"must be one of {', '.join(kinds)}, is {report!r}")
    junit = _below_source(fields["junit"]) if "junit" in fields else None
    if (report == Report.JUNIT.value) != (junit is not None):
        raise place.error("must name `junit`, the file that the command writes, exactly where its report is junit")
    return CommandGroup(
        name=_name(fields["name"]),
        command=_command(fields["command"]),
        env=_environment(fields["env"]) if "env" in fields else {},
        timeout_s=_duration(fields["timeout"]) if "timeout" in fields else 1800,
        needs=tuple(_name(item) for item in fields["needs"].items()) if "needs" in fields else (),
        report=Report(report),
        junit=junit,
        gpus=_integer(fields["gpus"], 1, 64) if "gpus" in fields else 0,
    )


def _command(place: Place) -> tuple[str, ...]:
    """A list of arguments, or a text that is split as a shell would; there is no shell unless it is named."""
    if isinstance(place.value, str):
        try:
            command = tuple(shlex.split(place.value))
        except ValueError as error:
            raise place.error(f"can not be split into arguments: {error}") from error
    else:
        command = tuple(item.text() for item in place.items())
    if not command:
        raise place.error("is empty")
    for argument in command:
        _for_process(argument, place)
    return command


def _for_process(text: str, place: Place) -> str:
    """`text`, which the system takes as an argument, a variable or a file name: no NUL, no half of a character."""
    if re.search("[\0\ud800-\udfff]", text):
        raise place.error(f"holds what no process can be given: {text[:100]!r}")
    return text


def _environment(place: Place) -> dict[str, str]:
    env = {}
    for name, value in place.members().items():
        if not _VARIABLE.fullmatch(name) or name.startswith(_KEPT):
            raise value.error(f"{name!r} can not be set for a group")
        if not isinstance(value.value, str):
            raise value.error("must be a text: quote it")
        if holds_secret(name, value.value):
            raise value.error(
                "holds a secret by its name, and what is in this file is in receipts too: leave it out and set it in "
                "the node's environment, which groups inherit"
            )
        env[name] = _for_process(value.value, value)
    return env


def _duration(place: Place) -> int:
    match = _DURATION.fullmatch(str(place.value))
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 1 <= seconds <= 86400:
        raise place.error(f"must be a duration of at most a day, for example 90s, 15m or 2h, is {place.value!r}")
    return seconds


def _below_source(place: Place) -> str:
    path = PurePosixPath(_for_process(place.text(), place))
    if path.is_absolute() or ".." in path.parts:
        raise place.error("must be a path below the source")
    return str(path)


def _name(place: Place) -> str:
    name = place.text()
    if not _NAME.fullmatch(name):
        raise place.error(f"must be lower-case letters, digits and '-', at most 63, is {name!r}")
    return name


def _integer(place: Place, least: int, most: int) -> int:
    if type(place.value) is not int or not least <= place.value <= most:
        raise place.error(f"must be an integer from {least} to {most}")
    return place.value
