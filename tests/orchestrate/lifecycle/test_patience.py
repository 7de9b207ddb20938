"""A provider's call in a thread of its own: it may hang, and the launcher does not."""

import threading
from types import SimpleNamespace

import pytest

from orchestrate.errors import BackendError
from orchestrate.lifecycle.patience import call_with_patience
from orchestrate.lifecycle.warden_keeper import readable
from orchestrate.lifecycle.watch import StoppedError


class Watch:
    """Waits for the descriptor alone; each wait takes a second of its own clock."""

    def __init__(self):
        self.signals = SimpleNamespace(first=None)
        self.now = 0.0

    def clock(self):
        return self.now

    def wait(self, seconds, fd=None):
        self.now += 1.0
        readable((fd,), 0.05)


def call(what, *, pause=lambda seconds: None, watch=None, budget_s=1000.0, grace_s=5.0):
    return call_with_patience(what, pause=pause, watch=watch or Watch(), budget_s=budget_s, grace_s=grace_s)


def test_what_the_call_returns_or_raises_comes_through():
    assert call(lambda pause: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call(lambda pause: 1 / 0)


def test_every_pause_is_carried_out_by_the_thread_that_waits():
    paused = []

    def what(pause):
        for seconds in (1.0, 2.0, 3.0):
            pause(seconds)
        return threading.current_thread()

    thread = call(what, pause=lambda seconds: paused.append((seconds, threading.current_thread())))
    assert thread is not threading.current_thread()
    assert paused == [(seconds, threading.current_thread()) for seconds in (1.0, 2.0, 3.0)]


def test_what_a_pause_raises_the_call_gets_and_may_clean_up():
    cleaned = []

    def what(pause):
        try:
            pause(1.0)
        finally:
            cleaned.append(True)

    def stop(seconds):
        raise StoppedError

    with pytest.raises(StoppedError):
        call(what, pause=stop)
    assert cleaned == [True]


def test_a_call_that_hangs_is_given_up_some_seconds_after_a_stop_signal_and_ends_at_its_next_pause():
    release, ended, watch = threading.Event(), threading.Event(), Watch()
    watch.signals.first = "SIGINT"

    def what(pause):
        release.wait()
        try:
            pause(0)
        except StoppedError:
            ended.set()

    with pytest.raises(StoppedError):
        call(what, watch=watch)
    assert watch.now <= 10
    release.set()
    assert ended.wait(30)


def test_a_call_that_hangs_beyond_its_time_is_a_fault_of_the_provider():
    release, watch = threading.Event(), Watch()
    with pytest.raises(BackendError, match="did not come back"):
        call(lambda pause: release.wait(), watch=watch, budget_s=20.0)
    assert 25 <= watch.now <= 30
    release.set()
