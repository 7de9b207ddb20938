"""The verdict of a parity check, and its command."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from harness import checks
from harness.checks import LayoutParity, Result, compare
from harness.errors import InputError

CALLS = [[("all_to_all", "cp", "forward", "a")]] * 2
REFERENCE = Result(1.0, torch.tensor([1.0, -2.0]), {"one": torch.tensor([4.0, 2.0]), "two": torch.tensor([1.0])})


def compared(log_probs=(1.0, -2.0), one=(4.0, 2.0), orders=CALLS, reference=REFERENCE) -> LayoutParity:
    result = Result(1.0, torch.tensor(log_probs), {"one": torch.tensor(one), "two": torch.tensor([1.0])})
    return compare("layout", 5, result, reference, orders)


def test_equal_results_hold():
    parity = compared()
    assert (parity.outputs, parity.gradients, parity.same_order) == (0, 0, True)
    assert parity.holds(0)


def test_errors_are_relative_to_the_largest_value_of_their_tensor():
    parity = compared(log_probs=(1.0, -2.5), one=(4.0, 3.0))
    assert (parity.outputs, parity.gradients, parity.worst) == (0.25, 0.25, "one")
    assert parity.holds(0.25)
    assert not parity.holds(0.24)


def test_a_value_that_is_missing_does_not_hold():
    assert not compared(log_probs=(1.0, float("nan"))).holds(1e9)
    parity = compared(one=(float("nan"), 2.0))
    assert parity.worst == "one"
    assert not parity.holds(1e9)


def test_gradients_that_are_all_zero_do_not_hold():
    zero = Result(1.0, REFERENCE.log_probs, {"one": torch.zeros(2), "two": torch.tensor([1.0])})
    parity = compared(one=(0.0, 0.0), reference=zero)
    assert parity.zero_gradients == ("one",)
    assert parity.gradients == 0
    assert not parity.holds(1)


def test_another_order_on_one_rank_does_not_hold():
    assert not compared(orders=[CALLS[0], [("all_to_all", "cp", "forward", "b")]]).holds(1)


KEY = "cal-hetero-tiny|tiny-hybrid|L4|tp1|cp1"


def test_the_command_prints_its_verdict_as_one_json_object():
    done = subprocess.run(
        [sys.executable, "-m", "harness", "checks", "--cell", KEY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["schema"] == "harness.check/1"
    assert verdict["cell"] == KEY
    assert verdict["holds"] is True
    assert [layout["label"] for layout in verdict["layouts"]][:2] == ["no_sharing", "depth_one"]
    assert all(layout["holds"] for layout in verdict["layouts"])


def test_the_command_fails_where_the_tolerance_is_not_met(capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert checks.main(["--cell", KEY, "--dtype", "float32", "--tolerance", "1e-12"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["holds"] is False
    assert any(not layout["holds"] for layout in verdict["layouts"])


def test_ranks_that_were_not_started_are_asked_for(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="4 ranks are needed") as refused:
        checks.main(["--cell", "cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4"])
    assert "torchrun" in refused.value.remedy
