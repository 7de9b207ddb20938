"""`orchestrate launch` with a stand-in payload, in a process that strikes, or holds still, at an exact record.

    python launch_stand_in.py RUNS_DIR HARNESS [--behaviour B] [--hold-at KIND[:STAGE]] [--strike-before N] ...

`--hold-at` waits after that record until the file RUNS_DIR/go exists; signals act meanwhile. `--strike-before N` and
`--strike-after N` kill this very process before or after the Nth record of the journal.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from orchestrate.backends.local import LocalBackend
from orchestrate.cells.cell_set import select
from orchestrate.cells.manifest import load_manifest
from orchestrate.commands.launch import exit_code_of, launched_as_json
from orchestrate.errors import BackendError, OrchestrateError
from orchestrate.lifecycle.corpora import corpora_of
from orchestrate.lifecycle.launching import Launch, Place
from orchestrate.lifecycle.payload import CellsPayload
from orchestrate.lifecycle.resuming import Resume
from orchestrate.lifecycle.run_directory import find_run
from orchestrate.report.console import ConsoleProgress


class Striker:
    def __init__(self, options):
        self.options = options
        self.count = 0
        self.held = False

    def recording(self, kind, facts):
        if self.options.strike_before == self.count + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def recorded(self, record):
        self.count += 1
        if self.options.strike_after == self.count:
            os.kill(os.getpid(), signal.SIGKILL)
        name = f"{record.kind}:{record.facts['stage']}" if "stage" in record.facts else record.kind
        if name == self.options.hold_at and not self.held:
            self.held = True
            while not (self.options.runs_dir / "go").exists():
                time.sleep(0.02)


def fail(call, how):
    """The first call of this name to the local backend fails: before it acts, after it has acted, or by time-out."""
    real = getattr(LocalBackend, call)
    failed = []

    def failing(self, *arguments, **named):
        if failed:
            return real(self, *arguments, **named)
        failed.append(call)
        if how == "after":
            real(self, *arguments, **named)
        if how == "time-out":
            time.sleep(1.0)  # what a caller sees of a call that never answers: that it took too long
        raise BackendError(f"{call} failed {how}, as the test asked for", remedy="none")

    setattr(LocalBackend, call, failing)


def start(options, common):
    if options.resume:
        return Resume(run=find_run(options.runs_dir, options.resume), **common)
    smoke = select("smoke", None, {})
    return Launch(
        runs=CellsPayload(smoke, load_manifest(), 2, "fixed", corpora_of(smoke.cells, None)),
        owner="tester@bed",
        backend=options.backend,
        settings={} if options.backend == "local" else {"accelerators": "H200:4"},
        places=tuple({"namespace": name} for name in options.namespaces or ()) or ({},),
        **common,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("runs_dir", type=Path)
    parser.add_argument("harness", type=Path)
    parser.add_argument("--behaviour", default="hold")
    parser.add_argument("--hold-at")
    parser.add_argument("--strike-before", type=int)
    parser.add_argument("--strike-after", type=int)
    parser.add_argument("--deadline", type=float, default=120.0)
    parser.add_argument("--reserve", type=float, default=20.0)
    parser.add_argument("--temp", type=Path, required=True)
    parser.add_argument("--backend", default="local")
    parser.add_argument("--namespaces", nargs="+")
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("--first-pause", type=float, default=0.2)
    parser.add_argument("--resume")
    parser.add_argument("--fail", nargs=2, metavar=("CALL", "HOW"))
    options = parser.parse_args()
    if options.fail:
        fail(*options.fail)
    common = {
        "place": Place(
            runs_dir=options.runs_dir,
            temp_base=options.temp,
            home=Path.home(),
            harness=options.harness,
            build_record=options.harness / "none",
            environ=dict(os.environ),
        ),
        "narrator": ConsoleProgress(sys.stderr),
        "payload": (
            sys.executable,
            "-S",
            str(Path(__file__).with_name("stand_in.py")),
            "--behaviour",
            options.behaviour,
        ),
        "observer": Striker(options),
        "deadline_s": options.deadline,
        "reserve_s": options.reserve,
        "wait_s": options.wait,
        "first_pause_s": options.first_pause,
    }
    try:
        launched = start(options, common).start()
    except OrchestrateError as error:
        print(json.dumps({"error": error.as_json()}))
        return error.exit_code
    print(json.dumps(launched_as_json(launched, len(select("smoke", None, {}).cells))))
    return 130 if launched.closed is None else exit_code_of(launched.closed)


if __name__ == "__main__":
    sys.exit(main())
