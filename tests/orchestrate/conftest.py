"""A complete, consistent run directory, made with the production API, for everything that reads runs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestrate.cells.cell import slug
from orchestrate.receipts.canonical import canonical_bytes, sha256_hex
from orchestrate.receipts.judgement import node_source_digest
from orchestrate.receipts.statement import Stage, Subject, statement
from orchestrate.receipts.store import ReceiptStore
from orchestrate.verdict import Verdict

RUN_ID = "r20260102-030405-0a1b2c"
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEYS = ("cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4", "cal-text|tiny-hybrid|L4|tp2|cp1|g4")
LABELS = ("no_sharing", "depth_one", "full_sharing")


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


@dataclass
class RunBuilder:
    """Writes a run directory; `facts` and `rows` hooks let a test say something else than the truth."""

    run_dir: Path
    run_id: str = RUN_ID
    keys: tuple[str, ...] = KEYS
    labels: tuple[str, ...] = LABELS
    repeat: int = 3
    device: str = "cpu"
    dirty: bool = False
    failed_cells: Mapping[str, str] = field(default_factory=dict)
    rows_hook: Callable[[str, list[dict[str, Any]]], list[dict[str, Any]]] = lambda _key, rows: rows
    facts_hook: Callable[[Stage, dict[str, Any]], dict[str, Any]] = lambda _stage, facts: facts
    plan_hook: Callable[[dict[str, Any]], dict[str, Any]] = lambda plan: plan
    journal: list[bytes] = field(default_factory=list)
    ending: Mapping[str, Any] = field(default_factory=dict)
    evidence_hook: Callable[[Path], None] = lambda _evidence: None
    listed: list[dict[str, Any]] = field(default_factory=list)
    clock: float = 0.0

    def build(self, until: Stage = Stage.CLOSURE, skip: tuple[Stage, ...] = ()) -> Path:
        for folder in (self.run_dir, self.run_dir / "evidence"):
            folder.mkdir(parents=True)
        self.write_plan()
        self.note("created")
        for stage in Stage:
            if stage is Stage.RUN and Stage.COLLECT not in skip:
                self.write_evidence()
            if stage not in skip and stage is not Stage.CLOSURE:
                self.write_stage(stage)
            if stage is until:
                break
        if until is Stage.CLOSURE and Stage.CLOSURE not in skip:
            self.close()
        return self.run_dir

    @property
    def store(self) -> ReceiptStore:
        return ReceiptStore(self.run_dir / "receipts")

    def write_plan(self) -> None:
        self.plan = self.plan_hook(
            {
                "schema": "orchestrate.plan/1",
                "run_id": self.run_id,
                "created_at": at(0),
                "backend": "local",
                "cell_set": "smoke",
                "groups": None,
                "cells": list(self.keys),
                "exclusions": [],
                "repeat": self.repeat,
                "deadline_s": 600,
                "teardown_reserve_s": 60,
                "deadline_at": at(600),
                "expires_at": at(1200),
                "owner": "someone",
                "token_sha256": sha256_hex(b"secret"),
                "device_required": self.device,
                "source": {
                    "commit": "c0ffee" + "0" * 34,
                    "dirty": self.dirty,
                    "tree": "7" * 40,
                    "pins": {"harness/node.py": "2" * 64},
                    "pins_sha256": sha256_hex(canonical_bytes({"harness/node.py": "2" * 64})),
                },
                "manifest_sha256": "4" * 64,
                "candidates": {key: list(self.labels) for key in self.keys},
                "corpora": [],
                "caps": {"timeout_s": 540},
            }
        )
        (self.run_dir / "plan.json").write_bytes(canonical_bytes(self.plan))
        (self.run_dir / "token").write_text("secret\n")
        (self.run_dir / "lock").touch()

    def note(self, kind: str, **more: Any) -> None:
        previous = sha256_hex(self.journal[-1]) if self.journal else None
        record = {"seq": len(self.journal) + 1, "at": at(self.clock), "kind": kind, "prev": previous, "facts": more}
        record["sum"] = sha256_hex(canonical_bytes(record))
        self.journal.append(canonical_bytes(record))
        with (self.run_dir / "journal.jsonl").open("ab") as stream:
            stream.write(self.journal[-1] + b"\n")

    def write_stage(self, stage: Stage, attempt: int = 1) -> str:
        self.note(f"{stage.value}-intent")
        subjects = [Subject("plan.json", sha256_hex((self.run_dir / "plan.json").read_bytes()))]
        if stage is Stage.COLLECT:
            subjects = self.evidence_subjects()
        if stage is Stage.RUN:
            ending = {name: self.run_facts()[name] for name in ("ended", "exit_code", "signal")}
            self.note("run-ended", **ending | self.ending)
        facts = self.facts_hook(stage, getattr(self, f"{stage.value}_facts")())
        return self.put(stage, facts, subjects, attempt)

    def put(self, stage: Stage, facts: dict[str, Any], subjects: list[Subject], attempt: int = 1) -> str:
        begun, took = self.clock, {Stage.RUN: 40.0, Stage.CENSUS: 3.0}.get(stage, 0.8)
        self.clock += took
        sha256 = self.store.put(
            statement(
                stage,
                run_id=self.run_id,
                attempt=attempt,
                previous=self.store.tip(),
                started_at=at(begun),
                ended_at=at(self.clock),
                facts=facts,
                subjects=subjects,
            )
        )
        if stage is not Stage.CLOSURE:
            self.listed.append({"stage": stage.value, "attempt": attempt, "sha256": sha256})
        if stage is Stage.CLOSURE:
            self.note("closure", closure_sha256=sha256)
        else:
            self.note("receipt", stage=stage.value, sha256=sha256)
        return sha256

    def close(self, why: str = "the run is over", *, attempt: int = 1, **more: Any) -> str:
        closure = self.store.newest_closure()
        facts = {
            **self.closure_facts(),
            "supersedes": closure.sha256 if closure else None,
            "why": why,
            **more,
        }
        plan = Subject("plan.json", sha256_hex((self.run_dir / "plan.json").read_bytes()))
        return self.put(Stage.CLOSURE, self.facts_hook(Stage.CLOSURE, facts), [plan], attempt)

    # What each stage says.

    def plan_facts(self) -> dict[str, Any]:
        return {"plan_sha256": sha256_hex((self.run_dir / "plan.json").read_bytes()), "plan": self.plan}

    def admit_facts(self) -> dict[str, Any]:
        return {
            "backend": "local",
            "device": self.device,
            "preflight": {"cpus": 2, "memory_bytes": 8 << 30, "gpus": "not-applicable"},
            "caps": {"timeout_s": 540},
            "gpu_hours_estimate": 0,
            "owner": "someone",
            "token_sha256": "1" * 64,
        }

    def acquire_facts(self) -> dict[str, Any]:
        return {
            "resources": [{"kind": "process", "id": "4242:1767323045.5"}],
            "requested": {"ranks": 4},
            "node": {"fingerprint": "5" * 64, "kernel": "6.1", "torch": "2.13.0+cpu"},
        }

    def run_facts(self) -> dict[str, Any]:
        return {
            "payload": "cells",
            "exit_code": 1 if self.failed_cells else 0,
            "signal": None,
            "ended": "by-itself",
            "processes": {"tracked": 9, "groups": 2, "sessions": 5, "retired": 9},
            "wall_s": 40.0,
            "peak_rss_bytes": 3 << 30,
            "cells": [
                {"key": key, "status": self.failed_cells.get(key, "complete"), "reason": "", "ran_with": []}
                for key in self.keys
            ],
        }

    def collect_facts(self) -> dict[str, Any]:
        files = self.evidence_files()
        return {
            "device": self.device,
            "cells": [
                {
                    "key": key,
                    "status": self.failed_cells.get(key, "complete"),
                    "complete": key not in self.failed_cells,
                    "rows": len(self.rows[key]),
                    "missing": ["there is no end row"] if key in self.failed_cells else [],
                }
                for key in self.keys
            ],
            "sources": self.sources(),
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files),
        }

    def sources(self) -> dict[str, Any]:
        source = self.plan["source"]
        node = node_source_digest(source["pins"])
        return {"start": source["pins_sha256"], "end": source["pins_sha256"], "node": {"start": node, "end": node}}

    def teardown_facts(self) -> dict[str, Any]:
        return {
            "decided_because": "something of ours may exist",
            "steps": [
                {
                    "step": "end-processes",
                    "target": "members",
                    "outcome": "done",
                    "detail": "1 got SIGTERM",
                    "at": at(1),
                },
                {
                    "step": "remove-folder",
                    "target": f"orchestrate-{self.run_id}",
                    "outcome": "done",
                    "detail": "",
                    "at": at(2),
                },
            ],
        }

    def census_facts(self) -> dict[str, Any]:
        asked = [
            {
                "what": "processes with this run's token, or seen in it (pid and start time)",
                "answer": "9 tracked, 0 live",
            },
            {"what": "listening sockets of this run", "answer": "4 were seen, 0 are there"},
            {"what": "shared-memory files of this run", "answer": "0 were seen"},
            {"what": "temporary folder of this run", "answer": "it is not there"},
        ]
        looks = [
            {"at": at(self.clock + offset), "asked": asked, "remaining": [], "unknown": []} for offset in (0.5, 2.5)
        ]
        return {"path": "direct", "looks": looks, "gap_s": 2.0, "confirmed": True, "remaining": [], "unknown": []}

    def closure_facts(self) -> dict[str, Any]:
        stages = {item["stage"] for item in self.listed}
        missing = [stage.value for stage in Stage if stage.value not in stages and stage is not Stage.CLOSURE]
        complete = sum(key not in self.failed_cells for key in self.keys) if "run" in stages else 0
        verdict = Verdict.FAILED if self.failed_cells else Verdict.INCOMPLETE if missing else Verdict.PASSED
        source = self.plan["source"]
        return {
            "verdict": verdict.label,
            "test_verdict": verdict.label,
            "result": verdict.label,
            "teardown": {
                "confirmed": "census" in stages or not stages & {"acquire", "run"},
                "remaining": [],
                "unknown": [],
            },
            "reason": "a cell failed" if self.failed_cells else "",
            "exit_code": verdict.exit_code,
            "receipts": self.listed.copy(),
            "missing": missing,
            "journal": {"records": len(self.journal), "head": sha256_hex(self.journal[-1])},
            "cells": {"expected": len(self.keys), "complete": complete},
            "device": self.device,
            "gpu_hours_actual": 0,
            "commit": source["commit"],
            "dirty": source["dirty"],
            "tree": source["tree"],
        }

    # Evidence.

    def write_evidence(self) -> None:
        self.rows = {key: self.rows_hook(key, self.cell_rows(key)) for key in self.keys}
        evidence = self.run_dir / "evidence"
        for key, rows in self.rows.items():
            folder = evidence / "cells" / slug(key)
            (folder / "trace").mkdir(parents=True)
            (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            (folder / "stdout.log").write_text("measured\n")
            (folder / "trace" / "rank0.trace").write_bytes(b"RNKTRACE")
        (evidence / "preflight.json").write_text(
            json.dumps({"schema": "harness.preflight/1", "device": self.device, "gpus": "not-applicable", "cpus": 2})
        )
        (evidence / "node.jsonl").write_text(json.dumps({"at": at(1), "event": "node-started"}) + "\n")
        node = {
            "schema": "harness.node/1",
            "run_id": self.run_id,
            "exit_code": 1 if self.failed_cells else 0,
            "cells": [
                {
                    "key": key,
                    "slug": slug(key),
                    "status": self.failed_cells.get(key, "complete"),
                    "reason": "rank 2 exited with 1" if key in self.failed_cells else "",
                    "started_at": at(5 + 18 * index),
                    "ended_at": at(20 + 18 * index),
                    "ran_with": [],
                }
                for index, key in enumerate(self.keys)
            ],
        }
        (evidence / "node.json").write_text(json.dumps(node))
        self.evidence_hook(evidence)

    def cell_rows(self, key: str) -> list[dict[str, Any]]:
        world = 4 if "|cp4" in key else 2
        base = {"schema": "harness.evidence/1", "at": at(6)}
        header = {
            **base,
            "row": "cell",
            "run_id": self.run_id,
            "cell": key,
            "workload": {
                "name": key.split("|", maxsplit=1)[0],
                "group": int(key.rpartition("|g")[2]) if "|g" in key else None,
                "rows": 8,
                "tokens": 480,
                "sha256": "8" * 64,
            },
            "model": {"name": "tiny-hybrid", "layers": 4, "gdn_layers": 3, "hidden": 64},
            "shape": {"tp": 1 if world == 4 else 2, "cp": 4 if world == 4 else 1, "ep": 1, "world": world},
            "device": {"kind": self.device, "name": "a processor"},
            "dtype": "float32",
            "torch": "2.13.0",
            "fingerprint": "5" * 64,
            "repeat": self.repeat,
            "candidates": [
                {
                    "label": label,
                    "layout_sha256": "9" * 64,
                    "features": {
                        "packed_tokens": 480 - 90 * index,
                        "segment_count": 8 + 3 * index,
                        "max_depth": 1 + index,
                        "segments_below": [8, 8, 8, 8, 8, 8, 8, 8],
                    },
                }
                for index, label in enumerate(self.labels)
            ],
            "equal": {},
            "automatic": {"label": self.labels[-1], "rule": "fewest packed tokens"},
        }
        if key in self.failed_cells:
            return [header]
        rows = [header]
        for _index, label in enumerate(self.labels):
            statuses = ["compile"] * world, ["none"] * world
            rows += [
                {
                    **base,
                    "row": "warmup",
                    "candidate": label,
                    "index": turn,
                    "statuses": statuses[turn],
                    "settled": turn,
                }
                for turn in (0, 1)
            ]
        turns = [("candidate", label) for label in self.labels] + [("automatic", self.labels[-1])]
        for turn in range(self.repeat):
            for position, (role, label) in enumerate(turns):
                elapsed = 21.5 - 2.25 * self.labels.index(label) + 0.5 * turn + (0.1 if role == "automatic" else 0)
                rows.append(
                    {
                        **base,
                        "row": "measure",
                        "candidate": label,
                        "role": role,
                        "round": turn,
                        "position": position,
                        "elapsed_ms": elapsed,
                        "forward_ms": elapsed / 3,
                        "backward_ms": elapsed * 2 / 3,
                        "per_rank_ms": [elapsed - 0.25 * rank for rank in range(world)],
                        "compile": ["none"] * world,
                        "planning_ms": 0.4,
                        "peak_bytes": [0] * world,
                        "subforwards": 1,
                        "admitted": True,
                        "unsplit": True,
                        "layout_live": True,
                        "loss": 12.5,
                    }
                )
        rows.append({**base, "row": "end", "outcome": "complete", "rows": len(rows), "reason": ""})
        return rows

    def evidence_files(self) -> list[Path]:
        return sorted(path for path in (self.run_dir / "evidence").rglob("*") if path.is_file())

    def evidence_subjects(self) -> list[Subject]:
        return [
            Subject(path.relative_to(self.run_dir).as_posix(), sha256_hex(path.read_bytes()))
            for path in self.evidence_files()
        ]


@pytest.fixture(scope="session")
def run_builder() -> type[RunBuilder]:
    """The builder itself, for a test that chooses its own place."""
    return RunBuilder


@pytest.fixture
def builder(tmp_path: Path) -> Callable[..., RunBuilder]:
    """`builder(**fields)`: a `RunBuilder` whose `build()` writes the run directory."""
    return lambda name=RUN_ID, **fields: RunBuilder(tmp_path / name, **fields)


@pytest.fixture
def write_key() -> Callable[..., tuple[Path, Path]]:
    """`write_key(path, key=None)`: a private ed25519 key in a file, and its public half beside it."""
    return _write_key


def _write_key(path: Path, key: Any = None) -> tuple[Path, Path]:
    key = key or Ed25519PrivateKey.generate()
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public = path.with_suffix(".pub")
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return path, public
