"""A copy of the evidence on a volume claim, which outlives the pod."""

import pytest
from k8s_bed import until

from orchestrate.backends.kubernetes_sink import reader_job
from orchestrate.render import check_manifest

CLAIMS = "/api/v1/namespaces/team/persistentvolumeclaims"


@pytest.fixture
def claim(site):
    site.send("POST", CLAIMS, {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "kept"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    })  # fmt: skip
    yield "pvc:kept/runs"
    site.send("DELETE", f"{CLAIMS}/kept")


def gone(site, backend):
    """Wait until the run's pod has ended without anybody having collected its evidence."""
    until(lambda: any(pod["status"]["phase"] == "Succeeded" for pod in site.get("/api/v1/namespaces/team/pods")), "end")
    return backend


def test_evidence_of_a_pod_that_nobody_collected_from_comes_from_the_claim(site, claim):
    backend, request = site.started("sys.exit(0)", sink=claim, collect_wait_s=2)
    gone(site, backend)
    heir = site.backend(ownership=backend._ownership, sink=claim, collect_wait_s=2)
    heir.recall(site.notes)
    heir.stop()
    assert heir.collect(request).problem is None
    files = sorted(path.name for path in request.evidence.rglob("*") if path.is_file())
    assert files == ["node.jsonl", "rows.jsonl"]
    heir.release()
    assert heir.census().is_clean
    assert site.left() == []


def test_without_a_claim_evidence_that_nobody_collected_is_said_to_be_lost(site):
    backend, request = site.started("sys.exit(0)", collect_wait_s=0)
    gone(site, backend)
    assert "before its evidence was taken" in backend.collect(request).problem


def test_a_copy_that_was_changed_on_the_claim_is_not_believed(site, bed, claim):
    backend, request = site.started("sys.exit(0)", sink=claim, collect_wait_s=2)
    gone(site, backend)
    from pathlib import Path

    folder = Path(bed.pull("claim-folder", namespace="team", name="kept"))
    (folder / "runs" / backend._ownership.run_id / "cells" / "rows.jsonl").write_text("better numbers\n")
    assert "what was sealed" in backend.collect(request).problem


def test_the_reader_holds_no_gpu_waits_in_no_queue_and_can_not_write(site):
    backend = site.backend(sink="pvc:kept/runs", queue="team-a", priority_class="low")
    reader = reader_job(backend._render(site.request()).job, "pvc:kept/runs")
    check_manifest(reader, "reader")
    pod = reader["spec"]["template"]["spec"]
    assert "nvidia.com/gpu" not in str(pod["containers"][0]["resources"])
    assert "kueue" not in str(reader["metadata"]["labels"])
    assert "suspend" not in reader["spec"]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "sink", "mountPath": "/sink", "readOnly": True}]
    assert reader["metadata"]["labels"]["orchestrate/token"] == backend._ownership.token
