"""What a driving process makes of itself for a backend."""

from pathlib import Path

import pytest

from orchestrate.backends.catalogue import PROVIDERS
from orchestrate.lifecycle import driving
from orchestrate.lifecycle.driving import Driver, Place


@pytest.mark.parametrize("name", list(PROVIDERS))
def test_orphans_are_adopted_where_the_run_is_on_this_machine_alone(name, monkeypatch, tmp_path):
    """Nobody reaps what a provider's client leaves: a launch through SkyPilot had 350 zombies after eight minutes."""
    adopting, places = [], []
    monkeypatch.setattr(driving, "become_subreaper", lambda: adopting.append(name) or True)
    monkeypatch.setattr(driving, "open_backend", lambda *arguments: places.append(arguments[-1]))
    place = Place(tmp_path, tmp_path, Path.home(), tmp_path, tmp_path / "none", {})
    Driver(place, narrator=None).open_backend(name, None, {})
    assert (adopting == [name]) is places[0].adopts_orphans is (name == "local")
