"""Groups that a policy demands, and that the change itself redefines: a matter for review, or a red check."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrate.qualify.group_file import CommandGroup, Qualification, Report

__all__ = ["redefined"]


def redefined(
    demanded: Sequence[str], before: Qualification, now: Qualification
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the change did to the demanded groups: problems, and remarks for whoever reviews it.

    A group that counted tests and now is judged by an exit code proves less under the same name: a problem. Another
    command, environment, time-out or need is the author's to change, like the tests themselves, and has to be seen.
    """
    problems, remarks = [], []
    old, new = ({group.name: group for group in each.groups} for each in (before, now))
    for name in demanded:
        if name not in old or name not in new:
            continue
        was, became = old[name], new[name]
        if was.report is not Report.EXIT_CODE and became.report is Report.EXIT_CODE:
            problems.append(f"the group {name}, which the policy asks for, no longer counts tests: the base's did")
        elif changed := _differing(was, became):
            remarks.append(f"the group {name} is not as in the base: another {', '.join(changed)}")
    return tuple(problems), tuple(remarks)


def _differing(was: CommandGroup, became: CommandGroup) -> list[str]:
    names = ("command", "env", "timeout_s", "needs", "report", "junit", "gpus")
    return [name.removesuffix("_s") for name in names if getattr(was, name) != getattr(became, name)]
