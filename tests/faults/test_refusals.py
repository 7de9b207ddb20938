"""What can not run is told as exactly that: before anything starts, with the remedy, in one JSON object."""

import hashlib
import json
import shutil

import pytest

from orchestrate.receipts.verify import verify_run

KEYS = {
    "run_id", "verdict", "test_verdict", "exit_code", "run_dir", "closure_sha256", "device", "cells", "teardown",
}  # fmt: skip
no_gpus = pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has NVIDIA GPUs")


def launch(bed, *arguments):
    runs_dir = bed.folder / "runs"
    code, out, err = bed.command("launch", "--runs-dir", str(runs_dir), "--json", *arguments)
    return code, json.loads(out), err, runs_dir


@no_gpus
@pytest.mark.parametrize("arguments", [["--cell-set", "main"], ["--cell-set", "single"]])
def test_an_h200_set_on_a_machine_without_h200s_is_unsatisfiable_and_starts_nothing(bed, arguments):
    code, answer, err, _ = launch(bed, *arguments)
    assert (code, answer["verdict"], answer["test_verdict"]) == (78, "unsatisfiable", "unsatisfiable")
    assert set(answer) >= KEYS
    assert answer["device"] == "none"
    assert answer["teardown"] == {"confirmed": True, "remaining": []}
    assert answer["cells"]["complete"] == 0 < answer["cells"]["expected"]
    assert "this machine has no NVIDIA GPU" in answer["reason"]
    assert "remedy: `--backend sky|k8s` asks where such GPUs are; `orchestrate launch` has cell sets for cpu" in err
    assert list(bed.temp.iterdir()) == []
    verification = verify_run(bed.folder / "runs" / answer["run_id"], expect_closure=answer["closure_sha256"])
    assert verification.holds, verification.problems


def test_a_deadline_without_room_is_not_run_and_leaves_no_trace(bed):
    code, answer, err, runs_dir = launch(bed, "--deadline", "20s")
    assert (code, answer["verdict"], answer["run_id"]) == (76, "not-run", None)
    assert set(answer) >= KEYS
    assert "give --deadline at least 30s" in err
    assert not runs_dir.exists()


def test_more_gpu_hours_than_allowed_are_refused(bed):
    code, answer, _, runs_dir = launch(bed, "--cell-set", "main", "--deadline", "2h", "--max-gpu-hours", "7.5")
    assert (code, answer["verdict"]) == (78, "unsatisfiable")
    assert "may take 8 GPU hours" in answer["reason"]
    assert not runs_dir.exists()


def test_a_set_that_does_not_exist_is_a_usage_error(bed):
    code, answer, err, _ = launch(bed, "--cell-set", "nothing")
    assert (code, answer["error"]["code"]) == (2, "selection")
    assert "smoke" in err


def test_a_corpus_with_another_digest_is_refused_and_its_content_is_not_told(bed):
    corpus = bed.folder / "secret-tokens.json"
    corpus.write_text("SECRET")
    pinned = hashlib.sha256(b"another").hexdigest()
    code, answer, err, _ = launch(bed, "--cell-set", "ellavox", "--corpus", str(corpus), "--corpus-sha256", pinned)
    assert code == 2
    assert pinned in answer["error"]["cause"]
    assert "SECRET" not in err
    code, answer, _, _ = launch(bed, "--cell-set", "ellavox", "--corpus", str(corpus))
    assert code == 2


def test_doctor_says_what_can_run_and_what_is_missing(bed):
    code, out, _ = bed.command("doctor", "--runs-dir", str(bed.folder / "runs"), "--json")
    answer = json.loads(out)
    assert (code, answer["ok"]) == (0, True)
    sets = {entry["name"]: entry for entry in answer["cell_sets"]}
    assert sets["smoke"]["runs_here"]
    if shutil.which("nvidia-smi") is None:
        assert not sets["main"]["runs_here"]
        assert "4x H200" in sets["main"]["why"]
    assert not (bed.folder / "runs").exists()
    (bed.folder / "file").write_text("")
    code, out, _ = bed.command("doctor", "--runs-dir", str(bed.folder / "file"), "--json")
    assert (code, json.loads(out)["ok"]) == (78, False)
