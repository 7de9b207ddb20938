"""Absence is positive: asked twice, far enough apart, and answered both times."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from orchestrate.backends.protocol import Answer, CensusPath, Look, Resource
from orchestrate.lifecycle.census import GAP_S, take_census

CLEAN = ((), ())
LEFT = ((Resource("process", "7:7"),), ())
UNKNOWN = ((), ("processes",))


class Asked:
    census_path = CensusPath.DIRECT

    def __init__(self, answers):
        self.answers = answers
        self.turn = count()
        self.time = 0.0

    def census(self):
        remaining, unknown = self.answers[min(next(self.turn), len(self.answers) - 1)]
        return Look(f"t{self.time}", (Answer("processes", "asked"),), remaining, unknown)

    def pause(self, seconds):
        self.time += seconds

    def take(self):
        return take_census(self, pause=self.pause, clock=lambda: self.time)


def test_two_clean_looks_confirm():
    census = Asked([CLEAN]).take()
    assert (census.confirmed, len(census.looks), census.gap_s) == (True, 2, GAP_S)


def test_one_clean_look_after_a_dirty_one_does_not_confirm_until_a_second_is_clean():
    census = Asked([LEFT, CLEAN]).take()
    assert (census.confirmed, len(census.looks)) == (True, 3)


def test_something_that_stays_is_named_and_not_confirmed():
    census = Asked([LEFT]).take()
    assert (census.confirmed, census.remaining) == (False, ("process 7:7",))


def test_a_question_without_an_answer_is_unknown_and_not_absence():
    census = Asked([UNKNOWN]).take()
    assert (census.confirmed, census.unknown) == (False, ("processes",))


def test_looks_that_lie_too_close_together_do_not_confirm():
    asked = Asked([CLEAN])
    asked.pause = lambda seconds: setattr(asked, "time", asked.time + 0.9)
    census = asked.take()
    assert not census.confirmed


@given(st.lists(st.sampled_from([CLEAN, LEFT, UNKNOWN]), min_size=1, max_size=8))
def test_it_ends_and_confirms_exactly_when_its_last_two_looks_were_clean(answers):
    census = Asked(answers).take()
    assert 2 <= len(census.looks) <= 6
    assert census.confirmed == all(look.is_clean for look in census.looks[-2:])
