"""`orchestrate gate conclude`: the required check."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from orchestrate.commands.gate_asked import file_of_groups
from orchestrate.commands.gate_before import classify_here
from orchestrate.commands.gate_change import change_here, in_commit, rules_commit
from orchestrate.commands.gate_step import (
    POLICY_OPTION,
    RECORDS_OPTION,
    answer,
)
from orchestrate.commands.saying import say
from orchestrate.commands.signing import (
    SIGN_KEY_OPTION,
    check_sign_key,
    policy_keys,
    required_keys,
    sign_run,
    signature_options,
)
from orchestrate.errors import OrchestrateError, UsageError
from orchestrate.gate.change import differences
from orchestrate.gate.conclusion import (
    Classified,
    Conclusion,
    Evidence,
    Reconciled,
    never_classified,
    unconfirmed,
    unusable,
)
from orchestrate.gate.conclusion import conclude as concluded
from orchestrate.gate.fetched import earlier_run_of, evidence_of, find_run_of
from orchestrate.gate.github_files import append_summary, bounded_annotations
from orchestrate.gate.policy import GatePolicy
from orchestrate.gate.records import (
    ADMITTED,
    CLASSIFIED,
    LAUNCHED,
    RECONCILED,
    as_classified,
    as_reconciled,
    as_refused,
    read_record,
)
from orchestrate.gate.summary import summarise, told
from orchestrate.gate.weakened import redefined
from orchestrate.markup import brief
from orchestrate.qualify.group_file import parse_qualification
from orchestrate.qualify.overview import GroupRow, group_row
from orchestrate.receipts.record import RunRecord
from orchestrate.receipts.signing import PublicKey
from orchestrate.receipts.statement import Stage
from orchestrate.verdict import Verdict

__all__ = ["conclude"]

_RESULTS = frozenset({"success", "failure", "cancelled", "skipped"})


@click.command("conclude")
@RECORDS_OPTION
@click.option("--runs-dir", type=click.Path(path_type=Path), required=True, metavar="DIR",
              help="Where the artifact's run directories are.")  # fmt: skip
@click.option("--earlier", type=click.Path(path_type=Path), metavar="DIR",
              help="The artifact of the earlier run that `gate admit` let stand for this one.")  # fmt: skip
@POLICY_OPTION
@click.option("--needs", envvar="NEEDS", metavar="JSON", help="GitHub's `toJSON(needs)`: how the jobs before ended.")
@signature_options
@SIGN_KEY_OPTION
@click.option("--page-url", metavar="URL", help="Where the report page of the run can be read.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def conclude(
    records: Path,
    runs_dir: Path,
    earlier: Path | None,
    policy: Path,
    needs: str | None,
    keys: tuple[str, ...],
    identity: str | None,
    issuer: str,
    sign_key: str | None,
    page_url: str | None,
    *,
    as_json: bool,
) -> int:
    """Decide the check, write the job summary, and annotate.

    Green only when the tested commit is the head, or the merge of exactly this head and base; every expected cell is
    complete and passed; the receipts verify here and now; the run's census and a fresh machine both found nothing
    left. Everything else is red under its own title. The exit code is that of the verdict; 0 also where no GPU was
    needed. With --sign-key the run of a green check is signed by the gate; a check that can not be signed is red.
    Outputs: green, verdict, reused (the run is an earlier one).

    \b
    Example:
      orchestrate gate conclude --records gate --runs-dir runs
      orchestrate gate conclude --records gate --runs-dir runs --require-signature key.pub
    """
    check_sign_key(sign_key)
    required = required_keys(keys, identity, issuer)
    classified = as_classified(read_record(records / CLASSIFIED, "classified"))
    admission = read_record(records / ADMITTED, "admitted")
    said = as_refused(read_record(records / LAUNCHED, "launched"))
    reconciled = found = evidence = None
    remarks: tuple[str, ...] = ()
    try:
        jobs = _jobs(needs)
        if classified is None:
            conclusion = never_classified(jobs)
        else:
            change = change_here()
            reconciled = as_reconciled(read_record(records / RECONCILED, "reconciled"), change)
            classified, wanted, remarks = _weighed(classified, policy)
            found = _found(classified, admission, runs_dir, earlier)
            decide = partial(
                concluded, classified, jobs, _in_time(admission), reconciled=reconciled, policy=wanted, said=said
            )
            conclusion, evidence = _concluded(decide, found, (*required, *policy_keys(wanted)), sign_key)
    except UsageError as error:
        if reconciled is not None and not reconciled.confirmed:
            conclusion = unconfirmed(reconciled)
        else:
            conclusion = unusable(f"{error.cause}; {error.remedy}")
    record = None if found is None else found[0]
    groups = _groups(record)
    summary = summarise(
        conclusion,
        classified,
        evidence,
        reconciled,
        cells=_cells(record),
        groups=groups,
        capacity=_capacity(record),
        remarks=remarks,
        page_url=page_url,
    )
    _tell(summary, bounded_annotations(told(conclusion, groups, remarks)))
    verdict = conclusion.verdict
    code = 0 if conclusion.green else (verdict or Verdict.INCOMPLETE).exit_code
    reused = evidence is not None and evidence.reused_from is not None
    outputs = {
        "green": str(conclusion.green).lower(),
        "verdict": "not-needed" if verdict is None else verdict.label,
        "reused": str(reused).lower(),
    }
    as_object = {
        **outputs,
        "green": conclusion.green,
        "reused": reused,
        "title": conclusion.title,
        "reason": conclusion.reason,
        "problems": list(conclusion.problems),
        "exit_code": code,
    }
    answer(outputs, as_object if as_json else None)
    say(brief(f"{conclusion.title}: {conclusion.reason}"), err=as_json)
    return code


_Found = tuple[RunRecord, int, str | None, Reconciled | None]


def _found(
    classified: Classified, admission: Mapping[str, Any] | None, runs_dir: Path, earlier: Path | None
) -> _Found | None:
    """The run of this workflow run, its attempt; or the earlier one that stands for it, looked up once more."""
    if admission is not None and admission.get("reuse") is True and earlier is not None:
        stands = earlier_run_of(earlier, classified)
        return None if isinstance(stands, str) else stands
    found = find_run_of(runs_dir, classified.change, up_to=classified.change.attempt)
    return None if found is None else (*found, None, None)


def _weighed(classified: Classified, policy: Path) -> tuple[Classified, GatePolicy, tuple[str, ...]]:
    """The record of the first step, held to what GitHub and git say now; the policy; remarks for a reviewer."""
    now, wanted = classify_here(policy, classified.launch, classified.audit)
    differs = differences((classified.change, classified.checkout), (now.change, now.checkout))
    if classified.needed is not now.needed:
        differs = (*differs, f"the record of `gate classify` says needed: {classified.needed}, and that is not so")
    problems, remarks = _redefined(now, wanted.groups)
    whole = (*differs, *now.problems, *problems)
    return replace(now, needed=now.needed or classified.needed, problems=whole), wanted, remarks


def _redefined(now: Classified, demanded: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the change did to the groups that the policy demands, where both commits have a file of groups."""
    base = rules_commit(now.change)
    name = None if now.problems else file_of_groups(now.launch)
    if base is None or name is None or not demanded:
        return (), ()
    before, after = (in_commit(commit, Path(name)) for commit in (base, now.checkout.commit))
    if before is None or after is None:
        return (), ()
    try:
        return redefined(demanded, parse_qualification(before, name), parse_qualification(after, name))
    except UsageError as error:
        return (error.cause,), ()


