"""The disk under the runs directory: full, too small, read-only, not a folder."""

import contextlib
import json
import os
import signal
import subprocess

import pytest

from orchestrate.receipts.verify import verify_run

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


@contextlib.contextmanager
def mounted(folder, *options):
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this machine does not let us mount: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@needs_root
def test_a_disk_that_fills_up_ends_the_run_with_a_whole_chain_of_receipts(bed):
    with mounted(bed.folder / "small", "-t", "tmpfs", "-o", "size=8m", "none"):
        run = bed.launch("--behaviour", "fill-disk", name="small")
        answer, code = run.answer()
        assert (answer["verdict"], code) == ("infrastructure", 5), run.err.read_text()
        assert "disk-full" in answer["reason"]
        assert answer["teardown"]["confirmed"]
        assert not run.leftovers()
        verification = verify_run(run.path, expect_closure=answer["closure_sha256"])
        assert verification.holds, verification.problems


@needs_root
def test_a_disk_that_is_full_when_the_launcher_is_killed_does_not_keep_the_warden_from_closing(bed):
    with mounted(bed.folder / "small", "-t", "tmpfs", "-o", "size=8m", "none"):
        run = bed.launch("--hold-at", "submitted", name="small")
        run.wait_for("submitted")
        fill(run.path / "evidence-of-others")
        run.process.send_signal(signal.SIGKILL)
        run.process.wait()
        closure = run.gone()
        assert (closure["verdict"], closure["reason"]) == ("cancelled", "launcher-lost")
        assert closure["teardown"]["confirmed"]


@needs_root
def test_a_disk_without_room_for_the_last_records_is_refused(bed):
    with mounted(bed.folder / "tiny", "-t", "tmpfs", "-o", "size=1m", "none") as folder:
        answer, code = bed.launch(name="tiny").answer()
        assert (answer["error"]["code"], code) == ("runs-dir", 78)
        assert list(folder.iterdir()) == []
        assert list(bed.temp.iterdir()) == []


@needs_root
def test_a_read_only_runs_directory_is_refused_before_anything_is_made(bed):
    folder = bed.folder / "readonly"
    folder.mkdir()
    with mounted(folder, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        code, out, err = bed.command("launch", "--runs-dir", str(folder), "--json")
    answer = json.loads(out)
    assert (code, answer["verdict"], answer["error"]["code"]) == (78, "unsatisfiable", "runs-dir")
    assert "remedy: " in err
    assert list(bed.temp.iterdir()) == []


def test_a_file_in_place_of_the_runs_directory_is_refused(bed):
    place = bed.folder / "a-file"
    place.write_text("not a folder")
    for runs_dir in (place, place / "below"):
        code, out, err = bed.command("launch", "--runs-dir", str(runs_dir), "--json")
        answer = json.loads(out)
        assert (code, answer["verdict"], answer["error"]["code"]) == (78, "unsatisfiable", "runs-dir"), err
    assert place.read_text() == "not a folder"
    assert list(bed.temp.iterdir()) == []


def fill(path):
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"x" * 4096)
