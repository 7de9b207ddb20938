"""`orchestrate gate conclude`: the required check."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from orchestrate.commands.gate_step import POLICY_OPTION, RECORDS_OPTION, answer, owner_here, policy_in
from orchestrate.commands.saying import say
from orchestrate.commands.signing import (
    SIGN_KEY_OPTION,
    check_sign_key,
    required_keys,
    sign_run,
    signature_options,
)
from orchestrate.errors import OrchestrateError, UsageError
from orchestrate.gate.change import owner_of
from orchestrate.gate.conclusion import Classified, Conclusion, Evidence, unsigned
from orchestrate.gate.conclusion import conclude as concluded
from orchestrate.gate.fetched import evidence_of, find_run_of
from orchestrate.gate.github_files import append_summary, bounded_annotations
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
    required = required_keys(keys, identity, issuer)
    check_sign_key(sign_key)
    classified = as_classified(read_record(records / CLASSIFIED, "classified"))
    admission = read_record(records / ADMITTED, "admitted")
    reconciled = as_reconciled(read_record(records / RECONCILED, "reconciled"))
    wanted = policy_in(policy, classified.change.base if classified else None)
    record, evidence = _evidence(classified, admission, runs_dir, earlier, required)
    said = as_refused(read_record(records / LAUNCHED, "launched"))
    conclusion = concluded(classified, _jobs(needs), _in_time(admission), evidence, reconciled, wanted, said)
    if conclusion.green and record is not None and sign_key is not None:
        conclusion = _signed(conclusion, record, sign_key)
    groups = _groups(record)
    summary = summarise(
        conclusion,
        classified,
        evidence,
        reconciled,
        cells=_cells(record),
        groups=groups,
        capacity=_capacity(record),
        page_url=page_url,
    )
    _tell(summary, bounded_annotations(told(conclusion, groups)))
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
    say(f"{conclusion.title}: {conclusion.reason}", err=as_json)
    return code


def _evidence(
    classified: Classified | None,
    admission: Mapping[str, Any] | None,
    runs_dir: Path,
    earlier: Path | None,
    keys: tuple[PublicKey, ...],
) -> tuple[RunRecord | None, Evidence | None]:
    """The run of this attempt; or the earlier one that stands for it, looked up and verified once more."""
    cited = None
    owner = owner_here()
    if admission is not None and admission.get("reuse") is True and earlier is not None and classified is not None:
        before = as_classified(read_record(earlier / "records" / CLASSIFIED, "classified"))
        ours = classified.change
        if before is None or any(
            getattr(before.change, name) != getattr(ours, name) for name in ("repository", "branch", "head", "base")
        ):
            return None, None
        owner = owner_of(before.change.repository, before.change.run, before.change.attempt)
        cited = f"workflow run {before.change.run}, attempt {before.change.attempt}"
        runs_dir = earlier / "runs"
    record = find_run_of(runs_dir, owner)
    return record, None if record is None else evidence_of(record, keys=keys, reused_from=cited)


def _signed(conclusion: Conclusion, record: RunRecord, sign_key: str) -> Conclusion:
    try:
        sign_run(record.run_dir, sign_key)
    except OrchestrateError as error:
        return unsigned(error.cause)
    return conclusion


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
