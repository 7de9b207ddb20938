"""The table of SkyPilot's answers, and the codes of the clouds behind it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.capacity.skypilot import refusal
from orchestrate.capacity.taxonomy import Basis, Reason, classify
from orchestrate.verdict import Verdict

UNAVAILABLE = ["ResourcesUnavailableError", "Exception"]


def case(types, message="", **more):
    return refusal(
        {"types": types, "message": message, **more},
        asked={"accelerators": "H200:4"},
        where="slurm/bed",
        at="2026-11-30T18:00:00.000Z",
    )


def word(*args, **more):
    found = classify(case(*args, **more).offers)
    return found.verdict, found.reason


CATALOG = "Catalog does not contain any instances satisfying the request:\nTask(...)\nTo fix: relax the requirements."
BUSY = {"types": UNAVAILABLE, "message": "Failed to acquire resources in slurm/bed (gpu) for {H200:4}."}
ROWS = [
    ((UNAVAILABLE, CATALOG), {}, (Verdict.UNSATISFIABLE, Reason.NEVER_FITS)),
    (
        (UNAVAILABLE, "Failed to provision all possible launchable resources."),
        {"failover_history": [BUSY, BUSY]},
        (Verdict.CAPACITY, Reason.NOTHING_FREE),
    ),
    ((["ValueError", "Exception"], "Partition 'x' not found"), {}, (Verdict.UNSATISFIABLE, Reason.MISCONFIGURED)),
    (
        (["CommandError", "CommandFailureException", "SkyPilotExcludeArgsBaseException", "Exception"], "sinfo failed"),
        {"returncode": 1},
        (Verdict.INFRASTRUCTURE, Reason.PROVIDER_FAULT),
    ),
    (
        (["CommandError", "CommandFailureException", "Exception"], "ssh: connect to host: Connection refused"),
        {"returncode": 255},
        (Verdict.INFRASTRUCTURE, Reason.UNREACHABLE),
    ),
    (
        (["RuntimeError", "Exception"], "Failed to set up SkyPilot runtime"),
        {},
        (Verdict.INFRASTRUCTURE, Reason.NODE_FAULT),
    ),
    (
        (["InvalidSkyPilotConfigError", "ValueError", "Exception"], "unknown key"),
        {},
        (Verdict.UNSATISFIABLE, Reason.MISCONFIGURED),
    ),
    ((["InvalidClusterNameError", "Exception"], "bad name"), {}, (Verdict.UNSATISFIABLE, Reason.MISCONFIGURED)),
    ((["RequestCancelled", "Exception"], "cancelled"), {}, (Verdict.INFRASTRUCTURE, Reason.TAKEN_AWAY)),
    (
        (["ConnectionError", "RequestException", "OSError", "Exception"], "Remote end closed connection"),
        {},
        (Verdict.INFRASTRUCTURE, Reason.UNREACHABLE),
    ),
    (
        (["ApiServerConnectionError", "RuntimeError", "Exception"], "Could not connect to SkyPilot API server"),
        {},
        (Verdict.INFRASTRUCTURE, Reason.UNREACHABLE),
    ),
]


@pytest.mark.parametrize(("args", "more", "expected"), ROWS)
def test_each_recorded_answer_gets_its_verdict(args, more, expected):
    assert word(*args, **more) == expected


def test_an_unreachable_api_is_an_outage_though_its_class_says_that_resources_lack():
    types = ["KubeAPIUnreachableError", "ResourcesUnavailableError", "Exception"]
    assert word(types, "Catalog does not contain any instances") == (Verdict.INFRASTRUCTURE, Reason.UNREACHABLE)
    history = [{"types": types, "message": "timed out"}]
    assert word(UNAVAILABLE, "Failed to provision all", failover_history=history)[1] is Reason.UNREACHABLE


def test_the_whole_history_is_walked_and_a_mixed_one_says_so():
    nested = {
        "types": UNAVAILABLE,
        "message": "Failed to provision all",
        "failover_history": [
            {"types": ["KubeAPIUnreachableError", *UNAVAILABLE], "message": "no route", "where": "k8s/far"},
            {"types": UNAVAILABLE, "message": "x", "failover_history": [{**BUSY, "where": "slurm/bed/gpu"}]},
        ],
    }
    found = case(UNAVAILABLE, "Failed to provision all", failover_history=[nested])
    assert [(offer.where, offer.reason) for offer in found.offers] == [
        ("k8s/far", Reason.UNREACHABLE),
        ("slurm/bed/gpu", Reason.NOTHING_FREE),
    ]
    assert classify(found.offers).mixed
    assert classify(found.offers).verdict is Verdict.CAPACITY


CODES = {
    "InsufficientInstanceCapacity": Reason.STOCKOUT,
    "ZONE_RESOURCE_POOL_EXHAUSTED": Reason.STOCKOUT,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": Reason.STOCKOUT,
    "SkuNotAvailable": Reason.STOCKOUT,
    "VcpuLimitExceeded": Reason.QUOTA_USED,
    "MaxSpotInstanceCountExceeded": Reason.QUOTA_USED,
    "QUOTA_EXCEEDED": Reason.QUOTA_USED,
    "UnauthorizedOperation": Reason.DENIED,
    "RequestLimitExceeded": Reason.PROVIDER_FAULT,
}


@pytest.mark.parametrize("code", sorted(CODES))
def test_the_codes_of_the_clouds_are_known_as_fields_and_in_a_message(code):
    field = case(UNAVAILABLE, "it failed", errors=[{"code": code, "message": "details"}]).offers[0]
    assert (field.reason, field.basis) == (CODES[code], Basis.STRUCTURE)
    told = case(["CloudError", "Exception"], f"An error occurred ({code}) when calling RunInstances").offers[0]
    assert (told.reason, told.basis) == (CODES[code], Basis.TEXT)


def test_a_longer_word_that_holds_a_code_is_not_that_code():
    assert case(["Exception"], "MyVcpuLimitExceededHandler broke").offers[0].reason is Reason.PROVIDER_FAULT


def test_a_quota_of_zero_is_too_small_for_ever():
    gcp = "Quota 'NVIDIA_H200_GPUS' exceeded.  Limit: 0.0 in region us-west1."
    assert word(UNAVAILABLE, "x", errors=[{"code": "QUOTA_EXCEEDED", "message": gcp}])[1] is Reason.QUOTA_TOO_SMALL
    some = "Quota 'NVIDIA_H200_GPUS' exceeded.  Limit: 8.0 in region us-west1."
    assert word(UNAVAILABLE, "x", errors=[{"code": "QUOTA_EXCEEDED", "message": some}])[1] is Reason.QUOTA_USED


@pytest.mark.parametrize(
    ("types", "message", "expected"),
    [
        (UNAVAILABLE, "Job 7 did not get nodes allocated within 60 seconds. Last state: PENDING", Reason.NOTHING_FREE),
        (["TimeoutError", "OSError", "Exception"], "Job 7 did not get nodes allocated", Reason.NOTHING_FREE),
        (["TimeoutError", "OSError", "Exception"], "the read operation timed out", Reason.UNREACHABLE),
        (UNAVAILABLE, "No GPU nodes matching 'H300' (count>=4) found on Slurm cluster", Reason.NEVER_FITS),
        (UNAVAILABLE, "invalid cloud credentials: x", Reason.DENIED),
        (UNAVAILABLE, "invalid cloud config: x", Reason.MISCONFIGURED),
        (["ClusterSetUpError", "Exception"], "ray did not start", Reason.NODE_FAULT),
        (["ApiServerConnectionError", "RuntimeError", "Exception"], "x", Reason.UNREACHABLE),
        (["SomethingElse", "Exception"], "x", Reason.PROVIDER_FAULT),
        (
            ["CommandError", "Exception"],
            "slurm_load_jobs error: Unable to contact slurm controller",
            Reason.UNREACHABLE,
        ),
    ],
)
def test_what_stands_next_to_the_recorded_answers(types, message, expected):
    assert case(types, message).offers[0].reason is expected


def test_a_quota_code_of_a_field_is_read_whatever_its_message_holds():
    found = case(UNAVAILABLE, "x", errors=[{"code": "VcpuLimitExceeded", "message": None}, "no error"])
    assert found.offers[0].reason is Reason.QUOTA_USED


def test_of_several_codes_one_that_can_come_true_later_speaks():
    message = "UnauthorizedOperation in a; InsufficientInstanceCapacity in b"
    assert case(["CloudError", "Exception"], message).offers[0].reason is Reason.STOCKOUT


def test_what_only_the_text_tells_is_marked_as_text():
    assert case(UNAVAILABLE, CATALOG).offers[0].basis is Basis.TEXT
    assert case(UNAVAILABLE, "Failed to acquire resources").offers[0].basis is Basis.STRUCTURE


def test_a_cause_tells_more_than_a_plain_error_around_it():
    cause = {"types": ["KubeAPIUnreachableError", *UNAVAILABLE], "message": "gone"}
    assert word(["RuntimeError", "Exception"], "launch failed", cause=cause)[1] is Reason.UNREACHABLE


_TEXT = st.text(max_size=40) | st.sampled_from([CATALOG, "QUOTA_EXCEEDED", "unreachable", "limit: 0"])
_TYPES = st.lists(
    st.sampled_from([*UNAVAILABLE, "KubeAPIUnreachableError", "ValueError", "RuntimeError", "X"]), max_size=4
)
_ENTRY = st.fixed_dictionaries({"types": _TYPES, "message": _TEXT})
_TREE = st.recursive(_ENTRY, lambda entry: st.fixed_dictionaries(
    {"types": _TYPES, "message": _TEXT, "failover_history": st.lists(entry, max_size=3)}), max_leaves=8)  # fmt: skip


@given(_TREE)
def test_any_exception_makes_a_case_and_an_outage_is_never_read_as_a_lack(tree):
    found = refusal(tree, asked={}, where="w", at="t")
    assert found.offers
    classify(found.offers)
    if "KubeAPIUnreachableError" in tree["types"]:
        assert found.offers[-1].reason is Reason.UNREACHABLE
