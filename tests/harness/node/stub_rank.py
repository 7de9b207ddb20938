"""A rank without torch that does what a test tells it: `stub_rank.py BEHAVIOUR ... --evidence FILE ...`."""

import os
import signal
import sys
import time
from pathlib import Path

from harness.evidence import EvidenceFile
from harness.processes import die_with_parent
from harness.trace.watchdog import Heart, Phase, answer_with_stacks

FOREVER_S = 600


def rank_that_waits_for_ever():
    time.sleep(FOREVER_S)


def main():
    behaviour, directory = sys.argv[1], Path(sys.argv[sys.argv.index("--evidence") + 1]).parent
    rank = int(os.environ["RANK"])
    die_with_parent()
    answer_with_stacks(directory / "stacks", rank)
    heart = Heart(directory / "trace", rank)
    heart.beat(Phase.LOAD)
    evidence = EvidenceFile(directory / "rows.jsonl") if rank == 0 else None
    heart.beat(Phase.MEASURE, candidate="no_sharing", round_index=0, rounds=2)
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour in {"wait", "stubborn"}:
        while True:  # lively: only an end from outside ends it
            heart.beat(Phase.MEASURE)
            time.sleep(0.1)
    if behaviour == "hang" and rank == 1:
        rank_that_waits_for_ever()
    if behaviour == "hang":
        time.sleep(FOREVER_S)
    if behaviour == "exit-7" and rank == 1:
        sys.exit(7)
    if behaviour == "segfault" and rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    outcome = "unsettled" if behaviour == "unsettled" else "complete"
    if behaviour in {"exit-7", "segfault"}:
        time.sleep(FOREVER_S)
    if behaviour == "meet":  # ends only when its neighbour has begun
        deadline = time.monotonic() + 60
        while len(list(directory.parent.glob("*/trace/rank0.beat"))) < 2:
            if time.monotonic() > deadline:
                sys.exit(9)
            time.sleep(0.02)
    if evidence is not None:
        evidence.write("end", outcome=outcome, rows=0, reason="as told")
        evidence.close()
    heart.beat(Phase.DONE)
    sys.exit(4 if behaviour == "unsettled" else 0)


main()
