"""What the manifest expects of each set."""

import pytest

from orchestrate.cells.cell_set import load_cell_sets, load_exclusions
from orchestrate.cells.manifest import load_manifest
from orchestrate.errors import UsageError


def test_it_lists_each_cell_of_each_set_in_the_order_of_the_set():
    manifest = load_manifest()
    for cell_set in load_cell_sets():
        assert [one.key for one in manifest.sets[cell_set.name]] == [cell.key for cell in cell_set.cells]
    assert manifest.exclusions == load_exclusions()


def test_candidates_are_known_but_for_a_private_corpus():
    for name, expected in load_manifest().sets.items():
        for one in expected:
            assert (one.candidates is None) == one.key.startswith("cal-ellavox|"), name
            assert one.candidates is None or one.candidates[0] == "no_sharing"


def test_candidates_of_a_cell_that_the_set_does_not_have_are_refused():
    manifest = load_manifest()
    key = "cal-grpo-tiny|tiny-hybrid|L4|tp1|cp4"
    assert manifest.candidates("smoke", [key])[key][0] == "no_sharing"
    with pytest.raises(UsageError, match="does not expect"):
        manifest.candidates("text", [key])
