import json
import os
import signal
import subprocess
import sys
from pathlib import Path

PY = sys.executable

DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
os.environ.clear()
time.sleep(600)
"""


def test_groups_run_in_order_in_the_unpacked_source(qualify):
    node = qualify(
        {"name": "first", "command": [PY, "-c", "import os; print(open('readme.txt').read(), os.environ['WORD'])"],
         "env": {"WORD": "apple"}},
        {"name": "second", "command": ["true"], "needs": ["first"]},
    )  # fmt: skip
    assert node.wait() == 0
    assert [group["status"] for group in node.result()["cells"]] == ["complete", "complete"]
    assert (node.evidence / "groups/first/output.log").read_text() == "hello\n apple\n"
    assert node.result()["qualified"]["changed"] == []


SHOW = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(('PYT', 'ORCH'))}))"


def test_what_decides_what_is_tested_comes_from_the_group_and_not_from_the_shell_that_calls(qualify):
    names = ("PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTHONWARNINGS", "PYTHONSTARTUP")
    paths = {"PYTHONPATH": os.pathsep.join(["/image", "/caller"]), "ORCHESTRATE_CALLERS_PYTHONPATH": "/caller"}
    node = qualify(
        {"name": "bare", "command": [PY, "-c", SHOW]},
        {"name": "own", "command": [PY, "-c", SHOW], "env": {"PYTEST_ADDOPTS": "-k a", "PYTHONPATH": "/own"}},
        environ={**dict.fromkeys(names, "ignore"), **paths},
    )
    assert node.wait() == 0
    bare, own = (json.loads((node.evidence / f"groups/{name}/output.log").read_text()) for name in ("bare", "own"))
    assert bare == {"PYTHONPATH": f"{node.source}{os.pathsep}/image"}
    assert own == {"PYTEST_ADDOPTS": "-k a", "PYTHONPATH": "/own"}


def test_a_group_that_needs_a_failed_one_does_not_run_and_one_that_does_not_need_it_does(qualify):
    node = qualify(
        {"name": "bad", "command": ["false"]},
        {"name": "needy", "command": ["true"], "needs": ["bad"]},
        {"name": "free", "command": ["true"]},
    )
    assert node.wait() == 1
    assert [group["status"] for group in node.result()["cells"]] == ["failed", "unsettled", "complete"]
    assert "bad" in node.group("needy")["reason"]


def test_a_daemon_of_a_double_fork_in_its_own_session_is_counted_and_ended(qualify, alive, tmp_path):
    script = f"{PY} -c '{DAEMON}' {tmp_path}/pid; while ! [ -s {tmp_path}/pid ]; do sleep 0.05; done; sleep 0.5"
    node = qualify({"name": "leaky", "command": ["bash", "-c", script]}, {"name": "next", "command": ["true"]})
    assert node.wait() == 0
    leaky = node.group("leaky")
    pid = int((tmp_path / "pid").read_text())
    assert not alive(pid)
    assert len(leaky["retired"]["outlived"]) == 1
    assert leaky["retired"]["killed"] == 1
    assert leaky["family"]["tracked"] == leaky["family"]["retired"] >= 2
    assert leaky["family"]["sessions"] >= 2
    assert pid in [member["pid"] for member in leaky["family"]["members"]]
    assert node.group("next")["status"] == "complete"


def test_the_peak_is_that_of_the_family_together(qualify):
    hold = f"{PY} -c 'import time; block = bytearray(60 << 20); time.sleep(2)'"
    node = qualify({"name": "two", "command": ["bash", "-c", f"{hold} & {hold} & wait"]})
    assert node.wait() == 0
    assert node.group("two")["family"]["peak_rss_bytes"] > 120 << 20


def test_a_group_over_its_time_is_ended_with_its_family(qualify, alive, tmp_path):
    script = f"sleep 600 & echo $! > {tmp_path}/pid; sleep 600"
    node = qualify({"name": "slow", "command": ["bash", "-c", script], "timeout_s": 1})
    assert node.wait() == 3
    assert node.group("slow")["status"] == "hung"
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_source_that_a_group_changes_fails_it(qualify):
    node = qualify({"name": "edits", "command": ["bash", "-c", "echo more >> readme.txt"]})
    assert node.wait() == 1
    assert "readme.txt" in node.group("edits")["reason"]
    assert node.result()["qualified"]["changed"] == ["readme.txt"]


def test_a_group_after_one_that_changed_the_source_does_not_run_and_is_not_to_blame(qualify):
    change = "open('a.py', 'w').write('x')"
    node = qualify(
        {"name": "first", "command": [PY, "-c", change], "report": "exit-code"},
        {"name": "second", "command": [PY, "-c", "pass"], "report": "exit-code"},
        files={"a.py": "1"},
    )
    assert node.wait() == 1
    assert node.group("first")["status"] == "failed"
    second = node.group("second")
    assert (second["status"], second["reason"]) == ("unsettled", "it did not run: first changed the source before it")


def test_a_killed_command_is_told_from_one_that_died_by_its_own_fault(qualify):
    node = qualify(
        {"name": "killed", "command": ["bash", "-c", "kill -KILL $$"]},
        {"name": "crashed", "command": ["bash", "-c", "ulimit -c 0; kill -SEGV $$"]},
        {"name": "absent", "command": ["no-such-program-here"]},
    )
    assert node.wait() == 5
    assert [group["status"] for group in node.result()["cells"]] == ["infrastructure", "failed", "failed"]
    assert "no-such-program-here" in node.group("absent")["reason"]


def test_a_stop_ends_the_group_and_says_so_of_the_rest(qualify, alive, eventually, tmp_path):
    node = qualify(
        {"name": "long", "command": ["bash", "-c", f"sleep 600 & echo $! > {tmp_path}/pid; wait"]},
        {"name": "later", "command": ["true"]},
    )
    pid = int(eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 130
    assert [group["status"] for group in node.result()["cells"]] == ["cancelled", "cancelled"]
    assert not alive(pid)


def test_the_end_of_the_lifeline_ends_everything(qualify, alive, eventually, tmp_path):
    read_end, write_end = os.pipe()
    node = qualify(
        {"name": "long", "command": ["bash", "-c", f"echo $$ > {tmp_path}/pid; sleep 600"]}, lifeline_fd=read_end
    )
    os.close(read_end)
    pid = int(eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))
    os.close(write_end)
    assert node.wait() == 130
    assert not alive(pid)


TESTS = """
import os, pytest

