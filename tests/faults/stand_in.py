"""A payload that has the process family, the files and the manners of the node, without PyTorch.

    node (session 1) -> torchrun (session 2) -> four ranks (sessions 3 to 6)

Each rank listens on a port and has a file in shared memory. `--behaviour` is what goes wrong. Unlike the real node it
cleans up nothing when it is told to end: whatever is gone afterwards, the product removed.
"""

import argparse
import hashlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

RANKS = 4


def now():
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def slug(key):
    return re.sub(r"[^A-Za-z0-9.]+", "-", key) + "-" + hashlib.sha256(key.encode()).hexdigest()[:8]


def rank(behaviour, index):
    if behaviour == "deaf":
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
    if behaviour == "fail" and index == 2:
        sys.exit(7)
    if behaviour == "escape" and index == 1:
        daemonize_without_a_trace()
    if behaviour == "storm" and index == 0:
        storm()
    listener = socket.create_server(("127.0.0.1", 0))
    shared = Path(f"/dev/shm/stand_in_{os.getpid()}").open("w")  # noqa: SIM115  # open as long as the rank lives
    shared.write(os.environ["ORCHESTRATE_RUN_ID"])
    shared.flush()
    if behaviour == "lend" and index == 0:
        with socket.socket(socket.AF_UNIX) as borrower:
            borrower.connect(str(Path(os.environ["TMPDIR"]).parent / "lend.sock"))
            socket.send_fds(borrower, [b"!"], [listener.fileno()])
    Path(os.environ["TMPDIR"], f"rank{index}.up").touch()
    while True:
        time.sleep(60)
    listener.close()
    shared.close()


