"""`python -m harness layouts`: prefix tree, candidate family and features of a workload."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.prefix_tree import (
    SEGMENT_LENGTH_THRESHOLDS,
    PrefixTree,
    Row,
    candidate_family,
    equal_labels,
    features,
)
from harness.workloads import Corpus, load_rows, load_workloads

__all__ = ["LAYOUTS_SCHEMA", "describe", "main", "rows_sha256"]

LAYOUTS_SCHEMA = "harness.layouts/1"


def main(argv: Sequence[str]) -> int:
    """Print the candidate family of one workload, or with `--all` of every workload that needs no private corpus."""
    arguments = _parser().parse_args(argv)
    if arguments.all:
        documents = [describe(name, group, load_rows(name, group)) for name, group in _public_workloads()]
        _print_json({"schema": LAYOUTS_SCHEMA, "workloads": documents})
        return 0
    path = arguments.corpus or os.environ.get("CORPUS")
    rows = load_rows(
        arguments.workload,
        arguments.group,
        None if path is None else Path(path),
        arguments.corpus_sha256 or os.environ.get("CORPUS_SHA256"),
    )
    document = describe(arguments.workload, arguments.group, rows)
    if arguments.json:
        _print_json({"schema": LAYOUTS_SCHEMA, **document})
    else:
        print("\n".join(_lines(document)))
    return 0


def describe(name: str, group: int | None, rows: Sequence[Row]) -> dict[str, Any]:
    """The tree's size and the candidates with their features, as a JSON object; no token is in it."""
    tree = PrefixTree.from_rows(rows)
    return {
        "workload": name,
        "group": group,
        "rows": len(rows),
        "tokens": sum(tree.row_lengths),
        "rows_sha256": rows_sha256(rows),
        "nodes": len(tree.nodes),
        "depth": max((node.depth for node in tree.nodes), default=0),
        "thresholds": list(SEGMENT_LENGTH_THRESHOLDS),
        "candidates": [
            {
                "label": layout.label,
                "max_depth": found.max_depth,
                "packed_tokens": found.packed_tokens,
                "segment_count": found.segment_count,
                "segments_below": list(found.segments_below),
            }
            for layout in candidate_family(tree)
            for found in [features(tree, layout)]
        ],
        "equal": equal_labels(tree),
    }


def rows_sha256(rows: Sequence[Row]) -> str:
    """The SHA-256 of token rows: for each row its length and its ids, as little-endian 64-bit integers."""
    digest = hashlib.sha256()
    for row in rows:
        values = array("q", (len(row), *row))
        if sys.byteorder == "big":
            values.byteswap()
        digest.update(values.tobytes())
    return digest.hexdigest()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness layouts",
        description="Prefix tree, candidate family and features of a workload.",
        epilog="example: python -m harness layouts --workload cal-text --group 4",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--workload", metavar="NAME", help="a workload of harness/sets/workloads.json")
    what.add_argument("--all", action="store_true", help="every workload that needs no private corpus, as JSON")
    parser.add_argument("--group", type=_group, metavar="G", help="the group of a corpus workload")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--corpus", metavar="PATH", help="a private corpus (default: CORPUS)")
    parser.add_argument("--corpus-sha256", metavar="SHA256", help="its SHA-256 (default: CORPUS_SHA256)")
    return parser


def _group(text: str) -> int:
    # Python takes digits of any script, signs and underscores for a number; a cell key does not.
    if re.fullmatch(r"0|[1-9][0-9]{0,5}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!a} is not a group number")
    return int(text)


def _public_workloads() -> Iterator[tuple[str, int | None]]:
    for name, recipe in load_workloads().items():
        match recipe:
            case Corpus(private=True):
                continue
            case Corpus(groups=groups):
                yield from ((name, group) for group in range(groups))
            case _:
                yield name, None


def _print_json(document: Mapping[str, object]) -> None:
    print(json.dumps(document, sort_keys=True))


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    group = "" if document["group"] is None else f" group {document['group']}"
    yield (
        f"{document['workload']}{group}: {document['rows']} rows, {document['tokens']} tokens, "
        f"{document['nodes']} shared prefixes up to {document['depth']} deep"
    )
    below = " ".join(f"<{bound}".rjust(5) for bound in SEGMENT_LENGTH_THRESHOLDS)
    yield f"{'layout':<32}{'packed':>8}{'segments':>10}{'depth':>7}   {below}"
    for candidate in document["candidates"]:
        counts = " ".join(f"{count:>5}" for count in candidate["segments_below"])
        yield (
            f"{candidate['label']:<32}{candidate['packed_tokens']:>8}{candidate['segment_count']:>10}"
            f"{candidate['max_depth']:>7}   {counts}"
        )
    yield from (f"{label} equals {first}" for label, first in document["equal"].items())
