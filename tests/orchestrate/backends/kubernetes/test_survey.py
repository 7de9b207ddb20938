"""What an audit finds on a cluster and takes away, with no local state."""

import dataclasses

import pytest

from orchestrate.backends.kubernetes_api import Api
from orchestrate.backends.kubernetes_client import ApiError, connect
from orchestrate.backends.kubernetes_survey import KubernetesSurveyor


@pytest.fixture
def surveyor(site):
    return lambda namespace="team": KubernetesSurveyor(Api(connect(None, site.environ)), namespace)


def test_a_run_is_found_by_its_labels_with_everything_it_has(site, surveyor):
    backend, _ = site.ready()
    survey = surveyor().survey()
    (owned,) = survey.owned
    assert survey.unknown == ()
    assert len(survey.looked) == 3
    assert (owned.run_id, owned.owner, owned.expires_at) == (
        backend._ownership.run_id,
        "ann",
        "2099-01-01T00:00:00.000Z",
    )
    assert owned.gpus == 4
    assert sorted(item.split()[0] for item in owned.items) == ["configmap", "job", "pod"]
    assert owned.age_s >= 0


def test_all_namespaces_are_looked_at_where_none_is_named(site, surveyor):
    site.ready()
    survey = surveyor(None).survey()
    assert len(survey.owned) == 1
    assert "all namespaces" in survey.looked[0]


def test_exactly_one_run_is_reaped_and_a_neighbour_with_look_alike_marks_lives(site, surveyor):
    backend, _ = site.ready()
    mine = backend._ownership
    neighbour = site.backend(ownership=dataclasses.replace(mine, token="f" * 32), accelerators="none")
    request = site.request()
    neighbour._wanted = None
    rendered = neighbour._render(request)
    tree = rendered.job
    tree["metadata"]["name"] = "orchestrate-smoke-r1x"
    site.send("POST", "/apis/batch/v1/namespaces/team/jobs", tree)
    found = {owned.handle["token"]: owned for owned in surveyor().survey().owned}
    assert set(found) == {mine.token, "f" * 32}
    assert surveyor().reap(found[mine.token]) == ()
    assert {owned.handle["token"] for owned in surveyor().survey().owned} == {"f" * 32}


def test_what_has_another_uid_by_now_is_not_reaped(site, surveyor):
    site.ready()
    (owned,) = surveyor().survey().owned
    objects = [[kind, name, "0" * 8] for kind, name, _ in owned.handle["objects"]]
    assert surveyor().reap(dataclasses.replace(owned, handle={**owned.handle, "objects": objects})) == ()
    assert len(surveyor().survey().owned) == 1


def test_what_changed_its_marks_since_it_was_planned_is_left_alone_and_said(site, surveyor):
    site.ready()
    (owned,) = surveyor().survey().owned
    left = surveyor().reap(dataclasses.replace(owned, handle={**owned.handle, "token": "e" * 32}))
    assert len(left) == 3
    assert all("left alone" in words for words in left)
    assert len(surveyor().survey().owned) == 1


def test_a_question_without_an_answer_is_unknown_and_never_absence(site):
    class Down:
        server, context, namespace = "https://x", "x", "team"

        def send(self, *_):
            raise ApiError(0, "Reset", "gone")

    survey = KubernetesSurveyor(Api(Down(), sleep=lambda _seconds: None), "team").survey()
    assert survey.owned == ()
    assert survey.looked == ()
    assert len(survey.unknown) == 3
