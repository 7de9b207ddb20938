"""`trace diff` against torch's own analyser, on the same events, in turn (bars: 20x in our format, 1x on its pickles).

`python benchmarks/bench_trace_diff.py [RECORDS] [LARGE]`: RECORDS of each of four ranks (default 30,000) for the
comparison, LARGE (default 1,000,000) for time and memory in our format alone. Seconds are of processor, of the whole
command and of the comparison without the start of its interpreter (the command on a job of two events).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.trace.format import TraceWriter
from orchestrate.analysis.trace.export_flight_recorder import dumps_of
from orchestrate.analysis.trace.folder import open_job

WORLD = 4
CALLS = 200
ROUNDS = 3
TORCH = (sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace")
OURS = (sys.executable, "-m", "orchestrate", "trace", "diff")


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 30_000
    large = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        events = WORLD * records
        own, dumps = made(place / "own", records), made(place / "own-small", 2)
        small_own, small_dumps = dumps, exported(dumps, place / "dumps-small")
        dumps = exported(own, place / "dumps")
        rounds = [
            (
                net(OURS, own, small_own),
                net(OURS, dumps, small_dumps),
                net(TORCH, dumps, small_dumps),
            )
            for _ in range(ROUNDS)
        ]
        for name, at, bar in (("our format", 0, 20), ("its pickles", 1, 1)):
            whole = sorted(one[2][0] / one[at][0] for one in rounds)[ROUNDS // 2]
            without = sorted(one[2][1] / one[at][1] for one in rounds)[ROUNDS // 2]
            seconds = sorted(one[at][1] for one in rounds)[ROUNDS // 2]
            theirs = sorted(one[2][1] for one in rounds)[ROUNDS // 2]
            print(
                f"{name}: {1e6 * seconds / events:.2f} us an event, torchfrtrace {1e6 * theirs / events:.1f} us:"
                f" {without:.1f}x fewer (bar {bar}x); whole commands {whole:.1f}x ({events:,} events)"
            )
        big = made(place / "large", large)
        spent, peak = run((*OURS, str(big)))
        print(f"our format, {WORLD} x {large:,} records: {spent:.1f} s of CPU (bar 30 s), at most {peak >> 10} MiB")


def net(command: Sequence[str], folder: Path, small: Path) -> tuple[float, float]:
    """CPU seconds of the whole command, and of what it does beyond two events."""
    whole = run((*command, str(folder)))[0]
    return whole, max(whole - run((*command, str(small)))[0], 1e-9)


def run(command: Sequence[str]) -> tuple[float, int]:
    """(CPU seconds, peak KiB) of a command that has to succeed."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"error: {' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss


def made(folder: Path, records: int) -> Path:
    """Traces of four ranks that agree: reductions, gathers, uneven exchanges and barriers of 200 call sites."""
    for rank in range(WORLD):
        writer = TraceWriter(folder, rank, world_size=WORLD)
        group = writer.group("world", tuple(range(WORLD)))
        calls = [call(writer, rank, number) for number in range(CALLS)]
        contexts = [writer.context(f"layout {number}", "step") for number in range(6)]
        for place in range(records):
            forward = place // CALLS
            slot = writer.begin(
                group, calls[place % CALLS], sequence=place, start_ns=1000 + 100 * place,
                context=contexts[forward % 6], forward=forward,
            )  # fmt: skip
            writer.complete(slot, 1050 + 100 * place)
        writer.close()
    return folder


def call(writer: TraceWriter, rank: int, number: int) -> int:
    """One of four kinds of calls, of its own size and caller."""
    stack = writer.stack([("train.py", number, "step"), ("train.py", 10, "main")])
    size = 8 + number
    match number % 4:
        case 0:
            return writer.signature(
                op="all_reduce", input_sizes=[[size]], input_dtypes=["float32"], output_sizes=[[size]],
                output_dtypes=["float32"], reduce_op="sum", stack=stack,
            )  # fmt: skip
        case 1:
            return writer.signature(
                op="all_gather_single", input_sizes=[[size]], input_dtypes=["float32"],
                output_sizes=[[size * WORLD]], output_dtypes=["float32"], stack=stack,
            )  # fmt: skip
        case 2:
            matrix = [[(7 * a + 3 * b + number) % 50 for b in range(WORLD)] for a in range(WORLD)]
            send, receive = matrix[rank], [row[rank] for row in matrix]
            return writer.signature(
                op="all_to_all_single", input_sizes=[[sum(send), 64]], input_dtypes=["bfloat16"],
                output_sizes=[[sum(receive), 64]], output_dtypes=["bfloat16"], send_splits=send, recv_splits=receive,
                stack=stack,
            )  # fmt: skip
        case _:
            return writer.signature(op="barrier", stack=stack)


def exported(source: Path, target: Path) -> Path:
    """The same events as flight recorder pickles, without what only our export has in them."""
    target.mkdir()
    for rank, dump in dumps_of(open_job(source)):
        for entry in dump["entries"]:
            del entry["orchestrate"]
        (target / f"fr_trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return target


main()
