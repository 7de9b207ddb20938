"""A cell set as a Kubernetes Job with its ConfigMaps."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from orchestrate.errors import RenderError, UsageError
from orchestrate.render import (
    Accelerators,
    Backend,
    Corpus,
    HarnessArchive,
    Toleration,
    check_manifest,
    harness_archive,
    harness_dir,
    load_template,
    parse_image,
    render,
    selector,
)
from orchestrate.render.archive import CHUNK_BYTES
from orchestrate.render.schema import KUBERNETES_VERSION

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "render"
DIGEST = "a/b@sha256:" + "0" * 64


def test_a_job_asks_for_four_gpus_once_and_is_bounded(job, container):
    tree = job(deadline_s=5400, ttl_s=600)
    assert container(tree)["resources"]["limits"]["nvidia.com/gpu"] == 4
    spec = tree["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (0, 5400, 600)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_payload_and_collection_fit_inside_the_deadline(job, env):
    tree = job(deadline_s=5400, reserve_s=900, collect_wait_s=300)
    values = env(tree)
    used = sum(int(values[name]) for name in ("JOB_LIMIT_S", "KILL_AFTER_S", "COLLECT_WAIT_S"))
    assert int(values["JOB_LIMIT_S"]) == 4500
    assert used < tree["spec"]["activeDeadlineSeconds"]


def test_the_pod_has_no_root_no_token_and_no_writable_root(job, container):
    pod = job()["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    security = container(job())["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_what_must_be_written_is_mounted(job, container):
    pod = job()["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container(job())["volumeMounts"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert "emptyDir" in volumes[mounts["/tmp"]]
    assert "emptyDir" in volumes[mounts["/evidence"]]


def test_gpu_nodes_are_selected_by_product_and_tolerated(job):
    pod = job()["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_node_selector_and_tolerations_can_be_replaced_or_removed(job):
    pod = job(node_selector=(("pool", "a"),), tolerations=(Toleration("k", "v", None),))["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "a"}
    assert pod["tolerations"] == [{"key": "k", "operator": "Equal", "value": "v"}]
    pod = job(node_selector=(), tolerations=())["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {}
    assert pod["tolerations"] == []


def test_other_accelerators_select_other_nodes(job, container):
    tree = job(accelerators=Accelerators.parse("H100:8"))
    assert tree["spec"]["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100"}
    assert container(tree)["resources"]["limits"]["nvidia.com/gpu"] == 8


def test_no_gpu_at_all_asks_for_none_and_stays_off_their_nodes(job, container):
    tree = job(accelerators=Accelerators.parse("none"))
    pod = tree["spec"]["template"]["spec"]
    assert "nvidia.com/gpu" not in container(tree)["resources"]["limits"]
    assert (pod["nodeSelector"], pod["tolerations"]) == ({}, [])


def test_gpus_of_any_kind_select_no_node_by_its_product(job, container):
    tree = job(accelerators=Accelerators.parse("any:2"))
    assert container(tree)["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert tree["spec"]["template"]["spec"]["nodeSelector"] == {}


def test_a_job_in_a_queue_is_held_until_the_queue_lets_it_go(job):
    tree = job(queue="team-a", priority_class="low")
    assert tree["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert tree["spec"]["suspend"] is True
    assert tree["spec"]["template"]["spec"]["priorityClassName"] == "low"
    assert "suspend" not in job()["spec"]


def test_a_copy_of_the_evidence_goes_to_the_claim_that_is_named(job, env, container):
    tree = job(sink="pvc:kept/a/b", collect_wait_s=0)
    assert (env(tree)["SINK_DIR"], env(tree)["SINK_LIMIT_S"]) == ("/sink/a/b", "1")
    assert {"name": "sink", "mountPath": "/sink"} in container(tree)["volumeMounts"]
    claim = {"name": "sink", "persistentVolumeClaim": {"claimName": "kept"}}
    assert claim in tree["spec"]["template"]["spec"]["volumes"]
    assert env(job(sink="pvc:kept"))["SINK_DIR"] == "/sink"
    assert env(job())["SINK_DIR"] == ""


@pytest.mark.parametrize("sink", ["kept", "pvc:", "pvc:Kept", "pvc:kept/../x", "pvc:kept//x", "s3://bucket"])
def test_a_sink_that_names_no_claim_is_refused(job, sink):
    with pytest.raises(UsageError, match="volume claim"):
        job(sink=sink)


def test_the_node_gets_the_selection(job, env):
    values = env(job(group_variable="ELLAVOX_GROUPS", groups=("1", "4"), repeat=3))
    assert (values["CELL_SET"], values["ELLAVOX_GROUPS"], values["RUN_ID"], values["REPEAT"]) == (
        "ellavox",
        "1 4",
        "r1",
        "3",
    )
    assert "ELLAVOX_GROUPS" not in env(job(group_variable="ELLAVOX_GROUPS"))


def test_a_race_is_asked_for_by_name_and_no_race_is_no_variable(job, env):
    assert env(job(schedule="racing"))["SCHEDULE"] == "racing"
    assert "SCHEDULE" not in env(job())


def test_a_schedule_that_there_is_not_is_refused(job):
    with pytest.raises(UsageError, match="'quick' is none"):
        job(schedule="quick")


def test_a_private_corpus_is_mounted_read_only_and_pinned(job, env, container):
    tree = job(corpus=Corpus("claim/a/b.jsonl", "f" * 64))
    assert (env(tree)["CORPUS"], env(tree)["CORPUS_SHA256"]) == ("/corpus/a/b.jsonl", "f" * 64)
    assert {"name": "corpus", "mountPath": "/corpus", "readOnly": True} in container(tree)["volumeMounts"]
    claim = {"claimName": "claim", "readOnly": True}
    assert {"name": "corpus", "persistentVolumeClaim": claim} in tree["spec"]["template"]["spec"]["volumes"]


@pytest.mark.parametrize("location", ["claim", "claim/", "/path", "claim/../x"])
def test_a_corpus_that_names_no_file_on_a_claim_is_refused(job, location):
    with pytest.raises(UsageError, match="volume claim"):
        job(corpus=Corpus(location, "f" * 64))


def test_an_image_by_tag_is_warned_about_also_when_the_template_names_it(plain, archive):
    assert render(Backend.K8S, replace(plain, image=parse_image(DIGEST)), archive=archive).warnings == ()
    (warning,) = render(Backend.K8S, plain, archive=archive).warnings
    assert "can move" in warning


def test_every_document_carries_the_labels_that_remove_it(plain, archive):
    big = HarnessArchive(gz=b"x" * (CHUNK_BYTES + 1), sha256="0" * 64)
    documents = render(Backend.K8S, replace(plain, run_id="x" * 64), archive=big).documents
    key, _, value = selector("x" * 64).partition("=")
    assert [document.tree["kind"] for document in documents] == ["Job", "ConfigMap", "ConfigMap"]
    assert {document.tree["metadata"]["labels"][key] for document in documents} == {value}
    assert documents[0].tree["spec"]["template"]["metadata"]["labels"][key] == value


def test_the_harness_arrives_whole_in_config_maps_under_one_mebibyte(plain, env):
    archive = harness_archive(harness_dir())
    noise = bytes((index * index + index // 251) % 256 for index in range(2 * CHUNK_BYTES + 1))
    for one in (archive, HarnessArchive(gz=noise, sha256="0" * 64)):
        job, *maps = (document.tree for document in render(Backend.K8S, plain, archive=one).documents)
        data = {}
        for config_map in maps:
            assert sum(len(value) for value in config_map["binaryData"].values()) < 1024 * 1024
            data |= config_map["binaryData"]
        assert b"".join(base64.b64decode(data[name]) for name in sorted(data)) == one.gz
        assert env(job)["HARNESS_SHA256"] == one.sha256
        (harness,) = [volume for volume in job["spec"]["template"]["spec"]["volumes"] if volume["name"] == "harness"]
        names = [source["configMap"]["name"] for source in harness["projected"]["sources"]]
        assert names == [config_map["metadata"]["name"] for config_map in maps]
        assert all(one.sha256[:12] in name for name in names)


def test_the_archive_holds_the_harness_and_no_compiled_code():
    with tarfile.open(fileobj=io.BytesIO(harness_archive(harness_dir()).gz), mode="r:gz") as tar:
        names = tar.getnames()
    assert "harness/__main__.py" in names
    assert any(name.startswith("harness/sets/") for name in names)
    assert names == sorted(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_the_archive_depends_on_names_and_contents_alone(tmp_path):
    for folder, order in (("one", "ab"), ("two", "ba")):
        for name in order:
            path = tmp_path / folder / "harness" / "p" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
    (tmp_path / "two" / "harness" / "p" / "__pycache__").mkdir()
    (tmp_path / "two" / "harness" / "p" / "__pycache__" / "a.pyc").write_text("compiled")
    (tmp_path / "two" / "harness" / "p" / "a.py").chmod(0o600)
    one, two = (harness_archive(tmp_path / folder / "harness") for folder in ("one", "two"))
    assert one == two
    (tmp_path / "two" / "harness" / "p" / "a.py").write_text("changed")
    assert harness_archive(tmp_path / "two" / "harness").sha256 != one.sha256


def test_the_archive_takes_nothing_but_source(tmp_path):
    for name in ("a.py", "sets/a.json", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("source")
    before = harness_archive(tmp_path)
    for name in (".env", "a.py.swp", "a.py~", "core", "id_rsa.pem", "a.pyc", "notes.md"):
        (tmp_path / name).write_text("private")
    os.mkfifo(tmp_path / "fifo.py")
    assert harness_archive(tmp_path) == before


@pytest.mark.parametrize("leads_to", ["file", "folder", "nowhere"])
def test_a_symbolic_link_in_the_harness_is_refused_by_name(tmp_path, leads_to):
    (tmp_path / "file").write_text("private")
    (tmp_path / "folder").mkdir()
    harness = tmp_path / "harness"
    harness.mkdir()
    (harness / "a.py").write_text("source")
    (harness / "link.py").symlink_to(tmp_path / leads_to)
    with pytest.raises(RenderError, match=r"harness/link\.py is a symbolic link"):
        harness_archive(harness)


def test_every_file_of_the_harness_that_it_reads_travels():
    with tarfile.open(fileobj=io.BytesIO(harness_archive(harness_dir()).gz), mode="r:gz") as tar:
        travels = {name for name in tar.getnames() if name.endswith(".json")}
    there = {f"harness/{path.relative_to(harness_dir())}" for path in (harness_dir() / "sets").rglob("*.json")}
    assert there <= travels


def test_no_harness_is_an_error(tmp_path):
    with pytest.raises(RenderError, match="no file of a harness"):
        harness_archive(tmp_path)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "backofLimit"), 0),
        (("spec", "backoffLimit"), "0"),
        (("spec", "template", "spec", "containers", 0, "env", 0, "value"), 1),
        (("spec", "template", "spec", "containers", 0, "volumeMounts", 0, "mountpath"), "/x"),
        (("metadata", "labels", "a"), 1),
        (("apiVersion",), "batch/v2"),
        (("kind",), "Pod"),
    ],
)
def test_a_misspelt_field_or_wrong_type_is_found(job, path, value):
    tree = job()
    check_manifest(tree, "x")
    spot = tree
    for part in path[:-1]:
        spot = spot[part]
    spot[path[-1]] = value
    with pytest.raises(RenderError, match=r"^x: ") as caught:
        check_manifest(tree, "x")
    assert caught.value.remedy


def test_the_place_of_an_error_is_named(job):
    tree = job()
    tree["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"] = 7
    with pytest.raises(RenderError, match=r"at spec\.template\.spec\.containers\.0\.env\.1\.value: 7 is not"):
        check_manifest(tree, "x")


def test_the_template_is_a_valid_manifest_by_itself():
    tree = load_template(Backend.K8S)
    check_manifest(tree, "template")
    kubernetes_validate.validate(tree, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.k8s.yaml")), ids=lambda path: path.name)
def test_the_validator_package_agrees_on_the_pinned_version_and_the_next(path):
    for tree in yaml.safe_load_all(path.read_text()):
        for version in (KUBERNETES_VERSION, "1.37"):
            kubernetes_validate.validate(tree, version, strict=True)


def test_the_script_uses_nothing_that_kubernetes_expands():
    script = load_template(Backend.K8S)["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    assert "$(" not in script
    assert "$$" not in script


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.k8s.yaml")), ids=lambda path: path.name)
def test_kubectl_reads_what_was_rendered(path):
    """kubectl's own YAML parser; `--local` asks no cluster."""
    command = ["kubectl", "label", "--local", "-f", str(path), "read-by=kubectl", "-o", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    decoder, text, read = json.JSONDecoder(), answer.stdout.strip(), []
    while text:
        tree, end = decoder.raw_decode(text)
        assert tree["metadata"]["labels"].pop("read-by") == "kubectl"
        read.append(tree)
        text = text[end:].strip()
    assert read == list(yaml.safe_load_all(path.read_text()))
