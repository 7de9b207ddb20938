"""Secrets that are planted wherever a gate could meet one, and looked for in everything that it leaves."""

import importlib.util
import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrate.commands import gate, report, status, verify
from orchestrate.errors import BackendError
from orchestrate.lifecycle.journal import Journal
from orchestrate.markup import brief
from orchestrate.redaction import without_secrets
from orchestrate.report.words import clean

# Made here, piece by piece, so that no scanner takes this file for a leak.
PLANTED = {
    "AWS_SECRET_ACCESS_KEY": "canary0aws" + "wJalrXUtnFEMI",
    "GITHUB_TOKEN": "ghp" + "_canary1" + "A1b2C3d4E5f6G7h8I9j0K1l2",
    "HF_TOKEN": "hf" + "_canary2" + "QwertyuiopAsdfghjklZxcvb",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "canary3-" + '<&"quoted\\> 0123456789',
}
IN_KUBECONFIG = "canary4" + "0123456789abcdef"
IN_REMOTE = "canary5" + "0123456789abcdef"

QUALIFICATION = """schema: orchestrate.qualification/1
name: self
device: cpu
groups:
  - {name: prints, command: [python, leak.py], report: exit-code, timeout: 1m}
  - {name: unit, command: python -m pytest -q -p no:cacheprovider t, timeout: 2m}
"""
LEAK = """import os, pathlib
for name, value in os.environ.items():
    print(name, value)
seen = b"".join(p.read_bytes() for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if os.access(p, os.R_OK))
print("in process arguments:", sum(v.encode() in seen for n, v in os.environ.items() if "canary" in v))
"""
TESTS = """import os, pytest
def test_a(): pass
def test_b(): pytest.skip(f"no access with {os.environ['HF_TOKEN']}, {os.environ['ACTIONS_ID_TOKEN_REQUEST_TOKEN']}")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the node's preflight asks for PyTorch")
def test_nothing_that_a_gate_leaves_holds_a_planted_secret(github, monkeypatch):
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    kubeconfig = github.root / "kubeconfig"
    kubeconfig.write_text(json.dumps({"users": [{"name": "u", "user": {"token": IN_KUBECONFIG}}]}))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    github.git("remote", "add", "origin", f"https://x-access-token:{IN_REMOTE}@git.example.org/o/r")
    for name, text in {"qualification.yaml": QUALIFICATION, "leak.py": LEAK, "t/test_x.py": TESTS}.items():
        github.write(name, text)
    github.change()
    told = ""
    for step, *more in (
        ("classify",),
        ("admit",),
        ("run", "--runs-dir", str(github.runs), "--", "qualify"),
    ):
        told += said(github, gate.command, step, "--records", str(github.records), "--json", *more)
    github.reconciled()
    needs = json.dumps({name: {"result": "success"} for name in ("classify", "run", "reconcile")})
    told += said(github, gate.command, "conclude", "--records", str(github.records), "--runs-dir", str(github.runs),
                 "--needs", needs)  # fmt: skip
    (run,) = (path for path in github.runs.iterdir() if path.name.startswith("r"))
    log = (run / "evidence/groups/prints/output.log").read_text()
    assert "in process arguments: 0" in log
    assert "HF_TOKEN (HF_TOKEN)" in log
    assert json.loads((run / "evidence/node.json").read_text())["cells"][1]["concealed"] == [
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "HF_TOKEN",
    ]  # fmt: skip
    told += said(github, report.command, str(run), "-o", str(github.root / "gate/page.html"))
    told += said(github, verify.command, str(run), "--json") + said(
        github, status.command, "--runs-dir", str(run.parent)
    )
    shutil.copy(github.root / "summary.md", github.root / "gate")
    left = {path: path.read_bytes() for path in (github.root / "gate").rglob("*") if path.is_file()}
    assert len(left) > 20
    for data in (told.encode(), *left.values()):
        assert not [name for name in (f"canary{number}" for number in range(6)) if name.encode() in data]


def said(github, command, *arguments):
    """Everything that a command prints."""
    before = Path.cwd()
    os.chdir(github.work)
    try:
        done = CliRunner(mix_stderr=False).invoke(command, arguments, standalone_mode=False)
    finally:
        os.chdir(before)
    assert done.exception is None, (arguments, done.exc_info)
    return done.stdout + done.stderr


QUOTED = [
    "401 from GET /pods, sent headers {'Authorization': 'Bearer canary-0123456789'}",
    'HTTP response body: {"token": "canary-0123456789", "code": 401}',
    "bearer canary.0123456789~x was refused",
    "authorization: Basic Y2FuYXJ5Y2FuYXJ5",
    "fatal: unable to access 'https://x:canary-0123@git.example.org/o/r/'",
    "cloning https://canary-0123456789abc@git.example.org/o/r",
    "GET https://api.example.org/x?access_token=canary-0123456789&y=1",
    "the id token ey" + "Jcanary0123456.eyJzdWIiOiJ4In0.c2lnbmF0dXJl is not for us",
    "-----BEGIN " + "PRIVATE KEY-----\nY2FuYXJ5\n-----END " + "PRIVATE KEY-----",
    "AWS_SECRET_ACCESS_KEY=canary/0123456789+x",
    "gh" + "p_canaryA1b2C3d4E5f6G7h8",
]


@pytest.mark.parametrize("text", QUOTED)
def test_a_providers_error_that_quotes_a_credential_is_shown_and_kept_without_it(tmp_path, text):
    error = BackendError(f"the API said: {text}", remedy="x", answer=text)
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("note", text=text, steps=[{"detail": text}])
    journal.close()
    kept = (tmp_path / "journal.jsonl").read_text()
    for shown in (str(error), error.cause, error.answer, kept, brief(text), clean(text)):
        assert "canary" not in shown
        assert "Y2FuYXJ5" not in shown
        assert "<secret>" in shown


@pytest.mark.parametrize(
    "text",
    ['pods is forbidden: User "system:serviceaccount:team:ci" cannot list', "token_sha256 " + "ab" * 32,
     "the bearer token was refused", "ssh://git@git.example.org/o/r", "exit code 1: no token", "https://a.example.org:443/x@y",
     "password authentication is off", 'Secret "corpus" not found', "job a/b:1, uid 0a1b2c3d-0a1b"],
)  # fmt: skip
def test_words_that_are_no_credential_stay(text):
    assert without_secrets(text) == text


def test_our_own_names_are_journalled_exactly_as_they_are(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    intent = {"name": "x", "note": "token=abcdefgh0123"}
    assert journal.append("acquiring", intent=intent).facts["intent"] == intent
    journal.close()
