"""What the workflow hands from job to job: code of a change runs in `run`, and decides nothing but its own run."""

from pathlib import Path

import pytest
import yaml

WORKFLOW = yaml.safe_load((Path(__file__).parents[3] / ".github/workflows/gpu-gate.yml").read_text())


def steps(job, action):
    return [step["with"] for step in WORKFLOW["jobs"][job]["steps"] if f"actions/{action}@" in step.get("uses", "")]


def test_the_job_that_runs_code_of_the_change_hands_on_no_record_of_another_job():
    (handed,) = (step["path"] for step in steps("run", "upload-artifact") if step["name"].startswith("gpu-gate-run-"))
    records = {line.strip() for line in handed.splitlines() if "records" in line}
    assert records == {"gate/records/admit.json", "gate/records/launch.json"}
    assert "gate" not in handed.split()


def test_the_conclusion_takes_the_word_of_classify_and_reconcile_after_that_of_the_run():
    order = [step["name"].split("-")[2] for step in steps("conclude", "download-artifact")]
    assert order == ["run", "classify", "reconcile", "earlier"]


@pytest.mark.parametrize("job", ["run", "reconcile", "conclude"])
def test_no_expression_is_pasted_into_a_script(job):
    for step in WORKFLOW["jobs"][job]["steps"]:
        assert "${{" not in step.get("run", "")


def test_jobs_after_a_cancelled_one_still_run():
    assert WORKFLOW["jobs"]["reconcile"]["if"].startswith("always()")
    assert WORKFLOW["jobs"]["conclude"]["if"] == "always()"


@pytest.mark.parametrize("job", ["classify", "run", "reconcile", "conclude"])
def test_the_tool_may_come_from_another_repository_and_leaves_the_checkout_as_it_was(job):
    own, tool = [step for step in WORKFLOW["jobs"][job]["steps"] if "actions/checkout@" in step.get("uses", "")]
    assert "repository" not in own["with"]
    assert "inputs.tool-repository" in tool["with"]["repository"]
    assert "inputs.tool-ref" in tool["with"]["ref"]
    (install,) = [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "pip install" in step.get("run", "")]
    folder = tool["with"]["path"]
    assert f"-c {folder}/constraints.txt" in install
    assert f"./{folder}" in install
    assert install.endswith(f"&& rm -rf {folder}")


def test_the_summary_links_the_page_that_was_uploaded_before_it():
    rows = WORKFLOW["jobs"]["conclude"]["steps"]
    ids = [step.get("id") for step in rows]
    assert ids.index("report") < ids.index("page") < ids.index("conclude")
    page, conclude = (next(step for step in rows if step.get("id") == name) for name in ("page", "conclude"))
    assert page["with"] == {"path": "${{ steps.report.outputs.page }}", "archive": False}
    assert conclude["env"]["PAGE"] == "${{ steps.page.outputs.artifact-url }}"
    assert '--page-url "$PAGE"' in conclude["run"]
