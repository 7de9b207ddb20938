"""`orchestrate render` on the command line."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re

import click
import pytest
import yaml
from click.testing import CliRunner

from orchestrate.commands.render import command
from orchestrate.errors import UsageError

DIGEST = "a/b@sha256:" + "0123456789abcdef" * 4


@pytest.fixture
def render(monkeypatch, capsys):
    """`render(*arguments)` runs the command without the caller's own selection; it returns what was printed."""
    for name in ("CELL_SET", "ELLAVOX_GROUPS", "TEXT_GROUPS", "ORCHESTRATE_OWNER"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, backend="sky"):
        capsys.readouterr()
        assert command.main(["--backend", backend, *arguments], standalone_mode=False) == 0
        return capsys.readouterr()

    return run


def test_two_groups_are_rendered_as_two_cells(render):
    answer = render("--cell-set", "ellavox", "--groups", "1,4", "--run-id", "x", "--json")
    found = json.loads(answer.out)
    assert [key[-2:] for key in found["cells"]] == ["g1", "g4"]
    assert found["groups"] == [1, 4]
    assert yaml.safe_load(found["text"])["envs"]["ELLAVOX_GROUPS"] == "1 4"


@pytest.mark.parametrize("backend", ["sky", "k8s"])
def test_a_named_run_is_rendered_the_same_each_time(render, backend):
    first, second = (render("--cell-set", "smoke", "--run-id", "x", backend=backend).out for _ in range(2))
    assert first == second


def test_an_unnamed_run_gets_a_name_and_an_expiry(render):
    first, second = (yaml.safe_load(render("--cell-set", "smoke").out) for _ in range(2))
    assert re.fullmatch(r"r\d{8}-\d{6}-[0-9a-f]{6}", first["envs"]["RUN_ID"])
    assert first["envs"]["RUN_ID"] != second["envs"]["RUN_ID"]
    assert re.fullmatch(r"\d{8}t\d{6}z(-[0-9a-f]{8})?", first["resources"]["labels"]["orchestrate-expires"])


def test_a_named_run_carries_only_the_expiry_that_was_given(render):
    assert "expires" not in render("--cell-set", "smoke", "--run-id", "x").out
    given = render("--cell-set", "smoke", "--run-id", "x", "--expires", "2099-01-02T04:04:05+01:00").out
    assert 'orchestrate/expires: "20990102T030405Z"' in given


def test_standard_output_is_yaml_alone_and_everything_else_is_on_stderr(render):
    answer = render("--cell-set", "main", "--run-id", "x", "--image", "a/b:tag", backend="k8s")
    job, *maps = yaml.safe_load_all(answer.out)
    assert job["kind"] == "Job"
    assert maps
    assert all(config_map["kind"] == "ConfigMap" for config_map in maps)
    assert "warning: image a/b:tag" in answer.err
    assert "kubectl delete job,configmap --selector orchestrate/run-id=x" in answer.err


def test_a_warning_is_also_in_the_json(render):
    found = json.loads(render("--cell-set", "main", "--image", "a/b:tag", "--json").out)
    assert ["a/b:tag" in warning for warning in found["warnings"]] == [True]
    assert found["image"] == {"reference": "a/b:tag", "pinned": False, "digest": None}
    pinned = json.loads(render("--cell-set", "main", "--image", DIGEST, "--json").out)
    assert pinned["warnings"] == []
    assert pinned["image"]["digest"] == DIGEST.partition("@")[2]


def test_the_json_names_each_document_by_its_digest(render):
    found = json.loads(render("--cell-set", "main", "--json", backend="k8s").out)
    texts = found["text"].split("---\n")
    assert [hashlib.sha256(text.encode()).hexdigest() for text in texts] == [
        document["sha256"] for document in found["documents"]
    ]
    assert found["sha256"] == hashlib.sha256(found["text"].encode()).hexdigest()


def test_a_folder_gets_the_file_and_standard_output_its_path(render, tmp_path):
    answer = render("--cell-set", "smoke", "--run-id", "x", "-o", str(tmp_path / "new" / "folder"))
    (path,) = (tmp_path / "new" / "folder").iterdir()
    assert answer.out == f"{path}\n"
    assert path.name == "orchestrate-smoke-x.sky.yaml"
    assert path.read_text() == render("--cell-set", "smoke", "--run-id", "x").out
    found = json.loads(render("--cell-set", "smoke", "--run-id", "x", "-o", str(path.parent), "--json").out)
    assert (found["files"], found["text"]) == ([str(path)], None)


def test_other_content_is_not_overwritten_without_force(render, tmp_path):
    arguments = ("--cell-set", "smoke", "--run-id", "x", "-o", str(tmp_path))
    render(*arguments)
    render(*arguments)  # the same content is no conflict
    (path,) = tmp_path.iterdir()
    path.write_text("mine")
    with pytest.raises(UsageError, match="other content") as caught:
        render(*arguments)
    assert "--force" in caught.value.remedy
    assert path.read_text() == "mine"
    render(*arguments, "--force")
    assert path.read_text() != "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_can_not_be_written_is_an_error(render, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="can not be written"):
        render("--cell-set", "smoke", "-o", str(tmp_path / "file"))


