"""Stands for the harness on the node: does what the file `behaviour` beside it says, and needs no torch.

`python -m harness node --procs N --evidence DIR`; behaviours: `exit CODE`, `sleep SECONDS`, each on a line.
"""

import json
import pathlib
import sys
import time

evidence = pathlib.Path(sys.argv[sys.argv.index("--evidence") + 1])
evidence.mkdir(parents=True, exist_ok=True)


def tell(event):
    with (evidence / "node.jsonl").open("a") as stream:
        stream.write(json.dumps({"event": event, "at": "2026-01-01T00:00:00.000Z"}) + "\n")


print("the stand-in has begun", flush=True)
tell("node-started")
for line in (pathlib.Path(__file__).parent / "behaviour").read_text().splitlines():
    word, value = line.split()
    if word == "sleep":
        time.sleep(float(value))
    elif word == "exit":
        tell("node-ended")
        sys.exit(int(value))
