"""`orchestrate audit` as a command: which backends it asks, what it says, and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrate.backends.survey import OwnedResources, Survey
from orchestrate.commands import audit
from orchestrate.errors import BackendError, UnsatisfiableError


class Surveyor:
    def __init__(self, name, owned=(), unknown=()):
        self.name = name
        self.owned = owned
        self.unknown = unknown

    def survey(self):
        return Survey(tuple(self.owned), (f"everything of {self.name}",), tuple(self.unknown))

    def reap(self, owned):
        self.owned = [each for each in self.owned if each is not owned]
        return ()


def owned(run_id="r1", *, expires_at="2020-01-01T00:00:00Z", **more):
    return OwnedResources("k8s", "ctx/ns", run_id, "ada@ws", expires_at, 7200.0, (f"job ns/{run_id}",), **more)


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Surveyors by name, in a home where nothing is configured; runs the command."""
    surveyors = {"local": Surveyor("local")}
    asked = {}

    def open_surveyor(name, settings, _place):
        asked[name] = settings
        if name not in surveyors:
            raise UnsatisfiableError(f"no {name} here", remedy="install it")
        return surveyors[name]

    for name in ("KUBECONFIG", "SKYPILOT_API_SERVER_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(audit, "open_surveyor", open_surveyor)

    def run(*arguments):
        full = ["--runs-dir", str(tmp_path / "runs"), *arguments]
        done = CliRunner().invoke(audit.command, full, standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.return_value, done.stdout

    run.surveyors = surveyors
    run.asked = asked
    run.home = tmp_path / "home"
    return run


def test_by_default_only_what_is_configured_is_asked_and_the_rest_is_told(world):
    code, out = world()
    assert code == 0
    assert list(world.asked) == ["local"]
    assert "looked at  local: everything of local" in out
    assert "is known" not in out
    assert "not looked at  k8s: no KUBECONFIG" in out
    assert "not looked at  sky: no SKYPILOT_API_SERVER_ENDPOINT" in out


@pytest.mark.parametrize(
    ("name", "path"), [("k8s", ".kube/config"), ("sky", ".sky/state.db"), ("sky", ".sky/config.yaml")]
)
def test_a_configured_backend_is_asked_by_default(world, name, path):
    (world.home / path).parent.mkdir(parents=True)
    (world.home / path).touch()
    world.surveyors[name] = Surveyor(name)
    assert world()[0] == 0
    assert name in world.asked


@pytest.mark.parametrize("failure", [BackendError, UnsatisfiableError])
def test_a_configured_backend_that_can_not_be_asked_now_is_never_clean(world, monkeypatch, failure):
    """What was never installed is another matter: only that is told beside a clean answer."""

    def open_surveyor(name, _settings, _place):
        if name == "local":
            return Surveyor(name)
        raise failure("the credential plugin failed", remedy="log in")

    monkeypatch.setattr(audit, "open_surveyor", open_surveyor)
    monkeypatch.setenv("KUBECONFIG", "/somewhere")
    code, out = world()
    assert code == (0 if failure is UnsatisfiableError else 70)
    assert "credential plugin failed" in out


@pytest.mark.parametrize("variable", ["KUBECONFIG", "SKYPILOT_API_SERVER_ENDPOINT"])
def test_an_environment_that_names_an_endpoint_is_a_configuration(world, monkeypatch, variable):
    monkeypatch.setenv(variable, "/somewhere")
    world()
    assert len(world.asked) == 2


def test_a_backend_that_was_asked_for_by_name_and_can_not_be_looked_at_is_70(world):
    code, out = world("--backend", "k8s")
    assert code == 70
    assert "unknown  k8s: no k8s here" in out
    assert "clean" not in out
    assert world("--backend", "all")[0] == 70


def test_one_that_is_configured_and_can_not_be_opened_is_told_and_no_more(world, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/somewhere")
    code, out = world()
    assert (code, "not looked at  k8s: no k8s here" in out) == (0, True)


def test_the_options_of_a_backend_reach_its_surveyor(world):
    world.surveyors["k8s"] = Surveyor("k8s")
    world("--backend", "k8s", "--context", "prod", "--namespace", "gpu")
    assert world.asked == {"k8s": {"context": "prod", "namespace": "gpu"}}


def test_something_is_1_then_reaped_0_then_clean(world):
    world.surveyors["k8s"] = Surveyor("k8s", [owned(gpus=4)])
    code, out = world("--backend", "k8s")
    assert code == 1
    for part in ("left  r1", "owner ada@ws, 2h 00m old", "holds 4 GPUs (about 8.0 GPU hours so far)", "job ns/r1"):
        assert part in out
    code, out = world("--backend", "k8s", "--reap")
    assert (code, "r1: ended" in out) == (0, True)
    code, out = world("--backend", "k8s")
    assert (code, "clean: nothing of ours is there" in out) == (0, True)


def test_what_could_not_be_asked_is_70_whatever_else_was_found(world):
    world.surveyors["k8s"] = Surveyor("k8s", [owned()], unknown=["config maps: 503"])
    code, out = world("--backend", "k8s", "--reap")
    assert code == 70
    assert "unknown  k8s: config maps: 503" in out


def test_a_misspelt_run_is_not_simply_clean(world):
    code, out = world("--run", "r20260101-typo")
    assert code == 0
    assert "no run r20260101-typo is known where was looked; a misspelt name looks the same" in out
    assert "clean: nothing of ours of run r20260101-typo is there" in out
    assert json.loads(world("--run", "TYPO", "--json")[1])["run_known"] is False
    world.surveyors["local"].owned = [owned()]
    assert json.loads(world("--run", "r1", "--json")[1])["run_known"] is True


def test_clean_says_of_whom_where_only_an_owner_or_an_age_was_meant(world):
    code, out = world("--owner", "ada@ws", "--older-than", "2h")
    assert (code, "clean: nothing of ours of owner ada@ws older than 2h 00m is there" in out) == (0, True)


def test_json_is_one_object_with_all_of_it(world):
    world.surveyors["k8s"] = Surveyor("k8s", [owned(gpus=4)])
    code, out = world("--backend", "k8s", "--json")
    tree = json.loads(out)
    assert tree["exit_code"] == code == 1
    assert tree["looked"] == ["k8s: everything of k8s"]
    assert tree["not_looked"] == ["local: it was not asked for", "sky: it was not asked for"]
    (finding,) = tree["findings"]
    assert (finding["gpus"], finding["gpu_hours"], finding["action"]) == (4, 8.0, "end")


def test_foreign_labels_can_not_steer_a_terminal(world):
    world.surveyors["local"] = Surveyor("local", [owned("r1\x1b[2J", expires_at="")])
    _, out = world()
    assert "\x1b[2J" not in out


def test_an_answer_that_can_not_be_written_is_70_and_not_a_finding(tmp_path):
    for arguments in ([], ["--json"]):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "orchestrate", "audit", "--backend", "local", "--run", "none", *arguments,
                 "--runs-dir", str(tmp_path)],
                stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
        assert done.returncode == 70, done.stderr
        assert "error: the answer can not be written" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_reader_that_left_changes_no_exit_code(tmp_path):
    command = [sys.executable, "-m", "orchestrate", "audit", "--backend", "local", "--run", "none"]
    with subprocess.Popen(
        [*command, "--runs-dir", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        child.stdout.close()
        err = child.stderr.read()
        assert (child.wait(), err) == (0, "")


def test_credentials_come_from_a_file_and_an_empty_one_is_told(world, tmp_path, monkeypatch):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    seen = []
    monkeypatch.setattr(audit, "open_surveyor", lambda name, _settings, place: seen.append(place) or Surveyor(name))
    path = tmp_path / "credentials"
    path.write_text("kind: Config\n")
    done = CliRunner().invoke(audit.command, ["--backend", "k8s", "--credentials", str(path)], standalone_mode=False)
    assert done.exception is None, done.exc_info
    (place,) = seen
    assert place.environ["KUBECONFIG"] == str(path)
    path.write_text("")
    done = CliRunner().invoke(audit.command, ["--backend", "k8s", "--credentials", str(path)], standalone_mode=False)
    assert "was given no secret" in str(done.exception)
