"""One API server, asked within budgets."""

import json

import pytest

from orchestrate.backends.kubernetes_api import Api, Deleted, Kind
from orchestrate.backends.kubernetes_client import NO_ANSWER, ApiError

RESET = ApiError(NO_ANSWER, "Reset", "the connection was reset")


class Scripted:
    """Answers in order; an exception is raised. Keeps what was asked."""

    server = context = namespace = "x"

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def send(self, method, path, query, body, timeout_s):
        self.asked.append((method, path, dict(query), body, timeout_s))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer)


@pytest.fixture
def scripted():
    def make(*answers):
        transport, slept = Scripted(*answers), []
        time = [0.0]

        def sleep(seconds):
            slept.append(seconds)
            time[0] += seconds

        return Api(transport, clock=lambda: time[0], sleep=sleep), transport, slept

    return make


def page(names, rest=""):
    return {"items": [{"metadata": {"name": name}} for name in names], "metadata": {"continue": rest}}


def names(items):
    return [item["metadata"]["name"] for item in items]


def test_a_list_is_read_to_its_last_page(scripted):
    api, transport, _ = scripted(page("ab", "more"), page("c"))
    assert names(api.items("/jobs", api.budget(60), labelSelector="x=y")) == ["a", "b", "c"]
    assert [asked[2].get("continue") for asked in transport.asked] == [None, "more"]
    assert all(asked[2]["labelSelector"] == "x=y" for asked in transport.asked)


def test_a_page_that_expired_makes_the_whole_list_be_asked_for_anew(scripted):
    expired = ApiError(410, "Expired", "the continue token is too old")
    api, transport, _ = scripted(page("ab", "more"), expired, page("bc"))
    assert names(api.items("/jobs", api.budget(60))) == ["b", "c"]
    assert "continue" not in transport.asked[2][2]


def test_a_list_that_always_expires_is_an_error_and_not_empty(scripted):
    expired = ApiError(410, "Expired", "the continue token is too old")
    api, _, _ = scripted(*[page("a", "more"), expired] * 3)
    with pytest.raises(ApiError, match="changes faster than it can be listed") as caught:
        api.items("/jobs", api.budget(60))
    assert caught.value.is_transient  # no refusal: a list that settles will be answered


def test_what_the_server_asks_us_to_wait_is_waited(scripted):
    api, _, slept = scripted(ApiError(429, "TooManyRequests", "busy", retry_after_s=7.0), {"kind": "Job"})
    assert api.get("/x", api.budget(60)) == {"kind": "Job"}
    assert slept == [7.0]


def test_a_wait_that_does_not_fit_the_budget_is_not_begun(scripted):
    api, _, slept = scripted(ApiError(429, "TooManyRequests", "busy", retry_after_s=70.0))
    with pytest.raises(ApiError, match="429"):
        api.get("/x", api.budget(60))
    assert slept == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_a_clear_refusal_is_not_asked_about_again(scripted, status):
    api, transport, _ = scripted(ApiError(status, "No", "no"))
    with pytest.raises(ApiError):
        api.get("/x", api.budget(60))
    assert len(transport.asked) == 1


def test_a_create_is_sent_once_and_the_server_is_told_when_to_give_it_up(scripted):
    api, transport, _ = scripted(RESET)
    with pytest.raises(ApiError):
        api.post("/x", {"kind": "Job"}, api.budget(60))
    assert [(asked[0], asked[2]) for asked in transport.asked] == [("POST", {"timeout": "10s"})]


def test_a_delete_names_the_uid_and_is_repeated(scripted):
    api, transport, _ = scripted(RESET, {"kind": "Status"})
    assert api.delete(Kind.JOB, "team", "a", "u1", api.budget(60)) is Deleted.ASKED
    assert [asked[3]["preconditions"] for asked in transport.asked] == [{"uid": "u1"}] * 2
    assert transport.asked[0][3]["propagationPolicy"] == "Foreground"


def test_a_delete_that_acted_before_its_answer_was_lost_finds_nothing_the_second_time(scripted):
    api, _, _ = scripted(RESET, ApiError(404, "NotFound", "gone"))
    assert api.delete(Kind.JOB, "team", "a", "u1", api.budget(60)) is Deleted.NOT_THERE


def test_an_object_of_another_uid_is_told_from_a_conflict(scripted):
    conflict = ApiError(409, "Conflict", "uid in precondition: u1, uid in object meta: u2")
    api, _, _ = scripted(conflict, {"metadata": {"uid": "u2"}})
    assert api.delete(Kind.JOB, "team", "a", "u1", api.budget(60)) is Deleted.ANOTHER
    api, _, _ = scripted(conflict, {"metadata": {"uid": "u1"}})
    with pytest.raises(ApiError, match="409"):
        api.delete(Kind.JOB, "team", "a", "u1", api.budget(60))


def test_only_not_found_is_absence(scripted):
    api, _, _ = scripted(ApiError(404, "NotFound", "gone"))
    assert api.find(Kind.JOB, "team", "a", api.budget(60)) is None
    api, _, _ = scripted(*[ApiError(503, "ServiceUnavailable", "no endpoints")] * 4)
    with pytest.raises(ApiError):
        api.find(Kind.JOB, "team", "a", api.budget(60))
