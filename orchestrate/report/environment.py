"""What a run was planned as, which source it ran, on what, and what it used: the cards at the end of the report page.

The commit that is qualified and the program that qualifies it are two sources, each with a card of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrate.errors import ReceiptError
from orchestrate.receipts.attempts import evidence_folder
from orchestrate.receipts.canonical import parse_strict
from orchestrate.receipts.files import read_file
from orchestrate.receipts.record import RunRecord
from orchestrate.receipts.statement import Stage
from orchestrate.report.words import byte_size, duration, text_of

__all__ = ["environment"]

Facts = Iterable[tuple[str, str]]

_MAX_BYTES = 1 << 22


def environment(record: RunRecord) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """Titles, each with names and values; what is not known is left out, but for a commit and a tree."""
    plan, stages = record.plan, record.stages
    node = _flat(_object(stages.get(Stage.ACQUIRE, {}).get("node"))) or _flat(
        _object(stages.get(Stage.ADMIT, {}).get("preflight"))
    )
    sources = _two_sources(plan) if plan.get("payload") == "groups" else [("Source", _source(plan))]
    titled: list[tuple[str, Facts]] = [
        ("Planned", _planned(plan)),
        *sources,
        ("Node", node),
        ("Software", _software(record)),
        ("Used", _used(record)),
    ]
    told = [(title, tuple((name, value) for name, value in pairs if value)) for title, pairs in titled]
    return [(title, pairs) for title, pairs in told if pairs]


def _planned(plan: Mapping[str, Any]) -> Facts:
    groups, cells = plan.get("groups"), plan.get("cells")
    yield "backend", text_of(plan.get("backend"))
    if plan.get("payload") == "groups":
        yield "qualification", text_of(plan.get("cell_set"))
        yield "groups", str(len(cells)) if isinstance(cells, list) else ""
    else:
        yield "cell set", text_of(plan.get("cell_set"))
        yield "groups", ", ".join(map(text_of, groups)) if isinstance(groups, list) else "all"
        yield "rounds a candidate", text_of(plan.get("repeat"))
    yield "deadline", _seconds(plan.get("deadline_s"))
    yield "kept for teardown", _seconds(plan.get("teardown_reserve_s"))
    yield "owner", text_of(plan.get("owner"))
    yield "device required", text_of(plan.get("device_required"))


def _source(plan: Mapping[str, Any]) -> Facts:
    source = _object(plan.get("source"))
    yield from _commit(source)
    yield "source files pinned", str(len(_object(source.get("pins"))))
    yield "digest of the pins", text_of(source.get("pins_sha256"))
    yield "manifest", text_of(plan.get("manifest_sha256"))
    corpora = plan.get("corpora")
    for item in map(_object, corpora if isinstance(corpora, list) else ()):
        yield f"corpus {text_of(item.get('name'))}", text_of(item.get("sha256"))


def _two_sources(plan: Mapping[str, Any]) -> list[tuple[str, Facts]]:
    """The commit that was tested, and the program that tested it: the pins of the plan are this program's own."""
    tested, source = _object(plan.get("qualified")), _object(plan.get("source"))
    parents, left_out = tested.get("parents"), tested.get("left_out")
    differs = "differs from the commit; what differs did not travel"
    tested_facts = [
        ("head", text_of(tested.get("head")) or "not named"),
        ("base", text_of(tested.get("base")) or "not named"),
        ("tested commit", text_of(tested.get("commit")) or "not known"),
        ("tree", text_of(tested.get("tree")) or "not known"),
        ("parents", text_of(", ".join(map(str, parents))) or "none" if isinstance(parents, list) else "not known"),
        ("files of the commit", str(len(_object(tested.get("files"))))),
        ("left out of the archive", text_of(", ".join(map(str, left_out))) if isinstance(left_out, list) else ""),
        ("digest of the archive", text_of(tested.get("archive_sha256"))),
        ("working tree", differs if tested.get("working_tree_differs") is True else ""),
    ]
    tool_facts = [
        *_commit(_object(plan.get("tool"))),
        ("its own files pinned", str(len(_object(source.get("pins"))))),
        ("digest of the pins", text_of(source.get("pins_sha256"))),
    ]
    return [("Tested source", tested_facts), ("orchestrate, which tested it", tool_facts)]


def _commit(source: Mapping[str, Any]) -> Facts:
    dirty = source.get("dirty")
    yield "commit", text_of(source.get("commit")) or "not known"
    yield "tree", text_of(source.get("tree")) or "not known"
    yield "changes not committed", "yes" if dirty is True else "none" if dirty is False else "not known"


def _software(record: RunRecord) -> Facts:
    """Versions as the node of the newest attempt told them, and where those of all packages are."""
    told, packages = _evidence(record, "preflight.json"), _evidence(record, "packages.json")
    for name, title in (
        ("python", "Python"), ("torch", "torch"), ("cuda", "CUDA"), ("nccl", "NCCL"), ("driver", "driver")
    ):  # fmt: skip
        value = text_of(told.get(name))
        yield title, "" if value == "not-applicable" else value
    if packages:
        name = _newest(record, "packages.json")
        yield "packages", f"{len(packages)}, with their versions in {name}"
        yield "its digest", record.digests.get(name, "")


def _used(record: RunRecord) -> Facts:
    run, closure = record.stages.get(Stage.RUN, {}), record.closure.facts if record.closure else {}
    peak = run.get("peak_rss_bytes")
    yield "wall time", _seconds(run.get("wall_s"))
    yield "peak memory", byte_size(peak) if isinstance(peak, int) and not isinstance(peak, bool) else text_of(peak)
    yield "exit code", text_of(run.get("exit_code"))
    yield "ended", text_of(run.get("ended"))
    for name, value in _object(run.get("processes")).items():
        yield _PROCESSES.get(name, name), text_of(value)
    yield "GPU hours", text_of(closure.get("gpu_hours_actual"))


_PROCESSES = {
    "tracked": "processes seen",
    "groups": "process groups",
    "sessions": "process sessions",
    "retired": "processes gone",
}


def _newest(record: RunRecord, name: str) -> str:
    attempts = record.evidence_attempts
    return f"{evidence_folder(attempts[-1])}/{name}" if attempts else ""


def _evidence(record: RunRecord, name: str) -> Mapping[str, Any]:
    """A file of the newest attempt's evidence; empty where it can not be read."""
    path = _newest(record, name)
    if path not in record.files:
        return {}
    try:
        return _object(parse_strict(read_file(record.run_dir, path, limit=_MAX_BYTES), what=path))
    except (ReceiptError, OSError):
        return {}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in list(tree.items())[:60]:
        if isinstance(value, dict) and not prefix:
            pairs.extend(_flat(value, f"{name} "))
        else:
            pairs.append((f"{prefix}{name}", text_of(value)))
    return pairs


def _seconds(value: object) -> str:
    return duration(value) if isinstance(value, int | float) and not isinstance(value, bool) else text_of(value)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
