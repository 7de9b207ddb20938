"""`python -m harness admission`: the scenarios, played in a simulated world, and what each proves."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence

from harness.admission.record import RecoveryRecord
from harness.admission.scenario import Result, Scenario, load_scenarios, play
from harness.errors import InputError

__all__ = ["ADMISSION_SCHEMA", "main"]

ADMISSION_SCHEMA = "harness.admission/1"


def main(argv: Sequence[str]) -> int:
    """Play one scenario or all; exit code 0 when everything happened as it must, 1 when something did not."""
    scenarios = load_scenarios()
    arguments = _parser(scenarios).parse_args(argv)
    if arguments.scenario != "all" and arguments.scenario not in scenarios:
        raise InputError(f"no scenario {arguments.scenario!r}", remedy=f"choose all or one of {', '.join(scenarios)}")
    chosen = scenarios.values() if arguments.scenario == "all" else [scenarios[arguments.scenario]]
    results = [play(scenario) for scenario in chosen]
    if arguments.json:
        held = sum(result.holds for result in results)
        document = {"schema": ADMISSION_SCHEMA, "held": held, "scenarios": [result.as_json() for result in results]}
        print(json.dumps(document, sort_keys=True))
    else:
        for result in results:
            print("\n".join(_lines(result)))
        print(f"{sum(result.holds for result in results)} of {len(results)} scenarios hold")
    return 0 if all(result.holds for result in results) else 1


def _parser(scenarios: Mapping[str, Scenario]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness admission",
        description="Memory admission, scenario by scenario, in a simulated world.",
        epilog="example: python -m harness admission --scenario release-then-wider --json",
    )
    parser.add_argument(
        "--scenario", required=True, metavar="NAME|all", help=f"which one to play: all, or {', '.join(scenarios)}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _lines(result: Result) -> Iterator[str]:
    yield f"{'holds' if result.holds else 'FAILS'}  {result.scenario.name}: {result.scenario.says}"
    for number, happened in enumerate(result.happened, start=1):
        steps = " > ".join(happened["steps"])
        found = ", ".join(happened["outcomes"])
        ending = happened["ending"]
        if "width" in happened:
            inputs = "input" if happened["width"] == 1 else "inputs"
            ending += (
                f", {happened['width']} {inputs} in {happened['parts']} part(s), layout {'/'.join(happened['layouts'])}"
            )
        elif "required" in happened:
            ending += (
                f", required {happened['required']}, available {happened['available']} MiB, "
                f"largest that fits {happened['largest']} tokens"
            )
        else:
            ending += f", {'/'.join(happened['errors'])}"
        yield f"         {number}. [{found}] {steps} > {ending}"
    yield from (f"         {line}" for record in result.records for line in _release_lines(record))
    yield from (f"         differs: {difference}" for difference in result.differences)


def _release_lines(record: RecoveryRecord) -> Iterator[str]:
    who = f"asked by rank {', '.join(map(str, record.asked))}"
    if record.denied is not None:
        yield f"   release {who}: denied ({record.denied})"
        return
    mib = record.came_back_bytes / (1 << 20)
    yield (
        f"   release {who}: {mib:.0f} MiB came back in {record.elapsed_ns / 1e6:.1f} ms, "
        f"{record.after.release_ns / 1e6:.1f} of {record.after.forward_ns / 20 / 1e6:.1f} ms budget spent"
    )
