"""The node's entry point without PyTorch: it takes the place of `harness/node.py` in a copy of the packages.

It writes what the node writes, in a fraction of a second. What goes on is chosen by `behaviour.txt` beside this
file, which travels with the harness: `complete`, `hold` until told to end, `fail`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import cells
from harness.node_run import source_digest

HERE = Path(__file__).parent
ENDED_BY_SIGNAL = 130


def main(argv: Sequence[str]) -> int:
    """`python -m harness node`, as the Job's script calls it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--evidence", type=Path, required=True)
    parser.add_argument("--procs", type=int, default=4)
    options = parser.parse_args(argv)
    node = Node(options.evidence, cells.resolve(None, None, os.environ).cells, os.environ["RUN_ID"])
    return node.run((HERE / "behaviour.txt").read_text().strip(), int(os.environ["REPEAT"]))


class Node:
    """One run."""

    def __init__(self, evidence: Path, selected: Sequence[Any], run_id: str) -> None:
        self.evidence = evidence
        self.selected = selected
        self.run_id = run_id
        sets = json.loads((HERE / "sets" / "manifest.json").read_text())["sets"]
        self.candidates = {cell["key"]: cell["candidates"] for each in sets.values() for cell in each["cells"]}

    def run(self, behaviour: str, repeat: int) -> int:
        self.evidence.mkdir(exist_ok=True)
        facts = {"schema": "harness.preflight/1", "device": "cpu", "problems": [], "fingerprint": "0" * 64}
        (self.evidence / "preflight.json").write_text(json.dumps(facts))
        keys = [cell.key for cell in self.selected]
        self.tell(event="node-started", cells=keys)
        self.tell(event="cell-started", cell=keys[0], phase="load")
        if behaviour == "hold":
            return self.hold(keys)
        if behaviour == "fail":
            return self.finish({keys[0]: "failed"}, 1)
        for cell in self.selected:
            self.write_rows(cell, repeat)
        return self.finish(dict.fromkeys(keys, "complete"), 0)

    def hold(self, keys: Sequence[str]) -> int:
        stopped: list[int] = []
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda number, _: stopped.append(number))
        self.tell(event="progress", cell=keys[0], phase="measure", round=1, rounds=2)
        beat = time.monotonic()
        while not stopped:
            time.sleep(0.1)
            if time.monotonic() - beat > 5:
                beat = time.monotonic()
                self.tell(event="progress", cell=keys[0], phase="measure", round=1, rounds=2)
        return self.finish(dict.fromkeys(keys, "cancelled"), ENDED_BY_SIGNAL, stopped="SIGTERM")

    def write_rows(self, cell: Any, repeat: int) -> None:
        key = cell.key
        folder = self.evidence / "cells" / cells.slug(key)
        folder.mkdir(parents=True)
        tp, cp = (int(found[1]) for name in ("tp", "cp") if (found := re.search(rf"\|{name}(\d+)", key)))
        group, layers = re.search(r"\|g(\d+)", key), re.search(r"\|L(\d+)", key)
        labels = self.candidates[key]
        world = tp * cp
        rows: list[dict[str, Any]] = [{
            "row": "cell", "run_id": self.run_id, "cell": key, "repeat": repeat,
            "shape": {"tp": tp, "cp": cp, "ep": 1, "world": world}, "device": {"kind": "cpu", "name": "stand-in"},
            "candidates": [{"label": label} for label in labels], "equal": {}, "automatic": {"label": labels[0]},
            "workload": {"name": key.split("|")[0], "group": int(group[1]) if group else None},
            "model": {"name": key.split("|")[1], "layers": int(layers[1]) if layers else None},
        }]  # fmt: skip
        rows += [{"row": "warmup", "candidate": label, "role": "candidate", "index": 0} for label in labels]
        for turn in range(repeat):
            for role, label in [("candidate", label) for label in labels] + [("automatic", labels[0])]:
                rows.append({
                    "row": "measure", "role": role, "candidate": label, "round": turn, "elapsed_ms": 1.5,
                    "per_rank_ms": [1.5] * world, "compile": ["none"] * world, "admitted": True, "unsplit": True,
                    "layout_live": True,
                })  # fmt: skip
        rows.append({"row": "end", "outcome": "complete", "rows": len(rows)})
        lines = [json.dumps({"schema": "harness.evidence/1", "at": now(), **row}) + "\n" for row in rows]
        (folder / "rows.jsonl").write_text("".join(lines))

    def finish(self, statuses: dict[str, str], code: int, stopped: str | None = None) -> int:
        for key, status in statuses.items():
            self.tell(event="cell-ended", cell=key, status=status)
        document = {
            "schema": "harness.node/1", "run_id": self.run_id, "exit_code": code, "stopped": stopped,
            "cells": [{"key": key, "status": status, "ran_with": []} for key, status in statuses.items()],
            "sources": {"start": source_digest(), "end": source_digest()},
        }  # fmt: skip
        (self.evidence / "node.json").write_text(json.dumps(document))
        self.tell(event="node-ended")
        return code

    def tell(self, **event: Any) -> None:
        with (self.evidence / "node.jsonl").open("a") as stream:
            stream.write(json.dumps({"at": now(), **event}) + "\n")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
