"""A carried receipt: evidence of one commit, cited for another by the relation between their sources.

It is no receipt of the other commit, and keeps the one that ran. Whoever reads it can compare the sources again, and
verify the run that it names.
"""

from __future__ import annotations

from typing import Any

from orchestrate.qualify.equivalence import Answer, Equivalence
from orchestrate.qualify.trees import Tree
from orchestrate.receipts.statement import STATEMENT_TYPE
from orchestrate.receipts.verify import Verification

__all__ = ["CARRIED_SCHEMA", "carried_receipt"]

CARRIED_SCHEMA = "orchestrate.carried/1"
_PREDICATE_TYPE = "urn:orchestrate:carried:v1"


def carried_receipt(run: Verification, ran: Tree, cited_for: Tree, found: Equivalence, evidence: str) -> dict[str, Any]:
    """The in-toto Statement v1 that cites `run`, whose receipts hold and are of `ran`, for `cited_for`.

    Its subject is the run's newest closure. Args:
        run: of a run that has a closure.
        ran, cited_for: the two sources, the first by its commit.
        found: their comparison, which says that evidence of the one supports the other.
        evidence: `tests` or `cells`.
    """
    if found.answer is not Answer.SUPPORTS or not run.holds or run.commit != ran.commit:
        raise ValueError("only evidence that holds, of the source that ran, is carried to one that it supports")
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": f"receipts/{run.closure_sha256}.json", "digest": {"sha256": run.closure_sha256}},
        ],
        "predicateType": _PREDICATE_TYPE,
        "predicate": {
            "schema": CARRIED_SCHEMA,
            "run_id": run.run_id,
            "verdict": run.verdict.label,
            "test_verdict": run.test_verdict.label,
            "device": run.device,
            "ran": {"commit": ran.commit, "tree": ran.tree},
            "cited_for": {"commit": cited_for.commit, "tree": cited_for.tree},
            "evidence": evidence,
            "relation": found.relation.value,
            "differences": [{"path": each.path, "relation": each.relation.value} for each in found.differences],
        },
    }
