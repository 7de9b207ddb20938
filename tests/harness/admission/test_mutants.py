"""The mutation check stays in step with the code; `nox -s mutants` runs it whole and prints its table."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SPEC = importlib.util.spec_from_file_location("admission_mutants", HERE / "mutants.py")
mutants = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = mutants
SPEC.loader.exec_module(mutants)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_changes_exactly_one_place_and_still_compiles(mutant):
    text = (mutants.HARNESS / "admission" / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")


def test_every_decision_of_admission_is_flipped():
    decisions = {mutant.decision for mutant in mutants.MUTANTS}
    assert decisions >= {"allowance", "budget", "reserve", "order", "reduction", "clearing"}


def test_the_suite_kills_the_mutants_that_keep_plans_alive():
    done = subprocess.run(
        [sys.executable, str(HERE / "mutants.py"), "the kept plan outlives"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 mutants killed" in done.stdout
