"""`orchestrate --help` beside `python -c "import click"` (bar: 1.5x) and beside `sky --help` (bar: 15x faster)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from paired import ratio

PROGRAMS = Path(sys.executable).parent
HELP = [str(PROGRAMS / "orchestrate"), "--help"]


def main() -> None:
    ours, peer, times = ratio(HELP, [sys.executable, "-c", "import click"], rounds=20)
    print(f"orchestrate --help {ours:.3f} s, import click {peer:.3f} s, ratio {times:.2f} (bar: at most 1.5)")
    sky = shutil.which("sky", path=str(PROGRAMS))
    if sky is None:
        print("sky --help: not measured, SkyPilot is not installed")
        return
    peer, ours, times = ratio([sky, "--help"], HELP, rounds=5)
    print(f"sky --help {peer:.3f} s, orchestrate --help {ours:.3f} s, ratio {times:.1f} (bar: at least 15)")


if __name__ == "__main__":
    main()
