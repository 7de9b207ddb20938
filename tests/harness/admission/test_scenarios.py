import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.admission.scenario import Scenario, load_scenarios, play
from harness.errors import InputError

REPOSITORY = Path(__file__).parents[3]
SCENARIOS = load_scenarios()
REQUIRED = {
    "fits",
    "splits",
    "release-then-wider",
    "release-then-same",
    "denied",
    "first-allowance",
    "budget-spent",
    "fragmentation",
    "one-starved-rank",
    "empty-peers",
    "oversized",
    "error-peer",
    "sub-request-refused",
}


def command(*argv):
    return subprocess.run(
        [sys.executable, "-m", "harness", "admission", *argv],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_a_scenario_says_must_happen_happens(name):
    result = play(SCENARIOS[name])
    assert result.differences == ()
    assert len(result.happened) == len(SCENARIOS[name].document["expect"])


def test_the_scenarios_cover_what_admission_must_do():
    assert set(SCENARIOS) >= REQUIRED


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_fails_when_any_fact_that_it_expects_is_another(name):
    for number, expected in enumerate(SCENARIOS[name].document["expect"]):
        for fact in expected:
            document = copy.deepcopy(SCENARIOS[name].document)
            document["expect"][number][fact] = "something else"
            assert not play(Scenario(name, "", document)).holds


def test_a_scenario_fails_when_an_admission_is_missing_from_what_it_expects():
    document = copy.deepcopy(SCENARIOS["budget-spent"].document)
    document["expect"].pop()
    assert "4 admissions expected, 5 happened" in play(Scenario("x", "", document)).differences


def test_the_command_plays_one_scenario_as_json():
    done = command("--scenario", "denied", "--json")
    assert done.returncode == 0
    (scenario,) = json.loads(done.stdout)["scenarios"]
    assert scenario["holds"]
    assert scenario["happened"][0]["ending"] == "split"
    (release,) = scenario["releases"]
    assert (release["denied"], release["then"]["action"]) == ("budget", "split")


def test_the_command_plays_all_and_says_how_many_hold():
    done = command("--scenario", "all")
    assert done.returncode == 0
    assert done.stdout.endswith(f"{len(SCENARIOS)} of {len(SCENARIOS)} scenarios hold\n")


def test_an_unknown_scenario_is_an_error_that_lists_what_exists():
    done = command("--scenario", "nope")
    assert done.returncode == 2
    assert "no scenario 'nope'" in done.stderr
    assert "release-then-wider" in done.stderr


def test_a_scenario_file_of_another_schema_or_with_a_name_twice_is_refused(tmp_path):
    file = tmp_path / "scenarios.json"
    file.write_text('{"schema": "other", "scenarios": []}')
    with pytest.raises(InputError, match="schema 'other'"):
        load_scenarios(file)
    document = json.loads((REPOSITORY / "harness/admission/scenarios.json").read_text())
    document["scenarios"].append(document["scenarios"][0])
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match="'fits' twice"):
        load_scenarios(file)


def test_every_release_is_recorded_with_its_bytes_its_time_and_the_budget_around_it():
    (first, second) = play(SCENARIOS["release-then-wider"]).as_json()["releases"]
    assert first["came_back_bytes"] == [70 << 20]
    assert first["free_after_bytes"][0] - first["free_before_bytes"][0] == 70 << 20
    assert first["reserved_before_bytes"][0] - first["reserved_after_bytes"][0] == 70 << 20
    assert first["elapsed_ms"] == [2.1]
    assert (first["budget_before"]["release_ms"], first["budget_after"]["release_ms"]) == (0, 2.1)
    assert first["then"] == {"action": "unsplit", "width": 2, "parts": 1}
    assert second["budget_before"]["forward_ms"] == 800
    assert second["budget_before"]["release_ms"] == first["budget_after"]["release_ms"]


def test_the_share_of_warm_up_and_the_overhead_with_and_without_it_are_told():
    ledger = play(SCENARIOS["budget-spent"]).as_json()["ledger"]
    assert ledger["warm_share"] == pytest.approx(37.5 / ledger["forward_ms"])
    assert ledger["overhead"] == pytest.approx(ledger["release_ms"] / ledger["forward_ms"])
    assert ledger["overhead_without_warm"] == pytest.approx(ledger["release_ms"] / (ledger["forward_ms"] - 37.5))
    assert ledger["overhead_without_warm"] > ledger["overhead"]
