"""Which attempt follows one that was refused: a pure decision, told by the clock of the caller."""

import pytest

from orchestrate.lifecycle.attempts import LEAST_TRY_S, LONGEST_PAUSE_S, NextTry, Tried, next_try
from orchestrate.verdict import Verdict

FULL, NEVER, OUTAGE = Verdict.CAPACITY, Verdict.UNSATISFIABLE, Verdict.INFRASTRUCTURE


def after(*tried, places=1, left_s=1e9, retry_after_s=None):
    history = [Tried(place, verdict) for place, verdict in tried]
    return next_try(history, places, left_s=left_s, retry_after_s=retry_after_s, first_pause_s=10)


@pytest.mark.parametrize("verdict", [FULL, NEVER, OUTAGE])
def test_every_place_is_asked_once_whatever_the_others_said_and_without_a_wait(verdict):
    assert after((0, verdict), places=2, left_s=-5.0) == NextTry(1, "elsewhere", 0.0)


@pytest.mark.parametrize("verdict", [NEVER, OUTAGE])
def test_only_a_full_place_is_asked_again(verdict):
    assert after((0, verdict)) is None
    assert after((0, FULL), (1, verdict), places=2) == NextTry(0, "again", 10.0)


def test_a_place_that_said_never_since_is_not_asked_again():
    assert after((0, FULL), (0, NEVER)) is None


def test_the_pause_doubles_with_each_round_up_to_a_longest():
    rounds = [after(*[(0, FULL)] * count).after_s for count in (1, 2, 3, 4, 5, 6, 7)]
    assert rounds == [10, 20, 40, 80, 160, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_within_a_round_the_other_full_places_are_asked_without_a_pause():
    assert after((0, FULL), (1, FULL), (0, FULL), places=2) == NextTry(1, "again", 0.0)
    assert after((0, FULL), (1, FULL), (0, FULL), (1, FULL), places=2) == NextTry(0, "again", 20.0)


def test_what_the_provider_advised_is_waited_for_where_it_is_longer():
    assert after((0, FULL), retry_after_s=60.0).after_s == 60
    assert after((0, FULL), retry_after_s=1.0).after_s == 10


def test_nothing_begins_that_has_no_time_left_and_the_last_try_comes_before_the_end():
    assert after((0, FULL), left_s=LEAST_TRY_S - 0.1) is None
    assert after((0, FULL), left_s=LEAST_TRY_S + 3.0).after_s == 3.0
    assert after((0, FULL), (1, FULL), (0, FULL), places=2, left_s=1.0) is None
