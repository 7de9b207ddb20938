"""A qualification of a foreign repository on a cluster, from command to closure, alone and as the gate runs it."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from orchestrate.receipts.verify import verify_run

pytestmark = [pytest.mark.usefixtures("neighbours"), pytest.mark.timeout(600)]

FILE = """\
schema: orchestrate.qualification/1
name: foreign
device: cpu
groups:
  - {name: unit, command: python -m pytest -q -p no:cacheprovider t, timeout: 2m}
  - {name: where, command: [bash, -c, 'test -f t/test_x.py && test -z "$CELL_SET"'], report: exit-code, timeout: 1m}
"""
BROKEN = """\
  - {name: bad, command: python -m pytest -q -p no:cacheprovider broken, timeout: 2m}
  - {name: needy, command: ['true'], report: exit-code, needs: [bad], timeout: 1m}
"""
TESTS = "import pytest\ndef test_a(): pass\n@pytest.mark.skip(reason='no GPU here')\ndef test_b(): pass\n"


@pytest.fixture
def repository(tmp_path):
    """A repository of nobody in here, with a file that no compression makes smaller than a ConfigMap."""
    folder = tmp_path / "foreign"
    for name, text in {"t/test_x.py": TESTS, "broken/test_y.py": "def test_c(): assert 1 == 2\n"}.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    (folder / "weights.bin").write_bytes(os.urandom(800_000))
    git(folder, "init", "-q", "-b", "main")
    return folder


def git(folder, *arguments):
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *names, *arguments], cwd=folder, env=env, capture_output=True, check=True).stdout


def commit(folder, text):
    (folder / "qualification.yaml").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "x")
    return git(folder, "rev-parse", "HEAD").decode().strip()


def run(tool, cluster, folder, *arguments, **environ):
    """(exit code, answer) of `orchestrate ARGUMENTS` on the cluster, from within `folder`."""
    where = ("--backend", "k8s", "--namespace", cluster.namespace, "--image", cluster.image)
    done = subprocess.run(
        [sys.executable, "-m", "orchestrate", *arguments[:-1], *where, *arguments[-1]], check=False,
        capture_output=True, text=True, env=tool.environ() | environ, timeout=400, cwd=folder,
    )  # fmt: skip
    assert done.stdout, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


def test_a_foreign_repository_is_qualified_and_a_failing_group_is_red(cluster, tool, repository, tmp_path):
    sha = commit(repository, FILE + BROKEN)
    runs = tmp_path / "runs"
    code, answer = run(tool, cluster, tmp_path, "qualify", ["--repo", repository, "--runs-dir", runs, "--json"])
    assert (code, answer["verdict"]) == (1, "failed"), answer
    assert "test_c" in answer["reason"]
    assert answer["cells"] == {"expected": 4, "complete": 2}
    assert answer["teardown"] == {"confirmed": True, "remaining": []}
    assert (answer["device"], answer["accelerators"]) == ("cpu", "none")
    assert cluster.ours(answer["run_id"]) == []
    path = runs / answer["run_id"]
    found = verify_run(path)
    assert (found.holds, found.commit) == (True, sha), found.problems
    node = json.loads((path / "evidence" / "node.json").read_text())
    assert [group["status"] for group in node["cells"]] == ["complete", "complete", "failed", "unsettled"]
    assert node["cells"][0]["family"]["tracked"] >= 1
    assert (path / "evidence" / "groups" / "unit" / "tests.jsonl").exists()
    made = [json.loads(line)["facts"] for line in (path / "journal.jsonl").read_bytes().splitlines()]
    maps = {fact["name"] for facts in made for fact in facts.get("facts", ()) if fact.get("kind") == "made"}
    assert sum("-source-" in name for name in maps) == 2, maps
    for command in (["status", answer["run_id"]], ["report", answer["run_id"], "-o", str(tmp_path / "page.html")]):
        done, out, err = tool.command(*command, "--runs-dir", str(runs))
        assert done in {0, 1}, (out, err)
    assert "needy" in (tmp_path / "page.html").read_text()
    done, out, err = tool.command("launch", "--resume", answer["run_id"], "--runs-dir", str(runs))
    assert (done, "is a qualification" in err, sha in err) == (2, True, True)


def test_the_gate_qualifies_the_tested_commit_with_its_source_on_a_claim(cluster, emulator, tool, repository, tmp_path):
    (repository / ".github").mkdir()
    policy = "schema: orchestrate.gate-policy/1\ndevice: cpu\npinned_image: false\ngpu_paths: [/t/]\n"
    (repository / ".github" / "gpu-gate.yml").write_text(policy)
    sha = commit(repository, FILE)
    archive = git(repository, "-c", "tar.umask=0022", "archive", "--format=tar", sha)
    body = {
        "metadata": {"name": "sources"},
        "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    cluster.core.create_namespaced_persistent_volume_claim(cluster.namespace, body)
    folder = emulator.folder / "state" / "claims" / cluster.namespace / "sources" / "of-us"
    folder.mkdir(parents=True)
    (folder / f"{hashlib.sha256(archive).hexdigest()}.tar").write_bytes(archive)
    (tmp_path / "event.json").write_text("{}")
    github = {
        "GITHUB_EVENT_NAME": "push", "GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_REPOSITORY": "o/r",
        "GITHUB_SHA": sha, "GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "1", "GITHUB_REF_NAME": "main",
    }  # fmt: skip
    records = ["--records", tmp_path / "records"]
    for step in ("classify", "admit"):
        subprocess.run(
            [sys.executable, "-m", "orchestrate", "gate", step, *records],
            cwd=repository, env=tool.environ() | github, check=True, capture_output=True,
        )  # fmt: skip
    options = ["--source-claim", "pvc:sources/of-us", "--max-gpu-hours", "0"]
    runs = ("gate", "run", *map(str, records), "--runs-dir", str(tmp_path / "runs"), "--json", "--", "qualify")
    code, answer = run(tool, cluster, repository, *runs, options, **github)
    assert (code, answer["verdict"], answer["cells"]) == (0, "passed", {"expected": 2, "complete": 2}), answer
    found = verify_run(tmp_path / "runs" / answer["run_id"], require_passed=True)
    assert (found.holds, found.commit) == (True, sha), found.problems
    assert cluster.ours(answer["run_id"]) == []
    cluster.core.delete_namespaced_persistent_volume_claim("sources", cluster.namespace)