def daemonize_without_a_trace():
    """A grandchild in a session of its own, orphaned, with nothing in its environment."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)"], {})
        os._exit(0)
    os.wait()


def storm():
    """Children that fork their successor and end, so that no reading of the process table shows all of them."""
    while True:
        if os.fork() == 0:
            os.setsid()
            time.sleep(0.03)
        else:
            time.sleep(0.01)
            os._exit(0)


def torchrun(behaviour):
    ranks = [spawn(behaviour, "rank", str(index)) for index in range(RANKS)]
    while True:
        for process in ranks:
            if process.poll() is not None:
                for other in ranks:
                    other.kill()
                    other.wait()
                if behaviour == "storm":
                    continue
                sys.exit(3 if process.returncode < 0 else 1)
        time.sleep(0.02)


def spawn(behaviour, *role, **more):
    command = [sys.executable, "-S", __file__, "--behaviour", behaviour, "--role", *role]
    return subprocess.Popen(command, start_new_session=True, **more)


def node(behaviour, evidence, lifeline):
    run_dir = Path(os.environ["ORCHESTRATE_RUN_DIR"])
    plan = json.loads((run_dir / "plan.json").read_bytes())
    evidence.mkdir(exist_ok=True)
    (evidence / "preflight.json").write_text(json.dumps({"schema": "harness.preflight/1", "device": "cpu"}))
    tell(evidence, event="node-started")
    keys = os.environ.get("CELL_KEYS", "").split() or plan["cells"]
    first = keys[0]
    tell(evidence, event="cell-started", cell=first, phase="load")
    family = spawn(behaviour, "torchrun")
    temp = Path(os.environ["TMPDIR"])
    watched = [] if lifeline is None or behaviour == "deaf" else [lifeline]
    while family.poll() is None:
        readable, _, _ = select.select(watched, [], [], 0.02)
        if readable:
            sys.exit(9)  # the others are left behind on purpose
        if all((temp / f"rank{index}.up").exists() for index in range(RANKS)) and not (temp / "all.up").exists():
            (temp / "all.up").touch()
            tell(evidence, event="progress", cell=first, phase="measure", round=1, rounds=2)
        if behaviour == "fill-disk":
            fill(evidence)
        if behaviour == "complete" and (temp / "all.up").exists():
            os.killpg(family.pid, signal.SIGKILL)
            family.wait()
            for key in keys:
                write_rows(evidence, plan, key)
            finish(evidence, plan, dict.fromkeys(keys, "complete"), 0)
        if behaviour == "half" and (temp / "all.up").exists():
            os.killpg(family.pid, signal.SIGKILL)
            family.wait()
            done, lost = keys[: len(keys) // 2], keys[len(keys) // 2 :]
            for key in done:
                write_rows(evidence, plan, key)
            finish(evidence, plan, {**dict.fromkeys(done, "complete"), **dict.fromkeys(lost, "infrastructure")}, 5)
        if behaviour == "hang" and (temp / "all.up").exists():
            os.killpg(family.pid, signal.SIGKILL)
            family.wait()
            write_traces(evidence / "cells" / slug(first) / "trace")
            finish(evidence, plan, {first: "hung"}, 3)
    code = family.returncode
    status = "failed" if code == 1 else "infrastructure"
    finish(evidence, plan, {first: status}, 1 if code == 1 else 5)


def fill(evidence):
    with (evidence / "filler").open("ab") as stream:
        try:
            while True:
                stream.write(b"x" * 65536)
                stream.flush()
        except OSError:
            return


def write_traces(folder):
    """Rank 2 is one reduction behind the others, which wait for it."""
    from harness.trace.format import TraceWriter

    for index in range(RANKS):
        writer = TraceWriter(folder, index, world_size=RANKS, chunk_slots=256)
        group = writer.group("world", range(RANKS))
        for sequence in range(3 if index == 2 else 4):
            call = writer.signature(op="all_reduce", input_sizes=[[8 + sequence]], input_dtypes=["float32"])
            record = writer.begin(group, call, sequence=sequence, start_ns=1000 + sequence)
            if sequence < 3:
                writer.complete(record, 1500 + sequence)


def write_rows(evidence, plan, key):
    folder = evidence / "cells" / slug(key)
    folder.mkdir(parents=True)
    tp, cp = (int(re.search(rf"\|{name}(\d+)", key)[1]) for name in ("tp", "cp"))
    world = tp * cp
    labels = plan["candidates"][key]
    group = re.search(r"\|g(\d+)", key)
    rows = [
        {
            "row": "cell", "run_id": plan["run_id"], "cell": key, "repeat": plan["repeat"],
            "shape": {"tp": tp, "cp": cp, "ep": 1, "world": world}, "device": {"kind": "cpu", "name": "stand-in"},
            "candidates": [{"label": label} for label in labels], "equal": {}, "automatic": {"label": labels[0]},
            "workload": {"name": key.split("|")[0], "group": group and int(group[1])},
            "model": {"name": key.split("|")[1], "layers": int(re.search(r"\|L(\d+)", key)[1])},
        }
    ]  # fmt: skip
    rows += [{"row": "warmup", "candidate": label, "role": "candidate", "index": 0} for label in labels]
    for turn in range(plan["repeat"]):
        for role, label in [("candidate", label) for label in labels] + [("automatic", labels[0])]:
            rows.append({
                "row": "measure", "role": role, "candidate": label, "round": turn, "elapsed_ms": 1.5,
                "per_rank_ms": [1.5] * world, "compile": ["none"] * world, "admitted": True, "unsplit": True,
                "layout_live": True,
            })  # fmt: skip
    rows.append({"row": "end", "outcome": "complete", "rows": len(rows)})
    with (folder / "rows.jsonl").open("w") as stream:
        for row in rows:
            stream.write(json.dumps({"schema": "harness.evidence/1", "at": now(), **row}) + "\n")


def finish(evidence, plan, statuses, code):
    for key, status in statuses.items():
        tell(evidence, event="cell-ended", cell=key, status=status)
    cells = [{"key": key, "status": status, "ran_with": []} for key, status in statuses.items()]
    document = {
        "schema": "harness.node/1", "run_id": plan["run_id"], "exit_code": code, "cells": cells,
        "sources": {"start": sources(plan), "end": sources(plan)},
    }  # fmt: skip
    (evidence / "node.json").write_text(json.dumps(document))
    tell(evidence, event="node-ended")
    sys.exit(code)


def sources(plan):
    pins = {name: pin for name, pin in plan["source"]["pins"].items() if name.endswith((".py", ".json", ".txt"))}
    return hashlib.sha256(json.dumps(pins, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def tell(evidence, **event):
    with (evidence / "node.jsonl").open("a") as stream:
        stream.write(json.dumps({"at": now(), **event}) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--behaviour", default="hold")
    parser.add_argument("--role", nargs="*", default=["node"])
    parser.add_argument("--evidence", type=Path)
    parser.add_argument("--lifeline-fd", type=int)
    options = parser.parse_args()
    match options.role:
        case ["rank", index]:
            rank(options.behaviour, int(index))
        case ["torchrun"]:
            torchrun(options.behaviour)
        case _:
            node(options.behaviour, options.evidence, options.lifeline_fd)


if __name__ == "__main__":
    main()
