"""The rendered files, byte for byte."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import yaml

WRITER = runpy.run_path(str(Path(__file__).with_name("write_golden.py")))
CASES = WRITER["cases"]()
FOLDER = WRITER["FOLDER"]


@pytest.mark.parametrize("case", CASES)
def test_a_render_is_its_golden_file(case):
    assert CASES[case] == (FOLDER / f"{case}.yaml").read_text(encoding="utf-8"), (
        "if this change is meant: python tests/orchestrate/render/write_golden.py"
    )


def test_every_golden_file_is_rendered():
    assert {path.name for path in FOLDER.iterdir()} == {f"{case}.yaml" for case in CASES}


def test_the_same_input_gives_the_same_bytes():
    assert WRITER["cases"]() == CASES


@pytest.mark.parametrize("case", CASES)
def test_no_parser_can_take_a_string_for_something_else(case):
    # YAML 1.1 and 1.2 disagree on these; none of them may stand unquoted.
    for line in CASES[case].splitlines():
        value = line.split(": ", 1)[-1].removeprefix("- ").strip().lower()
        if value in {"y", "n", "yes", "no", "on", "off", "~"}:
            pytest.fail(f"unquoted {value!r} in {line!r}")
    assert list(yaml.safe_load_all(CASES[case]))
