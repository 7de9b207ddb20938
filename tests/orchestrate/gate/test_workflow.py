"""What the workflow hands from job to job: code of a change runs in `run`, and decides nothing but its own run."""

import os
import subprocess
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


@pytest.mark.parametrize("job", ["classify", "run", "reconcile", "conclude"])
def test_no_expression_is_pasted_into_a_script(job):
    for step in WORKFLOW["jobs"][job]["steps"]:
        assert "${{" not in step.get("run", "")


def test_jobs_after_a_cancelled_one_still_run():
    assert WORKFLOW["jobs"]["reconcile"]["if"] == "always() && needs.run.result != 'skipped'"
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


def script(job, name):
    (found,) = [step for step in WORKFLOW["jobs"][job]["steps"] if f"gate {name}" in step.get("run", "")]
    return found


@pytest.mark.parametrize(("job", "variable"), [("run", "LAUNCH"), ("reconcile", "AUDIT")])
def test_options_on_several_lines_all_arrive_and_credentials_go_by_a_file(tmp_path, job, variable):
    """The step's own script, with a stand-in for the command that prints what it was given."""
    tool = tmp_path / "orchestrate"
    tool.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "CREDENTIALS=$CREDENTIALS"\n')
    tool.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path), "CREDENTIALS": "secret",
           variable: "--backend k8s\n  --namespace team\n"}  # fmt: skip
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script(job, job)["run"]]
    said = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert said[said.index("--") + 1 :] == ["--backend", "k8s", "--namespace", "team", "CREDENTIALS="]
    given = Path(said[said.index("--credentials") + 1])
    assert (given.read_text(), given.stat().st_mode & 0o777) == ("secret", 0o600)


def test_jobs_that_run_again_by_themselves_find_what_the_others_left_in_their_attempt():
    records = steps("run", "download-artifact")[0]["name"]
    assert records == "gpu-gate-classify-${{ needs.classify.outputs.attempt }}"
    for job in ("classify", "run", "reconcile"):
        assert WORKFLOW["jobs"][job]["outputs"]["attempt"] == "${{ github.run_attempt }}"
        (fetched,) = [each["name"] for each in steps("conclude", "download-artifact") if f"-{job}-" in each["name"]]
        assert fetched == f"gpu-gate-{job}-${{{{ needs.{job}.outputs.attempt || github.run_attempt }}}}"


def test_a_fork_gets_no_credentials_and_a_tool_of_the_change_no_key():
    assert "needs.classify.outputs.from-fork == 'false'" in WORKFLOW["jobs"]["run"]["if"]
    assert script("conclude", "conclude")["env"]["SIGN_KEY"] == "${{ inputs.tool-ref && secrets.sign-key || '' }}"
    assert WORKFLOW["jobs"]["conclude"]["permissions"] == {"contents": "read"}
