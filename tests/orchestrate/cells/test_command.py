"""`orchestrate cells` as a person or a script calls it."""

import json
from dataclasses import dataclass

import click
import pytest

from orchestrate.cells.check import Disagreement
from orchestrate.commands import cells as command_module
from orchestrate.commands.cells import command
from orchestrate.errors import OrchestrateError, SelectionError

VARIABLES = ("CELL_SET", "ELLAVOX_GROUPS", "TEXT_GROUPS")


@dataclass
class Answer:
    """What one call of the command came to. `result` is the exit code or the exception."""

    result: object
    stdout: str
    stderr: str


@pytest.fixture
def cells(monkeypatch, capsys):
    def run(*argv, **env):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        try:
            result = command.main(argv, prog_name="orchestrate cells", standalone_mode=False)
        except (OrchestrateError, click.ClickException) as error:
            result = error
        return Answer(result, *capsys.readouterr())

    return run


TWO = ["cal-ellavox|Qwen/Qwen3.5-4B|L32|tp1|cp4|g1", "cal-ellavox|Qwen/Qwen3.5-4B|L32|tp1|cp4|g4"]


@pytest.mark.parametrize("subcommand", ["list", "show"])
def test_two_groups_by_option_are_two_cells(cells, subcommand):
    answer = cells(subcommand, "--cell-set", "ellavox", "--groups", "1,4", "--json")
    document = json.loads(answer.stdout)
    found = document["cell_sets"][0]["cells"] if subcommand == "list" else [one["key"] for one in document["cells"]]
    assert (answer.result, found) == (0, TWO)


def test_two_groups_by_environment_are_two_cells(cells):
    assert cells("list", CELL_SET="ellavox", ELLAVOX_GROUPS="1 4").stdout.splitlines() == TWO


def test_the_option_wins_and_only_standard_error_says_so(cells):
    answer = cells("list", "--cell-set", "ellavox", "--groups", "1,4", "--json", CELL_SET="main", ELLAVOX_GROUPS="2")
    assert json.loads(answer.stdout)["cell_sets"][0]["cells"] == TWO
    assert "note: --cell-set ellavox wins over CELL_SET='main'" in answer.stderr
    assert "note: --groups '1,4' wins over ELLAVOX_GROUPS='2'" in answer.stderr


def test_list_without_a_selection_lists_every_set(cells):
    document = json.loads(cells("list", "--json").stdout)
    assert {one["name"]: len(one["cells"]) for one in document["cell_sets"]} == {
        "main": 7,
        "hetero": 3,
        "ellavox": 8,
        "tp2": 7,
        "cp2": 15,
        "single": 18,
        "smoke": 4,
        "text": 8,
    }
    lines = cells("list").stdout.splitlines()
    assert len(lines) == 9
    assert any("ellavox" in line and "ELLAVOX_GROUPS (0 1 2 3 4 5 6 7)" in line for line in lines)


@pytest.mark.parametrize("subcommand", ["list", "show", "check"])
@pytest.mark.parametrize(
    "argv",
    [("--cell-set", "nothing"), ("--cell-set", "ellavox", "--groups", ""), ("--cell-set", "main", "--groups", "1")],
)
def test_a_wrong_selection_is_refused_by_every_subcommand(cells, subcommand, argv):
    answer = cells(subcommand, *argv)
    assert isinstance(answer.result, SelectionError)
    assert answer.stdout == ""


def test_groups_without_a_set_are_refused(cells):
    assert isinstance(cells("list", "--groups", "1").result, SelectionError)


@pytest.mark.parametrize("option", ["--cell-set", "--groups"])
def test_an_option_given_twice_is_refused(cells, option):
    answer = cells("list", "--cell-set", "ellavox", option, "ellavox", option, "text")
    assert isinstance(answer.result, click.BadParameter)
    assert "name it once" in answer.result.message


def test_show_tells_shape_folder_and_candidates_of_each_cell(cells):
    (first, *_) = json.loads(cells("show", "--cell-set", "smoke", "--json").stdout)["cells"]
    assert first["candidates"] == ["no_sharing", "depth_one", "uniform_depth_2", "minimum_effective_span_25"]
    assert (first["tp"], first["cp"], first["gpus"], first["group"]) == (1, 4, 4, None)
    text = cells("show", "--cell-set", "smoke").stdout
    assert first["key"] in text
    assert first["slug"] in text


def test_check_holds(cells):
    answer = cells("check", "--json")
    document = json.loads(answer.stdout)
    assert answer.result == 0, document
    assert document["holds"] is True
    assert len(document["cell_sets"]) == 8


def test_check_exits_1_and_names_what_disagrees(cells, monkeypatch):
    found = [Disagreement("harness/sets/main.json", "there is no workload 'cal-odd'")]
    monkeypatch.setattr(command_module, "disagreements", lambda **_: found)
    answer = cells("check")
    assert answer.result == 1
    assert "harness/sets/main.json: there is no workload 'cal-odd'" in answer.stdout
    document = json.loads(cells("check", "--json").stdout)
    assert document["holds"] is False
    assert document["disagreements"] == [{"place": found[0].place, "what": found[0].what}]


@pytest.mark.parametrize("argv", [(), ("list",), ("show",), ("check",)])
def test_help_has_an_example_that_keeps_its_lines(cells, argv):
    lines = cells(*argv, "--help").stdout.splitlines()
    at = lines.index("  Example:")
    assert lines[at + 1].lstrip().startswith(("orchestrate cells", "CELL_SET="))
