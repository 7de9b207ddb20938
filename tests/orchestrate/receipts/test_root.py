"""One statement over several runs, to which they are held later."""

import json
import shutil

import pytest

from orchestrate.cli import cli
from orchestrate.errors import OrchestrateError


@pytest.fixture
def runs(builder):
    """Two passed runs, and one that failed."""
    names = ("r20260102-030405-0a1b2c", "r20260102-030405-0a1b2d", "r20260102-030405-0a1b2e")
    made = [builder(name, run_id=name) for name in names[:2]]
    failed = builder(names[2], run_id=names[2])
    failed.failed_cells = {failed.keys[0]: "failed"}
    return [str(each.build()) for each in (*made, failed)]


@pytest.fixture
def verify(capsys):
    def run(*arguments):
        try:
            code = cli.main(["verify", *map(str, arguments), "--json"], standalone_mode=False)
        except OrchestrateError as error:
            return error.exit_code, {"error": error.cause}
        return code, json.loads(capsys.readouterr().out)

    return run


def test_a_root_names_each_closure_and_edits_no_run(runs, verify, tmp_path):
    root = tmp_path / "root.json"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, answer = verify(*runs[:2], "--root", root, "--by", "ada ", "--require-passed")
    assert code == 0
    assert {path: path.read_bytes() for path in before} == before
    said = json.loads(root.read_bytes())["predicate"]
    assert (said["by"], said["verdict"], said["holds"], said["asked"]["require_passed"]) == (
        "ada",
        "passed",
        True,
        True,
    )
    assert [row["closure"] for row in said["runs"]] == [each["closure_sha256"] for each in answer["runs"]]
    assert verify(*reversed(runs[:2]), "--expect-root", root)[0] == 0


def test_a_root_over_a_failed_run_has_its_verdict_and_holds_as_that(runs, verify, tmp_path):
    root = tmp_path / "root.json"
    assert verify(*runs, "--root", root)[0] == 0
    assert json.loads(root.read_bytes())["predicate"]["verdict"] == "failed"
    assert verify(*runs, "--expect-root", root)[0] == 0
    assert verify(*runs, "--root", root, "--require-passed")[0] == 1
    assert json.loads(root.read_bytes())["predicate"]["holds"] is False
    code, answer = verify(*runs, "--expect-root", root)
    assert (code, "not every run" in answer["problems"][0]) == (1, True)


def test_runs_that_are_more_less_or_closed_again_are_told(runs, verify, tmp_path, capsys):
    root = tmp_path / "root.json"
    verify(*runs[:2], "--root", root)
    assert "is not among these" in verify(runs[0], "--expect-root", root)[1]["problems"][0]
    assert "is not in the root closure" in verify(*runs, "--expect-root", root)[1]["problems"][0]
    cli.main(["review", runs[1], "--kind", "hold", "--by", "ada", "--why", "clocks"], standalone_mode=False)
    capsys.readouterr()
    code, answer = verify(*runs[:2], "--expect-root", root)
    assert (code, "the root closure names" in answer["problems"][0]) == (1, True)


def test_a_signed_root_holds_by_its_key_alone(runs, verify, tmp_path, write_key):
    root = tmp_path / "root.json"
    private, public = write_key(tmp_path / "ada.pem")
    _, other = write_key(tmp_path / "eve.pem")
    verify(*runs[:2], "--root", root, "--sign-key", private)
    assert verify(*runs[:2], "--expect-root", root, "--require-signature", public)[0] == 0
    assert verify(*runs[:2], "--expect-root", root)[0] == 0
    code, answer = verify(*runs[:2], "--expect-root", root, "--require-signature", other)
    assert (code, "not signed by the required key" in answer["problems"][0]) == (1, True)
    tree = json.loads(root.read_bytes())
    tree["payload"] = tree["payload"][:-8] + "AAAA" + tree["payload"][-4:]
    root.write_text(json.dumps(tree))
    assert verify(*runs[:2], "--expect-root", root, "--require-signature", public)[0] == 1
    verify(*runs[:2], "--root", root)
    code, answer = verify(*runs[:2], "--expect-root", root, "--require-signature", public)
    assert (code, "no signed envelope" in answer["error"]) == (1, True)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"payloadType": 1}', b'{"predicateType": "x"}'])
def test_what_is_no_root_is_an_error(runs, verify, tmp_path, data):
    root = tmp_path / "root.json"
    root.write_bytes(data)
    code, answer = verify(runs[0], "--expect-root", root)
    assert code == 1
    assert answer["error"]


def test_a_root_needs_closures_and_each_run_once_and_a_missing_run_is_told_before_anything_else(runs, verify, tmp_path):
    root = tmp_path / "root.json"
    code, answer = verify(runs[0], runs[0], "--root", root)
    assert (code, "named twice" in answer["error"]) == (2, True)
    open_run = tmp_path / "open"
    shutil.copytree(runs[1], open_run)
    for path in (open_run / "receipts").iterdir():
        if json.loads(path.read_bytes())["predicate"]["stage"] == "closure":
            path.unlink()
    code, answer = verify(runs[0], open_run, "--root", root)
    assert (code, "has no closure" in answer["error"]) == (2, True)
    assert verify(runs[0], "r20990101-000000-ffffff")[0] == 2
    assert verify(runs[0], "--by", "ada")[0] == 2
    assert not root.exists()
