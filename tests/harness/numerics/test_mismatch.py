"""Ranks that do not agree end with an error that names them, on every rank, before anything is exchanged."""

from __future__ import annotations

import pytest

from harness.errors import InputError
from harness.parallel.collectives import odd_ones
from harness.parallel.topology import Topology

pytestmark = pytest.mark.timeout(600)  # the four ranks share two cores with whatever else runs


def fault(rank_facts, name: str) -> dict:
    found = [facts["faults"][name] for facts in rank_facts]
    assert all(each == found[0] for each in found), "every rank raises the same error"
    return found[0]


def test_another_layout_on_one_rank_is_named_by_the_digest_before_the_forward(rank_facts):
    told = fault(rank_facts, "digest")
    assert told["ranks"] == [2]
    assert "rank 2 plans uniform_depth_2" in told["text"]
    assert "rank 0 plans depth_one" in told["text"]


def test_without_the_digest_checked_mode_names_the_rank_and_the_rows(rank_facts):
    told = fault(rank_facts, "checked")
    assert told["ranks"] == [2]
    assert "layers.0.delta.to_owners" in told["text"]
    assert "rank 2 expects" in told["text"]


def test_a_rank_that_skips_its_backward_is_named_with_what_it_does_instead(rank_facts):
    told = fault(rank_facts, "skipped backward")
    assert told["ranks"] == [1]
    assert "rank 1 is at all_reduce ahead forward on world" in told["text"]
    assert "rank 0 is at all_to_all_single layers.3.attention.to_sequence backward on cp" in told["text"]


def test_ranks_with_the_same_plan_pass(rank_facts):
    assert fault(rank_facts, "agreed digest") is None


@pytest.mark.parametrize(
    ("values", "odd"), [("aaaa", ()), ("aaba", (2,)), ("abab", (0, 1, 2, 3)), ("abcc", (0, 1)), ("a", ())]
)
def test_the_odd_ones_are_those_outside_the_majority(values, odd):
    assert odd_ones(values) == odd


def test_a_world_of_another_size_than_the_shape_is_refused(monkeypatch):
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    with pytest.raises(InputError, match="tp 2 x cp 1 on 4 ranks"):
        Topology.create(2, 1, "cpu")
