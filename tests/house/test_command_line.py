"""The command line: what it imports, what it lists, how it says no."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from orchestrate import errors, verdict
from orchestrate.cli import COMMANDS, cli

HEAVY = ("torch", "sky", "kubernetes", "jsonschema", "jinja2", "rich", "psutil", "yaml")


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrate", *arguments], capture_output=True, text=True, check=False, **options
    )


def test_help_imports_nothing_heavy():
    script = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print('LOADED', [m for m in {HEAVY!r} if m in sys.modules]))\n"
        "sys.argv = ['orchestrate', '--help']\n"
        "from orchestrate.cli import main\n"
        "main()\n"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Usage: orchestrate" in answer.stdout
    assert answer.stdout.rstrip().endswith("LOADED []")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example_and_a_json_answer(name):
    command = importlib.import_module(f"orchestrate.commands.{name}").command
    commands = [command]
    if isinstance(command, click.Group):
        with click.Context(command) as group:
            commands = [command.get_command(group, each) for each in command.list_commands(group)]
    for each in commands:
        options = [option for parameter in each.params for option in parameter.opts]
        assert "--json" in options, f"{name} {each.name}"
        with click.Context(each, info_name=f"orchestrate {name}") as context:
            assert "example" in each.get_help(context).lower(), f"{name} {each.name}"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_command_imports_torch_or_a_provider_sdk_before_it_is_asked(name):
    script = (
        f"import importlib, sys; importlib.import_module('orchestrate.commands.{name}');"
        "print([m for m in ('torch', 'sky', 'kubernetes') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_list_of_commands_is_the_commands_folder():
    folder = importlib.import_module("orchestrate.commands").__path__[0]
    modules = [
        importlib.import_module(f"orchestrate.commands.{found.name}") for found in pkgutil.iter_modules([folder])
    ]
    found = {module.__name__.rpartition(".")[2] for module in modules if hasattr(module, "command")}
    subcommands = {f"trace_{name}" for name in importlib.import_module("orchestrate.commands.trace").SUBCOMMANDS}
    assert found == set(COMMANDS) | subcommands
    assert set(cli.list_commands(click.Context(cli))) == set(COMMANDS)


def test_an_unknown_command_is_a_usage_error():
    answer = run("lunch")
    assert answer.returncode == verdict.USAGE_EXIT_CODE
    assert "No such command 'lunch'" in answer.stderr


def test_an_error_names_cause_and_remedy_and_is_an_object_for_machines():
    answer = run("cells", "show", "--cell-set", "nowhere", "--json")
    assert answer.returncode == verdict.USAGE_EXIT_CODE
    error = json.loads(answer.stdout)["error"]
    assert "nowhere" in error["cause"]
    assert error["remedy"]
    assert "remedy:" in answer.stderr


@pytest.mark.parametrize(
    "arguments",
    [("lunch",), ("render",), ("render", "--backend", "mars"), ("status", "--limit", "0"), ("cells", "--no-such")],
)
def test_a_wrong_command_line_is_an_object_for_machines_too(arguments):
    answer = run(*arguments, "--json")
    assert answer.returncode == verdict.USAGE_EXIT_CODE
    error = json.loads(answer.stdout)["error"]
    assert (error["code"], error["exit_code"]) == ("usage", verdict.USAGE_EXIT_CODE)
    assert error["cause"] in answer.stderr
    assert error["remedy"]
    assert run(*arguments).stdout == ""


FULL = Path("/dev/full")
SMOKE = ("render", "--backend", "sky", "--cell-set", "smoke")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [SMOKE, (*SMOKE, "--json"), ("cells", "show", "--cell-set", "no", "--json")])
def test_an_answer_that_can_not_be_written_is_one_error_line(arguments):
    with FULL.open("wb") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "orchestrate", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert answer.returncode == verdict.Verdict.INFRASTRUCTURE.exit_code
    errors = [line for line in answer.stderr.splitlines() if not line.startswith(("warning:", "note:"))]
    assert errors == ["error: No space left on device", "remedy: make room or rights there"]


def test_a_reader_that_left_is_told_nothing():
    reading, writing = os.pipe()
    os.close(reading)
    answer = subprocess.run(
        [sys.executable, "-m", "orchestrate", *SMOKE], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (answer.returncode, answer.stderr) == (5, "")


def test_the_verdict_table_is_the_published_one():
    assert {v.label: v.exit_code for v in verdict.Verdict} == {
        "passed": 0,
        "failed": 1,
        "hung": 3,
        "incomplete": 4,
        "infrastructure": 5,
        "capacity": 75,
        "unsatisfiable": 78,
        "not-run": 76,
        "cancelled": 130,
        "teardown-unconfirmed": 70,
    }


def test_the_drawn_exception_tree_is_the_real_one():
    public = {getattr(errors, name) for name in errors.__all__}
    defined = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.OrchestrateError)}
    assert public == defined
    tree = errors.__doc__ or ""
    for exception in public:
        assert exception.__name__ in tree
        parent = exception.__mro__[1]
        if parent is not Exception:
            assert tree.index(parent.__name__) < tree.index(exception.__name__)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_closed_standard_stream_changes_no_exit_code_and_no_file_takes_its_place(tmp_path, closed):
    script = (
        "import os, sys, orchestrate.cli as c\n"
        "sys.argv = ['orchestrate', 'cells', 'list']\n"
        "opened = []\n"
        "c._run, run = (lambda: opened.append(open(sys.path[-1]).fileno()) or run()), c._run\n"
        "sys.path.append(os.devnull)\n"
        "try:\n    c.main()\n"
        "except SystemExit as stop:\n    os._exit(stop.code if opened[0] > 2 else 99)\n"
    )
    done = subprocess.run(["sh", "-c", f'"{sys.executable}" -c "$0" {closed}', script], check=False, cwd=tmp_path)
    assert done.returncode == 0


CRASH = """
import sys
sys.argv = ["orchestrate", "cells", "list", *sys.argv[1:]]
import orchestrate.cells.cell_set as cell_set
import orchestrate.commands.cells as cells
from orchestrate import cli
def crash(*arguments, **options):
    raise {what}
cells.command.commands["list"].callback = crash
cli.main()
"""


@pytest.mark.parametrize("what", ["ZeroDivisionError('what')", "RecursionError('deep')", "KeyError('gone')"])
def test_a_fault_of_the_program_itself_is_no_failed_test_and_says_what_it_is(what):
    answer = subprocess.run(
        [sys.executable, "-c", CRASH.format(what=what), "--json"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == verdict.Verdict.INFRASTRUCTURE.exit_code
    error = json.loads(answer.stdout)["error"]
    assert (error["code"], error["exit_code"]) == ("internal", 5)
    assert what.split("(")[0] in error["cause"]
    assert f"error: {error['cause']}" in answer.stderr.splitlines()[-2]


@pytest.mark.parametrize("what", ["KeyboardInterrupt", "click.Abort()"])
def test_a_launch_that_is_interrupted_while_it_gets_ready_answers_with_its_one_object(what):
    script = (
        "import sys, click\nsys.argv = ['orchestrate', 'launch', '--json']\nfrom orchestrate import cli\n"
        f"def stop(*arguments, **options): raise {what}\n"
        "cli._LazyGroup.get_command = stop\ncli.main()\n"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.returncode == 130
    found = json.loads(answer.stdout)
    assert (found["verdict"], found["run_id"], found["exit_code"]) == ("cancelled", None, 130)
    assert found["teardown"] == {"confirmed": True, "remaining": []}
