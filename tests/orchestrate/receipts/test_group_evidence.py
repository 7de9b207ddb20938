"""What groups amount to together, and which of them is to blame."""

import pytest

from orchestrate.qualify.judgement import GroupJudgement
from orchestrate.receipts.group_evidence import Groups, read_groups
from orchestrate.verdict import Verdict


def groups(*verdicts, **more):
    judged = [GroupJudgement(f"g{number}", verdict, "so", None, {}) for number, verdict in enumerate(verdicts)]
    return Groups(tuple(judged), **{"source_gaps": (), **more})


P, F, I = Verdict.PASSED, Verdict.FAILED, Verdict.INCOMPLETE  # noqa: E741


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (groups(P, P), P),
        (groups(P, I, F), F),
        (groups(I, I), I),
        (groups(), I),
        (groups(F, Verdict.INFRASTRUCTURE), Verdict.INFRASTRUCTURE),
        (groups(P, source_gaps=("another archive",)), I),
        (groups(P, source_gaps=("source files changed",), changed=True), F),
    ],
)
def test_the_verdict_of_groups_is_that_which_decides_and_of_a_source_that_changed_failed(found, verdict):
    assert found.verdict is verdict


def test_a_change_of_the_source_is_laid_on_no_group_that_passed():
    found = groups(P, F, P, source_gaps=("source files changed while the groups ran: a",), changed=True)
    assert found.causes == ((F, "g1: failed: so"), (F, "source files changed while the groups ran: a"))


def test_the_packages_of_the_node_are_read_for_what_a_group_lacked():
    plan = {"cells": ["unit"], "qualification": {"groups": [{"name": "unit", "report": "pytest"}]}}
    row = {"key": "unit", "status": "unsettled", "reason": "x", "exit_code": 1, "started_at": "2026-01-02T03:04:05Z"}
    node = {"schema": "harness.node/1", "payload": "groups", "cells": [row]}
    found = read_groups(plan, node, {"packages.json": b'{"numpy": "2"}'}.get)
    assert "pytest is not installed there" in found.judgements[0].reason