def test_a_private_corpus_is_mounted_and_pinned_by_the_digest_of_the_file(render, tmp_path):
    corpus = tmp_path / "ellavox.jsonl"
    corpus.write_text("secret tokens")
    tree = yaml.safe_load(render("--cell-set", "ellavox", "--corpus", str(corpus)).out)
    assert tree["file_mounts"] == {"~/orchestrate-corpus/tokens": str(corpus)}
    assert tree["envs"]["CORPUS_SHA256"] == hashlib.sha256(b"secret tokens").hexdigest()


@pytest.mark.parametrize(
    ("backend", "arguments"),
    [
        ("sky", ["--corpus", "pvc:claim/x", "--corpus-sha256", "f" * 64]),
        ("sky", ["--corpus", "/no/such/file"]),
        ("sky", ["--corpus", __file__, "--corpus-sha256", "f" * 64]),
        ("sky", ["--corpus-sha256", "f" * 64]),
        ("k8s", ["--corpus", __file__]),
        ("k8s", ["--corpus", "pvc:claim/x"]),
        ("k8s", ["--corpus", "pvc:claim/x", "--corpus-sha256", "F"]),
        ("k8s", ["--infra", "k8s/x"]),
        ("k8s", ["--workdir", "."]),
        ("k8s", ["--namespace", "A b"]),
        ("k8s", ["--node-selector", "novalue"]),
        ("k8s", ["--node-selector", "a b=c"]),
        ("k8s", ["--toleration", "a:Never"]),
        ("sky", ["--namespace", "x"]),
        ("sky", ["--image", "a b"]),
        ("sky", ["--accelerators", "H200"]),
        ("sky", ["--accelerators", "H200:0"]),
        ("sky", ["--deadline", "15m"]),
        ("sky", ["--deadline", "25h"]),
        ("sky", ["--expires", "soon"]),
        ("sky", ["--expires", "2026-01-02T03:04:05"]),
        ("sky", ["--expires", "2026-01-02T03:04:05Z"]),
        ("sky", ["--expires", "0001-01-01T00:00:00+23:59"]),
        ("sky", ["--expires", "9999-12-31T23:59:59-23:59"]),
        ("sky", ["--run-id", ""]),
        ("sky", ["--run-id", "a b"]),
        ("sky", ["-o", ""]),
        ("sky", ["--corpus", ""]),
        ("k8s", ["--corpus", ""]),
        ("sky", ["--corpus", "/dev/zero"]),
        ("sky", ["--corpus", "/"]),
        ("sky", ["--corpus", "a\0b"]),
        ("sky", ["--accelerators", "H200:2"]),
        ("sky", ["--accelerators", "A100:8"]),
        ("sky", ["--image", f"docker:{DIGEST}"]),
        ("sky", ["--image", "docker:x@sha256:" + "f" * 64]),
        ("k8s", ["--image", "docker:x"]),
        ("k8s", ["--node-selector", "pool=a", "--node-selector", "pool=b"]),
        ("k8s", ["--node-selector", "none", "--node-selector", "pool=b"]),
        ("k8s", ["--toleration", "none", "--toleration", "spot"]),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_printed(render, capsys, backend, arguments):
    with pytest.raises((UsageError, click.UsageError)) as caught:
        render("--cell-set", "ellavox", *arguments, backend=backend)
    assert caught.value.exit_code == 2
    assert capsys.readouterr().out == ""


def test_a_fifo_is_refused_as_a_corpus_and_not_waited_for(render, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="not a regular file"):
        render("--cell-set", "ellavox", "--corpus", str(tmp_path / "fifo"))


def test_gpus_are_asked_for_as_nodes_are_labelled_whatever_their_case(render):
    job, *_ = yaml.safe_load_all(render("--cell-set", "main", "--accelerators", "h200:8", backend="k8s").out)
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}


def test_the_node_is_told_to_expect_the_gpus_that_were_asked_for(render):
    tree = yaml.safe_load(render("--cell-set", "single", "--accelerators", "H200:1").out)
    assert (tree["resources"]["accelerators"], tree["envs"]["PROCS"]) == ("H200:1", "1")
    job, *_ = yaml.safe_load_all(render("--cell-set", "main", "--accelerators", "H200:8", backend="k8s").out)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert {"name": "PROCS", "value": "8"} in container["env"]


def test_ranks_on_a_cpu_take_a_node_with_any_gpus(render):
    tree = yaml.safe_load(render("--cell-set", "smoke", "--accelerators", "L4:1").out)
    assert (tree["resources"]["accelerators"], tree["envs"]["PROCS"]) == ("L4:1", "4")


def test_the_removal_command_names_the_namespace(render):
    answer = render("--cell-set", "main", "--run-id", "x", "--namespace", "gpu-tests", backend="k8s")
    assert "kubectl delete job,configmap -n gpu-tests --selector orchestrate/run-id=x\n" in answer.err


def test_a_user_without_a_passwd_entry_owns_it_by_number(render, monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    tree = yaml.safe_load(render("--cell-set", "smoke").out)
    assert tree["resources"]["labels"]["orchestrate-owner"] == f"uid-{os.getuid()}"


def test_a_set_of_a_private_corpus_without_the_corpus_is_warned_about(render):
    (warning,) = json.loads(render("--cell-set", "ellavox", "--groups", "1 4", "--json").out)["warnings"]
    assert "2 of 2 cells need a private corpus" in warning


def test_the_help_shows_an_example(render):
    assert "orchestrate render --backend" in CliRunner().invoke(command, ["--help"]).output
