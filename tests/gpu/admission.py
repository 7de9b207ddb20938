"""Memory admission against a real CUDA allocator, on one GPU: `python tests/gpu/admission.py [--out FILE]`.

Two cases. `returns`: a cache of idle segments leaves too little free; one release turns a split into an unsplit plan.
`fragmented`: every segment of the cache holds a live block; the release returns nothing and the split runs. Both tell
what the release cost beside the forward work. Exit code 0 when both end as they must, 1 when not, 77 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.admission.admission import Admission, Part
from harness.admission.estimator import Estimator, Measured
from harness.admission.probe import Probe
from harness.admission.record import RecoveryRecord, as_json
from harness.admission.search import Goal

SKIPPED_EXIT_CODE = 77
SEGMENTS = 24
PIN_BYTES = 4 << 20
EXPECTED = {
    "returns": {"steps": "release", "ending": "unsplit", "came_back": True},
    "fragmented": {"steps": "release", "ending": "split", "came_back": False},
}


class Machine(Protocol):
    """A device that work can be done on."""

    probe: Probe

    def allocate(self, size: int) -> int:
        """Hold `size` bytes; the key to free them by."""

    def free(self, key: int) -> None:
        """Let go of them."""

    def forward(self, tokens: int) -> int:
        """Run a forward of `tokens`; the key of what stays of it."""


@dataclass(frozen=True, slots=True)
class TokenPlan:
    packed_tokens: int


class TokenPlanner:
    """A request is its number of tokens; nothing is shared."""

    def tokens(self, request: int, /) -> int:
        return request

    def least_tokens(self, requests: Sequence[int], /) -> int:
        return sum(requests)

    def plan(self, requests: Sequence[int], goal: Goal, /) -> TokenPlan:
        return TokenPlan(sum(requests))


class CudaMachine:
    """One GPU: a forward is a row of matrix products in bfloat16 that keeps its input of each fourth."""

    HIDDEN, PRODUCTS = 4096, 16

    def __init__(self) -> None:
        import torch

        from harness.admission.cuda import CudaProbe

        self._torch = torch
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.probe = CudaProbe(self.device)
        self._held: dict[int, Any] = {}
        self._keys = 0
        self._weight = (
            torch.randn(self.HIDDEN, self.HIDDEN, dtype=torch.bfloat16, device=self.device) / self.HIDDEN**0.5
        )

    def allocate(self, size: int) -> int:
        return self._hold(self._torch.empty(size, dtype=self._torch.uint8, device=self.device))

    def free(self, key: int) -> None:
        del self._held[key]

    def forward(self, tokens: int) -> int:
        torch = self._torch
        kept = []
        state = torch.ones(tokens, self.HIDDEN, dtype=torch.bfloat16, device=self.device)
        for product in range(self.PRODUCTS):
            if product % 4 == 0:
                kept.append(state)
            wide = torch.cat([state] * 8, dim=1)  # the workspace that a feed-forward would need
            state = wide[:, : self.HIDDEN] @ self._weight
            del wide
        return self._hold(kept)

    def _hold(self, thing: Any) -> int:
        self._keys += 1
        self._held[self._keys] = thing
        return self._keys


def fill_cache(machine: Machine, size: int, *, pinned: bool) -> list[int]:
    """Leave about `size` bytes in the allocator's cache, in `SEGMENTS` segments; the keys of what is still held.

    With `pinned` each segment keeps a small live block. A segment is cut while nothing else is cached, because the
    allocator takes the smallest block that fits.
    """
    segment = size // SEGMENTS
    pins, rests = [], []
    for _ in range(SEGMENTS):
        whole = machine.allocate(segment)
        if not pinned:
            rests.append(whole)
            continue
        machine.free(whole)
        pins.append(machine.allocate(PIN_BYTES))
        rests.append(machine.allocate(segment - PIN_BYTES))
    for rest in rests:
        machine.free(rest)
    return pins


def measure(machine: Machine, tokens: int) -> Measured:
    """The peak of one forward and what stays of it, by the allocator's own account."""
    before = machine.probe.read().allocated_bytes
    machine.probe.reset_peak()
    kept = machine.forward(tokens)
    reading = machine.probe.read()
    machine.free(kept)
    return Measured(tokens, reading.peak_bytes - before, reading.allocated_bytes - before)


def largest_scale(measured: Measured, free_bytes: int, share: float) -> int:
    """The tokens whose unsplit peak is `share` of `free_bytes`."""
    return int(free_bytes * share * measured.packed_tokens / measured.peak_bytes)


def run_case(machine: Machine, name: str, *, tokens: int = 2048) -> dict[str, Any]:
    """Play one case and tell what happened."""
    machine.free(machine.forward(tokens))  # libraries take their workspaces at the first call
    machine.probe.release()
    free = machine.probe.read().free_bytes
    estimator = Estimator([measure(machine, tokens)], margin_percent=3)
    estimator = Estimator([measure(machine, largest_scale(estimator.points[0], free, 0.35))], margin_percent=3)
    machine.probe.release()
    profile = estimator.points[0]
    whole = largest_scale(profile, free, 0.7)
    pair = [whole // 2, whole - whole // 2]
    split = 1.03 * (profile.peak_bytes + profile.retained_bytes)  # half the tokens: two kept, one workspace
    unsplit = estimator.price(whole).peak_bytes
    pins = fill_cache(machine, int(free - (unsplit + split) / 2), pinned=name == "fragmented")
    records: list[RecoveryRecord] = []
    admission: Admission[int, TokenPlan] = Admission(TokenPlanner(), estimator, machine.probe, records=records.append)
    before = machine.probe.read()
    wave = admission.admit_batch([pair])

    def forward(part: Part[TokenPlan]) -> int:
        return machine.forward(part.plan.packed_tokens if part.plan else 0)

    for kept in admission.run(wave, forward):
        machine.free(kept)
    after = machine.probe.read()
    for pin in pins:
        machine.free(pin)
    machine.probe.release()
    admission.admit_batch([])  # brings the forward work to the account
    budget = admission.ledger.budget
    came_back = sum(record.came_back_bytes for record in records)
    happened = {
        "steps": "release" if any(record.denied is None for record in records) else "none",
        "ending": "unsplit" if wave.unsplit else "split",
        "came_back": came_back > PIN_BYTES,
    }
    return {
        "case": name,
        "holds": happened == EXPECTED[name] and before.alloc_retries == after.alloc_retries,
        "expected": EXPECTED[name],
        "happened": happened,
        "tokens": whole,
        "unsplit_bytes": unsplit,
        "free_bytes": {"at_start": free, "before": before.free_bytes},
        "came_back_bytes": came_back,
        "alloc_retries": [before.alloc_retries, after.alloc_retries],
        "ledger": budget.as_json(),
        "releases": [as_json(record) for record in records],
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Memory admission against a real CUDA allocator, on one GPU.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes (default: stdout)")
    arguments = parser.parse_args(argv)
    import torch

    if not torch.cuda.is_available():
        print("skipped: there is no CUDA device here", file=sys.stderr)
        return SKIPPED_EXIT_CODE
    machine = CudaMachine()
    cases = [run_case(machine, name) for name in EXPECTED]
    text = json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": cases}, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    else:
        print(text)
    for case in cases:
        print(
            f"{'holds' if case['holds'] else 'FAILS'}  {case['case']}: {case['happened']['ending']}, "
            f"{case['came_back_bytes'] >> 20} MiB came back, release cost "
            f"{case['ledger']['overhead'] or 0:.3%} of forward work",
            file=sys.stderr,
        )
    return 0 if all(case["holds"] for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
