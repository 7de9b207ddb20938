"""Groups that lie: reports of somebody else, evidence rewritten later, a source that was another one in between."""

import json
import os
import subprocess
import sys

import pytest

from harness.source_files import Watch, pin_files
from orchestrate.qualify.group_file import Report
from orchestrate.qualify.judgement import judge_groups
from orchestrate.verdict import Verdict

PY = sys.executable
PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
GOOD = "def test_a(): pass\n"


def test_a_report_that_was_there_before_the_group_is_none_of_it(qualify):
    node = qualify(
        {"name": "first", "command": ["bash", "-c", "echo '<testsuite/>' > later.xml"]},
        {"name": "committed", "command": ["true"], "report": "junit", "junit": "committed.xml"},
        {"name": "planted", "command": ["true"], "report": "junit", "junit": "later.xml"},
        files={"committed.xml": '<testsuite tests="1"><testcase name="a"/></testsuite>'},
    )
    assert node.wait() == 4
    for name in ("committed", "planted"):
        assert node.group(name)["status"] == "unsettled"
        assert "was there before" in node.group(name)["reason"]
        assert not (node.evidence / f"groups/{name}/junit.xml").exists()


TAMPERS = {
    "report": "echo >> {e}/groups/unit/tests.jsonl",
    "output": "echo >> {e}/groups/unit/output.log",
    "node": "echo '{{}}' > {e}/preflight.json",
    "source": "echo '{{}}' > {e}/sources.json",
    "removes": "rm {e}/groups/unit/tests.jsonl",
    "adds": "echo > {e}/groups/unit/junit.xml",
    "links": "ln -sf /etc/passwd {e}/packages.json",
    "plans": "mkdir -p {e}/groups/last; echo > {e}/groups/last/tests.jsonl",
    "folders": "mkdir {e}/more",
    "partial": "mkfifo {e}/node.json.partial",
    "invents": 'echo \'{{"event": "cell-ended"}}\' >> {e}/node.jsonl',
    "truncates": ": > {e}/node.jsonl",
    "undone": "cp {e}/node.jsonl b; echo >> {e}/node.jsonl; cat b > {e}/node.jsonl",
    "no-progress": "rm {e}/node.jsonl",
    "progress-pipe": "rm {e}/node.jsonl; mkfifo {e}/node.jsonl",
    "progress-folder": "rm {e}/node.jsonl; mkdir -p {e}/node.jsonl/a",
    "progress-link": "mv {e}/node.jsonl b2; ln -s $PWD/b2 {e}/node.jsonl",
}


