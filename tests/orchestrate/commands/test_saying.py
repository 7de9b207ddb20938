"""What nobody can read any more does not change what a command answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REFUSED = ("launch", "--cell-set", "main", "--max-gpu-hours", "0")


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_refused_launch_keeps_its_exit_code_without_readers(tmp_path, flags):
    command = [sys.executable, "-m", "orchestrate", *REFUSED, "--runs-dir", str(tmp_path), *flags]
    heard = subprocess.run(command, capture_output=True, check=False, text=True)
    assert heard.returncode in (75, 76, 78), heard.stderr
    assert "remedy: " in heard.stderr
    assert "use --backend" not in heard.stderr
    reading, closed = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("wb") as full:
        for out, err in ((closed, closed), (full, full)):
            assert subprocess.run(command, stdout=out, stderr=err, check=False).returncode == heard.returncode
    os.close(closed)