def test_good():
    pass

@pytest.mark.skip(reason="no GPU here")
def test_skipped():
    pass

@pytest.mark.xfail(reason="known fault")
def test_expected():
    assert False

@pytest.fixture
def broken():
    raise RuntimeError("no database")

def test_error(broken):
    pass

def test_bad():
    assert 1 == 2

def test_nested(tmp_path):
    import subprocess, sys
    (tmp_path / "test_inner.py").write_text("def test_inner(): assert False")
    subprocess.run([sys.executable, "-m", "pytest", "-q", str(tmp_path)])
    pytest.main(["-q", "-p", "no:cacheprovider", str(tmp_path)])
    if os.fork() == 0:
        os._exit(pytest.main(["-q", "-p", "no:cacheprovider", str(tmp_path)]))
    os.wait()
"""

TWICE = """
import os, pytest, sys
first = pytest.main(["-q", "-p", "no:cacheprovider", "good.py"])
pytest.main(["-q", "-p", "no:cacheprovider", "bad.py"])
if os.fork() == 0:
    os._exit(pytest.main(["-q", "-p", "no:cacheprovider", "bad.py"]))
os.wait()
sys.exit(first)
"""


def test_each_pytest_of_one_process_is_reported(qualify):
    node = qualify(
        {"name": "unit", "command": [PY, "-c", TWICE], "report": "pytest"},
        files={"good.py": "def test_good(): pass", "bad.py": "def test_bad(): assert False"},
    )
    assert node.wait() == 0
    rows = node.test_rows("unit")
    assert len({row["session"] for row in rows}) == 2
    assert [row["exit_status"] for row in rows if row["kind"] == "finish"] == [0, 1]


def test_the_plugin_reports_each_test_of_a_group_and_of_no_pytest_that_a_test_starts(qualify):
    node = qualify(
        {"name": "unit", "command": [PY, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not deselected"],
         "report": "pytest"},
        files={"tests/test_some.py": TESTS, "tests/test_other.py": "def test_deselected(): pass"},
    )  # fmt: skip
    assert node.wait() == 1
    rows = node.test_rows("unit")
    calls = {(row["test"].split("::")[1], row["when"]): row["outcome"] for row in rows if row["kind"] == "test"}
    assert calls["test_good", "call"] == "passed"
    assert calls["test_skipped", "setup"] == "skipped"
    assert calls["test_error", "setup"] == "failed"
    assert calls["test_bad", "call"] == "failed"
    assert not any("inner" in row.get("test", "") for row in rows)
    assert [row["test"] for row in rows if row["kind"] == "deselected"] == ["tests/test_other.py::test_deselected"]
    assert "no GPU here" in [row.get("reason") for row in rows]
    assert rows[-1]["kind"] == "finish"
    assert rows[-1]["exit_status"] == 1


def test_a_junit_file_that_the_command_writes_comes_home(qualify):
    node = qualify(
        {"name": "unit", "command": ["bash", "-c", "mkdir out; echo '<testsuite/>' > out/j.xml"], "report": "junit",
         "junit": "out/j.xml"},
        {"name": "linked", "command": ["ln", "-s", "/etc/passwd", "j.xml"], "report": "junit", "junit": "j.xml"},
    )  # fmt: skip
    assert node.wait() == 0
    assert (node.evidence / "groups/unit/junit.xml").read_text() == "<testsuite/>\n"
    assert not (node.evidence / "groups/linked/junit.xml").exists()


def test_a_group_that_needs_more_gpus_than_the_node_has_does_not_run_and_is_no_pass(tmp_path):
    (tmp_path / "source").mkdir()
    command = [PY, Path(__file__).with_name("two_gpus.py"), tmp_path / "source", tmp_path / "evidence"]
    assert subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 4  # incomplete
    two, four = json.loads((tmp_path / "evidence" / "node.json").read_text())["cells"]
    assert (two["status"], four["status"], four["started_at"]) == ("complete", "unsettled", None)
    assert four["reason"] == "it needs 4 GPUs, and the node has 2 for it"


def test_python_is_the_interpreter_that_the_node_runs_under(qualify):
    node = qualify({"name": "which", "command": ["python", "-c", "import sys; print(sys.prefix)"]})
    assert node.wait() == 0
    assert (node.evidence / "groups/which/output.log").read_text().strip() == sys.prefix


def test_python_starts_where_the_interpreter_has_no_such_name(qualify, tmp_path, monkeypatch):
    """As in images of Debian and Ubuntu, which have `python3` alone."""
    only = tmp_path / "python" / "bin" / "python3"
    only.parent.mkdir(parents=True)
    only.symlink_to(Path(PY).resolve())
    monkeypatch.setenv("PATH", str(only.parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    node = qualify({"name": "which", "command": ["python", "-c", "import sys; print(sys.executable)"]}, python=only)
    assert node.wait() == 0, node.group("which")["reason"]
    assert (node.evidence / "groups/which/output.log").read_text().strip() == str(only)


def test_on_another_source_than_the_planned_one_no_group_runs_and_each_says_so(qualify):
    node = qualify({"name": "one", "command": ["true"]}, archive_sha256="0" * 64)
    assert node.wait() == 5  # infrastructure
    assert (node.group("one")["status"], node.group("one")["started_at"]) == ("infrastructure", None)
    assert f"the plan names {'0' * 64}" in node.group("one")["reason"]
    assert not node.source.exists()