def test_evidence_that_is_not_its_own_fails_a_group_that_rewrites_it(qualify, tmp_path):
    evidence = tmp_path / "0/evidence"
    node = qualify(
        {
            "name": "unit",
            "command": [PY, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            "report": "pytest",
            "env": PLAIN,
        },
        *({"name": name, "command": ["bash", "-c", how.format(e=evidence)]} for name, how in TAMPERS.items()),
        {"name": "last", "command": ["true"]},
        files={"test_a.py": GOOD},
    )
    assert node.wait() == 1
    assert node.group("unit")["status"] == node.group("last")["status"] == "complete"
    for name in TAMPERS:
        assert node.group(name)["status"] == "failed", name
        assert "evidence that was not its own" in node.group(name)["reason"]
    events = [json.loads(line) for line in (evidence / "node.jsonl").read_text().splitlines()]
    one_by_one = [(event, name) for name in ("unit", *TAMPERS, "last") for event in ("cell-started", "cell-ended")]
    assert [(row["event"], row.get("cell")) for row in events] == [
        ("node-started", None), *one_by_one, ("node-ended", None)
    ]  # fmt: skip


OWN = {
    "adds": "echo > {g}/more",
    "bytes": "touch {g}/$'\\xff'",
    "lines": "touch {g}/$'a\\nb'",
    "folder": "mkdir -p {g}/d/e",
    "reports": "echo '{{}}' > {g}/tests.jsonl",
    "links": "ln -s /etc/passwd {g}/tests.jsonl",
    "hard-links": "ln {g}/output.log {g}/b",
    "pipe": "mkfifo {g}/junit.xml",
    "removes": "rm {g}/output.log",
    "replaces": "rm {g}/output.log; echo fine > {g}/output.log",
    "empties": "rm -r {g}",
    "elsewhere": "rm -r {g}; mkdir {g}.d; ln -s {g}.d {g}",
}


def test_a_group_leaves_its_log_and_its_report_in_its_evidence_and_nothing_else(qualify, tmp_path):
    evidence = tmp_path / "0/evidence"
    groups = [
        {"name": name, "command": ["bash", "-c", how.format(g=evidence / "groups" / name)]} for name, how in OWN.items()
    ]
    node = qualify(*groups, {"name": "last", "command": ["true"]})
    assert node.wait() == 1
    assert node.group("last")["status"] == "complete"
    for name in OWN:
        assert node.group(name)["status"] == "failed", name
        assert "evidence" in node.group(name)["reason"]
        left = [path for path in (evidence / "groups" / name).iterdir() if not path.is_symlink() and path.is_file()]
        assert [path.name for path in left] in ([], ["output.log"]), name
        assert not (evidence / "groups" / name).is_symlink()


def test_a_group_that_writes_without_end_is_ended_and_its_log_bounded(qualify):
    loud = "head -c 3M /dev/zero"
    groups = {
        "endless": f"{loud}; exec sleep 600",
        "quick": loud,
        "quick-and-failed": f"{loud}; exit 3",
        "after-its-end": f"(trap '' TERM; sleep 0.5; {loud}; exec sleep 600) &",
    }
    node = qualify(
        *({"name": name, "command": ["bash", "-c", command]} for name, command in groups.items()),
        {"name": "just-enough", "command": ["head", "-c", "2M", "/dev/zero"]},
        max_output_bytes=2 << 20,
    )
    assert node.wait() == 1
    said = ("failed", "it wrote more than 2 MiB of output")
    assert [(node.group(name)["status"], node.group(name)["reason"]) for name in groups] == [said] * len(groups)
    assert {(node.evidence / f"groups/{name}/output.log").stat().st_size for name in groups} == {2 << 20}
    assert node.group("just-enough")["status"] == "complete"


def test_a_report_that_is_too_large_is_not_read(qualify):
    node = qualify(
        {"name": "vast", "command": ["truncate", "-s", "1T", "r.xml"], "report": "junit", "junit": "r.xml"},
    )
    assert node.wait() == 4
    assert node.group("vast")["reason"] == "its report r.xml is larger than 64 MiB"


NO_FILES = {"pipe": "mkfifo {f}", "folder": "mkdir {f}", "vast": "truncate -s 1T {f}", "device": "ln -s /dev/zero {f}"}


def test_what_is_no_file_any_more_is_changed_and_is_not_read(qualify):
    files = {f"{name}.py": "" for name in NO_FILES}
    all_of_them = "; ".join(f"rm {name}.py; {how.format(f=f'{name}.py')}" for name, how in NO_FILES.items())
    node = qualify({"name": "swaps", "command": ["bash", "-c", all_of_them]}, files=files)
    assert node.wait() == 1
    assert node.result()["qualified"]["changed"] == sorted(files)


def test_only_plain_files_and_links_are_pinned(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "file").write_text("")
    assert sorted(pin_files(tmp_path)) == ["file", "link"]


SWAPS = {
    "rewrites": "cp -p readme.txt b; echo other > readme.txt; cat b > readme.txt; touch -r b readme.txt",
    "renames": "mv readme.txt b; echo other > readme.txt; rm readme.txt; mv b readme.txt",
    "replaces": "echo other > n; mv readme.txt b; mv n readme.txt; cp -p b readme.txt",
}


def test_a_source_that_was_another_one_in_between_and_reads_as_before_fails(qualify):
    node = qualify(
        *({"name": name, "command": ["bash", "-c", how]} for name, how in SWAPS.items()),
    )
    assert node.wait() == 1
    assert (node.source / "readme.txt").read_text() == "hello\n"
    assert node.result()["qualified"]["changed"] == ["readme.txt"]
    assert "readme.txt" in node.group("rewrites")["reason"]


@pytest.mark.parametrize("how", SWAPS.values(), ids=SWAPS)
def test_a_watch_sees_what_was_changed_back(tmp_path, how):
    (tmp_path / "readme.txt").write_text("hello\n")
    watch = Watch(tmp_path)
    assert watch.changed() == ()
    subprocess.run(["bash", "-c", how], cwd=tmp_path, check=True)
    assert watch.changed(added=False) == ("readme.txt",)


FOLDER_SWAPS = {
    "copied": "cp -r t t2; mv t told; mv t2 t; touch t/more; mv t t2; mv told t",
    "after-others": "mkdir b; mv t b/t; mv b/t t",
    "replaced": "cp -r t t2; rm -r t; mv t2 t",
}


@pytest.mark.parametrize("how", FOLDER_SWAPS.values(), ids=FOLDER_SWAPS)
def test_a_watch_sees_a_folder_that_was_put_aside_and_back(tmp_path, how):
    (tmp_path / "t").mkdir()
    (tmp_path / "t/a.py").write_text("")
    watch = Watch(tmp_path)
    (tmp_path / "t/__pycache__").mkdir()
    assert watch.changed(added=False) == ()
    watch.accept_folders()
    subprocess.run(["bash", "-c", how], cwd=tmp_path, check=True)
    assert "t/" in watch.changed(added=False)


def test_a_folder_that_was_swapped_and_put_back_fails_its_group_and_ends_the_evidence(qualify):
    node = qualify(
        {"name": "adds", "command": ["touch", "t/more"]},
        {"name": "swaps", "command": ["bash", "-c", "mv t b; mv b t"]},
        {"name": "adds-again", "command": ["touch", "t/some"]},
        files={"t/a.py": ""},
    )
    assert node.wait() == 1
    assert [group["status"] for group in node.result()["cells"]] == ["complete", "failed", "unsettled"]
    assert node.result()["qualified"]["changed"] == ["t/"]


def test_what_a_group_leaves_beside_the_source_is_named(qualify):
    node = qualify({"name": "plants", "command": ["bash", "-c", "echo 'import os' > conftest.py; mkdir x; echo > x/y"]})
    assert node.wait() == 0
    assert node.group("plants")["added"] == {"count": 2, "first": ["conftest.py", "x/y"]}


EXITS = "import os\ndef test_a(): pass\ndef test_b(): os._exit(0)\ndef test_c(): assert False\n"
STOPS = "import pytest\ndef test_a(): pass\ndef test_b(): pytest.exit('x', returncode=0)\ndef test_c(): 0\n"
DESELECTS = (
    "def pytest_collection_modifyitems(config, items):\n config.hook.pytest_deselected(items=items)\n items.clear()"
)


WAYS = {
    "exits": ({"test_x.py": EXITS}, ""),
    "deselects": ({"test_x.py": GOOD, "conftest.py": DESELECTS}, ""),
    "no-collection": ({"test_x.py": GOOD, "test_y.py": "import no_such\n"}, "--continue-on-collection-errors"),
    "no-plugin": ({"test_x.py": GOOD}, "-p no:orchestrate-report"),
    "pytest-exit": ({"test_x.py": STOPS}, ""),
}


def test_an_exit_code_of_0_hides_nothing(qualify):
    groups, files = [], {}
    for name, (some, options) in WAYS.items():
        script = f"cd {name} && {PY} -m pytest -q -p no:cacheprovider --rootdir . {options} . || true"
        groups.append({"name": name, "command": ["bash", "-c", script], "report": "pytest", "env": PLAIN})
        files |= {f"{name}/{file}": text for file, text in some.items()}
    node = qualify(*groups, files=files)
    node.wait()
    reports = {f"groups/{name}/tests.jsonl": node.evidence / f"groups/{name}/tests.jsonl" for name in WAYS}
    read = {name: path.read_bytes() for name, path in reports.items() if path.exists()}
    for judged in judge_groups([(name, Report.PYTEST) for name in WAYS], node.result(), read):
        assert judged.verdict in {Verdict.INCOMPLETE, Verdict.FAILED}, judged
