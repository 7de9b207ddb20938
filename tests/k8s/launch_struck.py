"""`orchestrate launch --backend k8s` in a process that strikes at an exact record of its journal.

    python launch_struck.py RUNS_DIR NAMESPACE IMAGE [--strike-before N] [--strike-after N] [--with-warden]

It kills itself before or after the Nth record; `--with-warden` takes the warden along, so that nothing of the run is
left on this machine.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import orchestrate
from orchestrate.cells.cell_set import select
from orchestrate.cells.manifest import load_manifest
from orchestrate.commands.launch import exit_code_of, launched_as_json
from orchestrate.errors import OrchestrateError
from orchestrate.lifecycle.corpora import corpora_of
from orchestrate.lifecycle.launching import Launch, Place
from orchestrate.lifecycle.payload import CellsPayload
from orchestrate.report.console import ConsoleProgress


class Striker:
    def __init__(self, options):
        self.options = options
        self.count = 0
        self.warden = None

    def recording(self, kind, facts):
        if self.options.strike_before == self.count + 1:
            self.strike()

    def recorded(self, record):
        self.count += 1
        if record.kind == "warden-started":
            self.warden = record.facts["pid"]
        if self.options.strike_after == self.count:
            self.strike()

    def strike(self):
        if self.options.with_warden and self.warden is not None:
            os.kill(self.warden, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("runs_dir", type=Path)
    parser.add_argument("namespace")
    parser.add_argument("image")
    parser.add_argument("--strike-before", type=int)
    parser.add_argument("--strike-after", type=int)
    parser.add_argument("--with-warden", action="store_true")
    options = parser.parse_args()
    packages = Path(orchestrate.__file__).parents[1]
    selection = select("smoke", None, {})
    try:
        launched = Launch(
            runs=CellsPayload(selection, load_manifest(), 2, "fixed", corpora_of(selection.cells, None)),
            deadline_s=900.0,
            owner="tester@bed",
            place=Place(
                runs_dir=options.runs_dir,
                temp_base=Path(tempfile.gettempdir()),
                home=Path.home(),
                harness=packages / "harness",
                build_record=packages / "none",
                environ=dict(os.environ),
            ),
            narrator=ConsoleProgress(sys.stderr),
            observer=Striker(options),
            backend="k8s",
            settings={
                "accelerators": "H200:4", "image": options.image, "namespace": options.namespace,
                "provision_timeout_s": 20,
            },
        ).start()  # fmt: skip
    except OrchestrateError as error:
        print(json.dumps({"error": error.as_json(), "exit_code": error.exit_code}))
        return error.exit_code
    print(json.dumps(launched_as_json(launched, len(selection.cells))))
    return 130 if launched.closed is None else exit_code_of(launched.closed)


if __name__ == "__main__":
    sys.exit(main())
