"""Exchanges run backward on every rank in one order, whatever its share and its loss."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(600)  # the four ranks share two cores with whatever else runs


def tags(calls: list[list[str]], direction: str) -> list[str]:
    """The exchanges of one pass; without the digest, the loss and the gradient sums, which have one direction."""
    return [tag for _, _, way, tag in calls if way == direction and tag.startswith(("layers.", "exchange"))]


@pytest.fixture(scope="session")
def orders(rank_facts):
    found = [order for facts in (rank_facts[0], rank_facts[2]) for order in facts["orders"]]
    assert {(order["tp"], order["cp"]) for order in found} == {(1, 4), (2, 2), (1, 2), (2, 1)}
    return found


def test_all_ranks_issue_the_same_collectives_in_the_same_order_for_every_layout(orders):
    for order in orders:
        assert len(order["orders"]) == order["tp"] * order["cp"]
        assert all(calls == order["orders"][0] for calls in order["orders"]), (order["rows"], order["label"])


def test_the_backward_order_is_the_forward_order_reversed(orders):
    for order in orders:
        forward = tags(order["orders"][0], "forward")
        assert forward
        assert tags(order["orders"][0], "backward") == forward[::-1], (order["rows"], order["label"])


def test_a_deeper_layout_hands_states_on_once_for_each_level(orders):
    deep = next(order for order in orders if order["cp"] == 4 and order["label"] == "uniform_depth_2")
    first_layer = [tag for tag in tags(deep["orders"][0], "forward") if tag.startswith("layers.0.delta")]
    assert first_layer == [
        "layers.0.delta.to_owners",
        "layers.0.delta.states.1",
        "layers.0.delta.states.2",
        "layers.0.delta.from_owners",
    ]


def test_exchanges_that_a_rank_does_not_use_or_uses_in_another_order_still_run_in_the_chain_s_order(rank_facts):
    expected = [f"exchange {index}" for index in (2, 1, 0)]
    for facts in rank_facts:
        assert tags(facts["chain"]["calls"], "forward") == expected[::-1]
        assert tags(facts["chain"]["calls"], "backward") == expected


def test_an_exchange_brings_each_peer_s_gradient_home_and_zero_from_a_peer_that_used_nothing(rank_facts):
    for facts in rank_facts:
        first, second, third = facts["chain"]["gradients"]
        assert first == third == [0, 2, 3, 4]
        assert second is None, "it asked for no gradient, and was exchanged backward all the same"
