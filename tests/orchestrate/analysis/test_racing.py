import numpy as np
import pytest

from orchestrate.analysis.racing import decided, race, simulate
from orchestrate.analysis.random_bits import Stream
from orchestrate.receipts.racing import ERROR_PROBABILITY, t_quantile


@pytest.mark.parametrize(
    ("tail", "freedom", "expected"),
    # Tables of Student's t: two-sided 95%, 99%, 99.9%.
    [
        (0.025, 2, 4.303),
        (0.025, 10, 2.228),
        (0.005, 4, 4.604),
        (0.005, 30, 2.750),
        (0.0005, 6, 5.959),
        (0.0005, 60, 3.460),
    ],
)
def test_quantiles_are_those_of_the_tables(tail, freedom, expected):
    assert t_quantile(tail, freedom) == pytest.approx(expected, abs=6e-4)


def test_the_closed_form_is_for_even_degrees_of_freedom():
    with pytest.raises(ValueError, match="3 degrees of freedom"):
        t_quantile(0.01, 3)


def rounds(*means, noise=0.01, repeat=8, campaigns=200, seed=3):
    normals = Stream(seed).normals(campaigns, len(means), repeat)
    return np.array(means)[None, :, None] * (1 + noise * normals)


def test_nothing_is_decided_before_the_third_round():
    assert not decided(rounds(1.0, 9.0, repeat=2), np.ones((200, 2), bool), layouts=2, repeat=8).any()


def test_a_layout_of_twice_the_time_is_dropped_at_the_third_round_and_ends_the_race():
    found = race(rounds(1.0, 2.0))
    assert (found.rounds == 3).all()
    assert (found.selected == 0).all()


def test_equal_layouts_are_measured_to_the_end():
    found = race(rounds(1.0, 1.0, 5.0))
    assert (found.rounds[:, :2] == 8).mean() > 0.98
    assert (found.rounds[:, 2] == 3).mean() > 0.98


def test_a_leader_is_dropped_falsely_less_often_than_stated():
    found = race(rounds(1.0, 1.0, 1.0, 1.0, campaigns=4000, noise=0.02))
    assert (found.rounds < 8).any(axis=1).mean() <= 10 * ERROR_PROBABILITY
    assert (found.selected != found.fixed).mean() <= 10 * ERROR_PROBABILITY


def test_one_layout_is_measured_to_the_end():
    assert (race(rounds(1.0)).rounds == 8).all()


def test_the_simulation_saves_forty_percent_and_keeps_the_selection_in_95_percent_of_campaigns(shared_study):
    summary, races = simulate(shared_study().cells, campaigns=200)
    assert summary["saved_share"] >= 0.4
    assert summary["least_saved_share"] >= 0.4
    assert summary["unchanged_campaigns"] >= 190
    assert summary["rounds_fixed"] == 435 * 8
    assert len(races) == 58
