"""The node's contract survives rendering: what the plan gives the node is what the rendered document gives it."""

import pytest

from orchestrate.backends.kubernetes_job import wanted
from orchestrate.backends.protocol import Ownership, Request
from orchestrate.backends.skypilot_settings import SkySettings

KEYS = ("cal-text|tiny-hybrid|L4|tp1|cp4|g1", "cal-text|tiny-hybrid|L4|tp1|cp4|g4")
EVERY_RUN = {"CELL_SET": "text", "RUN_ID": "r1", "REPEAT": "3"}
CONTRACTS = (
    EVERY_RUN | {"SCHEDULE": "racing"},
    EVERY_RUN | {"SCHEDULE": "racing", "TEXT_GROUPS": "1 4"},
    EVERY_RUN | {"TEXT_GROUPS": "1 4", "CELL_KEYS": KEYS[1]},
    EVERY_RUN | {"CELL_KEYS": " ".join(KEYS)},
)


def sky(request, ownership):
    settings = SkySettings.parse({"infra": "slurm/bed", "accelerators": "H200:4"})
    return settings.render(ownership, request).documents[0].tree["envs"]


def k8s(request, ownership):
    settings = {"accelerators": "H200:4", "provision_timeout_s": 20}
    made = wanted(request, settings, ownership, namespace="team", server="https://a", context="c")
    (container,) = made.job["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item["value"] for item in container["env"] if "value" in item}


@pytest.mark.parametrize("contract", CONTRACTS, ids=" ".join)
@pytest.mark.parametrize("rendered", [sky, k8s])
def test_what_the_plan_gives_the_node_reaches_it_and_nothing_else_of_the_contract(tmp_path, rendered, contract):
    request = Request(
        cell_set="text", cells=KEYS, device="cpu", ranks=4, environment=contract, evidence=tmp_path, logs=tmp_path,
        deadline_s=3600.0, reserve_s=900.0,
    )  # fmt: skip
    found = rendered(request, Ownership("r1", "a" * 32, "ann", "2099-01-01T00:00:00.000Z", tmp_path))
    names = {*EVERY_RUN, "SCHEDULE", "TEXT_GROUPS", "CELL_KEYS"}
    assert {name: value for name, value in found.items() if name in names} == contract


@pytest.mark.parametrize("rendered", [sky, k8s])
def test_the_fixed_schedule_is_what_a_node_does_without_a_word(tmp_path, rendered):
    contract = EVERY_RUN | {"SCHEDULE": "fixed"}
    request = Request(
        cell_set="text", cells=KEYS, device="cpu", ranks=4, environment=contract, evidence=tmp_path, logs=tmp_path,
        deadline_s=3600.0, reserve_s=900.0,
    )  # fmt: skip
    found = rendered(request, Ownership("r1", "a" * 32, "ann", "2099-01-01T00:00:00.000Z", tmp_path))
    assert "SCHEDULE" not in found
    assert "TEXT_GROUPS" not in found
