from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def rank_facts(tmp_path_factory):
    """What each of four gloo ranks found, by rank; see `ranks.py`."""
    folder = tmp_path_factory.mktemp("ranks")
    program = Path(__file__).with_name("ranks.py")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    outputs = [folder / f"rank{rank}.json" for rank in range(4)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", program, str(rank), folder / "store", output],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, output in enumerate(outputs)
    ]
    try:
        told = [rank.communicate(timeout=540)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    failed = [text for rank, text in zip(ranks, told, strict=True) if rank.returncode]
    assert not failed, "\n".join(failed)
    return [json.loads(output.read_text()) for output in outputs]