def _concluded(
    decide: Callable[[Evidence | None], Conclusion],
    found: _Found | None,
    keys: tuple[PublicKey, ...],
    sign_key: str | None,
) -> tuple[Conclusion, Evidence | None]:
    """Decide; sign what is green, and then hold it to the signatures that are required."""
    if found is None:
        return decide(None), None
    record, attempt, cited, looked = found
    evidence = evidence_of(record, attempt, reused_from=cited, earlier_look=looked)
    conclusion = decide(evidence)
    if not conclusion.green:
        return conclusion, evidence
    if sign_key is not None:
        try:
            sign_run(record.run_dir, sign_key)
        except OrchestrateError as error:
            return unusable(f"it could not be signed: {error.cause}"), evidence
    if keys:
        evidence = evidence_of(record, attempt, keys=keys, reused_from=cited, earlier_look=looked)
        conclusion = decide(evidence)
    return conclusion, evidence


def _in_time(admission: Mapping[str, Any] | None) -> bool | None:
    """Whether the change was let through in time; None where nobody decided."""
    if admission is None:
        return None
    return admission.get("admitted") is True or admission.get("reuse") is True or admission.get("in_time") is True


def _jobs(needs: str | None) -> dict[str, str]:
    if not needs:
        return {}
    try:
        tree = json.loads(needs)
        jobs = {str(name): str(job["result"]) for name, job in tree.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError("--needs is not GitHub's `toJSON(needs)`", remedy="pass ${{ toJSON(needs) }}") from error
    unknown = set(jobs.values()) - _RESULTS
    if unknown:
        raise UsageError(f"--needs has the unknown result {unknown.pop()!r}", remedy="pass ${{ toJSON(needs) }}")
    return jobs


def _cells(record: RunRecord | None) -> list[Mapping[str, Any]]:
    if record is not None and record.groups is not None:
        return []
    rows = record.stages.get(Stage.COLLECT, {}).get("cells") if record else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _groups(record: RunRecord | None) -> list[GroupRow]:
    """The groups of a qualification, judged again from their reports."""
    return [] if record is None or record.groups is None else [group_row(each) for each in record.groups.judgements]


def _capacity(record: RunRecord | None) -> Mapping[str, Any] | None:
    """What the run was refused, as its closure states it."""
    facts = record.closure.facts.get("capacity") if record and record.closure else None
    return facts if isinstance(facts, dict) else None


def _tell(summary: str, lines: tuple[str, ...]) -> None:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        append_summary(Path(path), summary)
    else:
        say(summary, err=True)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in lines:
            say(line, err=True)
