"""A qualification as a Job and as a task: what travels, by which digest, and what is too large to."""

import base64
import gzip
import hashlib
import io
import json
import os
import tarfile
from dataclasses import replace

import pytest

from orchestrate.errors import UsageError
from orchestrate.render import Accelerators, Backend, HarnessArchive, RenderRequest, qualification, render
from orchestrate.render.archive import CHUNK_BYTES
from orchestrate.render.qualification import MAX_SOURCE_BYTES, MAX_SOURCE_CHUNKS, QualificationFiles

HARNESS = HarnessArchive(gz=b"a harness", sha256="1" * 64)


@pytest.fixture
def files(tmp_path):
    def make(data=b"print(1)", *, claim=None, command="true"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            info = tarfile.TarInfo("a.py")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        (tmp_path / "source.tar").write_bytes(buffer.getvalue())
        sha256 = hashlib.sha256(buffer.getvalue()).hexdigest()
        groups = {"archive_sha256": sha256, "groups": [{"name": "unit", "command": [command]}]}
        (tmp_path / "groups.json").write_text(json.dumps(groups))
        return QualificationFiles(tmp_path / "groups.json", tmp_path / "source.tar", claim)

    return make


def rendered(backend, files, **fields):
    request = RenderRequest(
        run_id="r1",
        cell_set="demo",
        cells=("unit",),
        accelerators=Accelerators("none", 0),
        qualification=files,
        **fields,
    )
    return [document.tree for document in render(backend, request, archive=HARNESS).documents]


def variables(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def test_a_job_has_groups_and_source_in_config_maps_of_their_own_by_digest(files):
    made = files()
    job, harness, groups, source = rendered(Backend.K8S, made)
    assert "harness" in harness["metadata"]["name"]
    assert groups["data"]["groups.json"].encode() == made.groups.read_bytes()
    packed = base64.b64decode(source["binaryData"]["source.tar.gz.000"])
    assert gzip.decompress(packed) == made.archive.read_bytes()
    assert source["metadata"]["name"].endswith(f"-source-{made.archive_sha256[:12]}-0")
    assert source["metadata"]["labels"].items() <= job["metadata"]["labels"].items()
    env = variables(job)
    assert env["GROUPS_SHA256"] == made.groups_sha256
    assert env["SOURCE_BYTES"] == str(made.archive.stat().st_size)
    assert not {"CELL_SET", "REPEAT", "SOURCE_FILE"} & env.keys()
    volumes = {volume["name"]: volume for volume in job["spec"]["template"]["spec"]["volumes"]}
    mounted = [each["configMap"]["name"] for each in volumes["source"]["projected"]["sources"]]
    assert mounted == [groups["metadata"]["name"], source["metadata"]["name"]]


def test_a_source_on_a_claim_does_not_travel_and_is_named_by_its_digest(files):
    made = files(os.urandom(2 * CHUNK_BYTES), claim="pvc:sources/of/us")
    job, *maps = rendered(Backend.K8S, made)
    assert [name for tree in maps for name in (tree.get("binaryData") or {})] == ["harness.tar.gz.000"]
    assert variables(job)["SOURCE_FILE"] == f"/source-claim/of/us/{made.archive_sha256}.tar"
    (claim,) = [each for each in job["spec"]["template"]["spec"]["volumes"] if each["name"] == "source-claim"]
    assert claim["persistentVolumeClaim"] == {"claimName": "sources", "readOnly": True}


@pytest.mark.parametrize("claim", ["sources", "pvc:", "pvc:a/../b", "pvc:A", "pvc:a//b"])
def test_a_claim_that_is_none_is_refused(files, claim):
    with pytest.raises(UsageError, match="--source-claim"):
        rendered(Backend.K8S, files(claim=claim))


def test_a_source_that_just_fits_travels_and_one_that_does_not_is_refused_with_bound_and_remedy(files, monkeypatch):
    assert MAX_SOURCE_BYTES == MAX_SOURCE_CHUNKS * CHUNK_BYTES
    most = 2 * CHUNK_BYTES  # the real bound would take seconds of compression
    monkeypatch.setattr(qualification, "MAX_SOURCE_BYTES", most)
    assert len(files(os.urandom(most - 100_000)).chunks()) == 2
    made = files(os.urandom(most))
    with pytest.raises(UsageError, match=f"more than {most} gzipped.*{MAX_SOURCE_CHUNKS} ConfigMaps") as said:
        made.chunks()
    assert f"{made.archive_sha256}.tar" in said.value.remedy
    assert "--source-claim pvc:CLAIM" in said.value.remedy
    assert replace(made, claim="pvc:a").chunks() == ()


def test_groups_that_fit_no_config_map_are_refused(files):
    with pytest.raises(UsageError, match="the groups of the qualification are"):
        rendered(Backend.K8S, files(command="x" * CHUNK_BYTES))


def test_a_task_mounts_both_files_and_names_their_digests(files):
    made = files()
    (task,) = rendered(Backend.SKY, made)
    mounts = {f"~/orchestrate-source/{path.name}": str(path) for path in (made.groups, made.archive)}
    assert task["file_mounts"] == mounts
    assert task["envs"]["GROUPS_SHA256"] == made.groups_sha256
    assert not {"CELL_SET", "REPEAT"} & task["envs"].keys()
