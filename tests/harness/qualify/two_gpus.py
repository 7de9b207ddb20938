"""A node that has two GPUs as far as its preflight says: `python two_gpus.py SOURCE EVIDENCE`."""

import os
import sys
from pathlib import Path

from harness.group_run import Group, GroupRun, QualifyJob
from harness.preflight import Preflight

source, evidence = map(Path, sys.argv[1:])
groups = [Group(name, ("true",), {}, 60.0, (), "exit-code", gpus=gpus) for name, gpus in {"two": 2, "four": 4}.items()]
job = QualifyJob("test", "self", "h200", 2, source, "0" * 64, tuple(groups), evidence)
run = GroupRun(job, os.environ, check=lambda: Preflight({"device": "h200"}, (), gpus=2), idle=lambda: ())
sys.exit(run.run())
