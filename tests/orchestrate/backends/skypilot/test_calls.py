"""Calls that always come back."""

import sys
import threading
from types import SimpleNamespace

import pytest

from orchestrate.backends.skypilot_calls import Calls, CallTimeoutError, RequestLostError
from orchestrate.backends.skypilot_sdk import ServerRequest


@pytest.fixture
def released():
    gate = threading.Event()
    yield gate
    gate.set()


def test_a_call_that_never_returns_is_left_behind(released, monkeypatch):
    monkeypatch.setattr("orchestrate.backends.skypilot_calls.FIRST_CALL_S", 0.05)
    with pytest.raises(CallTimeoutError, match="asking"):
        Calls(SimpleNamespace()).call("asking", released.wait, 0.05)


def test_standard_output_is_whole_again_after_a_call_that_never_returned(released, monkeypatch):
    monkeypatch.setattr("orchestrate.backends.skypilot_calls.FIRST_CALL_S", 0.05)
    before = sys.stdout
    with pytest.raises(CallTimeoutError):
        Calls(SimpleNamespace()).call("asking", released.wait, 0.05)
    assert sys.stdout is before


def test_what_skypilot_prints_reaches_nobody(capsys):
    assert Calls(SimpleNamespace()).call("asking", lambda: print("Running on cluster: x") or 7) == 7
    assert capsys.readouterr().out == ""


def test_an_error_of_the_call_is_raised_where_it_was_asked():
    with pytest.raises(ZeroDivisionError):
        Calls(SimpleNamespace()).call("asking", lambda: 1 / 0)


def test_a_request_is_looked_at_until_it_is_over():
    states = iter(["PENDING", "RUNNING", "RUNNING", "SUCCEEDED"])
    sdk = SimpleNamespace(
        requests=lambda ids: (ServerRequest(ids[0], "sky.down", next(states)),),
        result=lambda request: f"done {request}",
    )
    waits = []
    assert Calls(sdk).wait("deleting", "r1", 60, pause=waits.append) == "done r1"
    assert len(waits) == 3


def test_a_request_that_the_server_forgot_is_lost(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with pytest.raises(RequestLostError, match="r1"):
        Calls(SimpleNamespace(requests=lambda _ids: ())).wait("deleting", "r1", 60)


def test_a_request_that_takes_too_long_is_told_by_its_id():
    clock = iter(range(1000))
    sdk = SimpleNamespace(requests=lambda ids: (ServerRequest(ids[0], "sky.down", "RUNNING"),))
    with pytest.raises(CallTimeoutError, match="r1"):
        Calls(sdk, clock=lambda: next(clock)).wait("deleting", "r1", 30, pause=lambda _seconds: None)
