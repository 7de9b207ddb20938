import json
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest

import harness
from harness.admission.gate import CellGate
from harness.admission.refusal import AdmissionRefused
from harness.admission.simulated import SimulatedAllocator
from harness.parallel.topology import Topology

MIB = 1 << 20
SCHEMA = json.loads((Path(harness.__file__).parent / "schemas" / "evidence-1.json").read_text())


@dataclass(frozen=True)
class Plan:
    packed_tokens: int


@pytest.fixture
def device():
    return SimulatedAllocator(100 * MIB, granularity_bytes=MIB)


@pytest.fixture
def gate(device):
    return CellGate(Topology.single("cpu"), device)


def run(gate, tokens, need_mib, *, measured=False, forward_ns=10**9):
    passage = gate.admit(Plan(tokens), measured=measured)
    gate.completed(Plan(tokens), need_mib * MIB, forward_ns, warm=not measured)
    return passage


def holds(kind, value):
    jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": SCHEMA["$defs"]}).validate(value)


def test_the_first_forward_has_no_price_and_says_that_it_ran_on_the_callers_word(gate):
    first = run(gate, 1000, 20)
    assert (first.required_bytes, first.trusted, first.on_word) == (0, False, True)
    second = run(gate, 1000, 20)
    assert (second.required_bytes, second.trusted, second.on_word) == (22 * MIB, True, False)


def test_a_warm_up_far_above_what_was_measured_runs_on_word_and_its_round_at_the_learned_price(gate):
    run(gate, 1000, 20)
    warm = run(gate, 10_000, 60)
    assert (warm.trusted, warm.on_word) == (False, True)
    assert warm.required_bytes > 100 * MIB
    measured = run(gate, 10_000, 60, measured=True)
    assert (measured.required_bytes, measured.trusted, measured.on_word) == (66 * MIB, True, False)


def test_a_measured_round_that_does_not_fit_is_refused_whatever_its_warm_up_did(gate, device):
    run(gate, 1000, 60)
    device.others_bytes = 50 * MIB
    with pytest.raises(AdmissionRefused, match="a single request can not be split"):
        gate.admit(Plan(1000), measured=True)


def test_a_round_that_only_the_cache_keeps_from_fitting_is_admitted_after_one_release(gate, device):
    run(gate, 1000, 60)
    device.preload(70 * MIB, 0)
    passage = gate.admit(Plan(1000), measured=True)
    assert not passage.on_word
    (release,) = gate.take_records()
    assert (release["came_back_bytes"], release["then"]["action"]) == ([70 * MIB], "unsplit")
    holds("release", release)
    assert gate.take_records() == []


def test_the_account_tells_the_share_of_warm_up(gate, device):
    run(gate, 1000, 20, forward_ns=3 * 10**9)
    run(gate, 1000, 20, measured=True, forward_ns=10**9)
    gate.admit(Plan(1000), measured=True)
    account = gate.account()
    assert (account["forward_ms"], account["warm_share"]) == (4000, 0.75)
    holds("ledger", account)


def test_a_cpu_rank_is_denied_by_its_device(device):
    device.device = "cpu"
    gate = CellGate(Topology.single("cpu"), device)
    run(gate, 1000, 60)
    device.preload(70 * MIB, 0)
    with pytest.raises(AdmissionRefused):
        gate.admit(Plan(1000), measured=True)
    (release,) = gate.take_records()
    assert (release["released"], release["denied"], release["then"]["action"]) == (False, "device", "refused")
    holds("release", release)


def test_the_last_forward_is_in_the_account_once_it_is_settled(gate):
    gate.settle()
    assert gate.account()["forward_ms"] == 0
    run(gate, 1000, 20, forward_ns=3 * 10**9)
    run(gate, 1000, 20, measured=True, forward_ns=10**9)
    gate.settle()
    gate.settle()
    account = gate.account()
    assert (account["forward_ms"], account["warm_ms"]) == (4000, 3000)
