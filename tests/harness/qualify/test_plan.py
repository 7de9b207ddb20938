import hashlib
import io
import json
import tarfile

import pytest

from harness import qualify
from harness.errors import InputError
from harness.source_files import changed_files, pin_files, unpack


def options(tmp_path, **changes):
    group = {"name": "unit", "command": ["true"], "timeout_s": 5, "report": "exit-code"}
    plan = {
        "schema": "orchestrate.groups/1",
        "run_id": "r",
        "name": "self",
        "device": "cpu",
        "archive_sha256": "0" * 64,
    }
    (tmp_path / "groups.json").write_text(json.dumps({**plan, "groups": [group], **changes}))
    return qualify._parser().parse_args(
        ["--plan", str(tmp_path / "groups.json"), "--archive", "a", "--source", str(tmp_path / "work"),
         "--evidence", str(tmp_path / "evidence")]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"groups": []}, "names no group"),
        ({"groups": [{"name": "a", "command": [], "timeout_s": 5, "report": "exit-code"}]}, "command: is empty"),
        ({"groups": [{"name": "A b", "command": ["true"], "timeout_s": 5, "report": "exit-code"}]}, "lower-case"),
        ({"groups": [{"name": "a", "command": ["true"], "timeout_s": 0, "report": "exit-code"}]}, "at least 1"),
        ({"groups": [{"name": "a", "command": ["true"], "timeout_s": 5, "report": "junit"}]}, "must name `junit`"),
        ({"groups": [{"name": "a", "command": ["true"], "timeout_s": 5, "report": "x"}]}, "must be one of"),
        (
            {"groups": [{"name": "a", "command": ["true"], "timeout_s": 5, "report": "exit-code", "needs": ["b"]}]},
            "does not come before",
        ),
        ({"groups": [{"name": "a", "command": ["true"], "timeout_s": 5, "report": "exit-code"}] * 2}, "a second time"),
        ({"device": "tpu"}, "must be cpu or h200"),
        ({"schema": "other"}, "orchestrate.groups/1"),
    ],
)
def test_a_plan_that_can_not_be_run_is_refused_with_its_place(tmp_path, changes, said):
    with pytest.raises(InputError, match=said):
        qualify.read_plan(options(tmp_path, **changes))


def test_evidence_is_never_mixed_with_older_evidence(tmp_path):
    wanted = options(tmp_path)
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence/node.jsonl").write_text("")
    with pytest.raises(InputError, match="already holds evidence"):
        qualify.read_plan(wanted)


def archive(tmp_path, *members):
    path = tmp_path / "source.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind in {tarfile.SYMTYPE, tarfile.LNKTYPE}:
                info.linkname = data
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "member",
    [
        ("../outside", tarfile.REGTYPE, b"x"),
        ("link", tarfile.SYMTYPE, "/etc/passwd"),
        ("link", tarfile.SYMTYPE, "../../outside"),
        ("hard", tarfile.LNKTYPE, "../../outside"),
        ("pipe", tarfile.FIFOTYPE, b""),
        ("device", tarfile.CHRTYPE, b""),
        ("/absolute", tarfile.REGTYPE, b"x"),
        ("a/link", tarfile.SYMTYPE, "b/../../../outside"),
        ("hard", tarfile.LNKTYPE, "here"),
    ],
)
def test_an_archive_that_reaches_outside_is_refused(tmp_path, member):
    path, sha256 = archive(tmp_path, ("here", tarfile.REGTYPE, b"x"), member)
    with pytest.raises(InputError):
        unpack(path, sha256, tmp_path / "into/work")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    "members",
    [
        [("d", tarfile.SYMTYPE, "."), ("a", tarfile.SYMTYPE, "d/../outside")],
        [("d", tarfile.SYMTYPE, "."), ("d/a", tarfile.SYMTYPE, "../outside")],
        [("d", tarfile.SYMTYPE, "e"), ("d/file", tarfile.REGTYPE, b"x")],
    ],
)
def test_links_through_links_are_refused(tmp_path, members):
    path, sha256 = archive(tmp_path, *members)
    with pytest.raises(InputError, match="no source may hold"):
        unpack(path, sha256, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_another_archive_than_the_planned_one_is_refused(tmp_path):
    path, _ = archive(tmp_path, ("a.txt", tarfile.REGTYPE, b"x"))
    with pytest.raises(InputError, match="the plan names"):
        unpack(path, "0" * 64, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_pins_see_every_change_of_what_was_there(tmp_path):
    path, sha256 = archive(
        tmp_path,
        ("a.py", tarfile.REGTYPE, b"1"),
        ("d/b.txt", tarfile.REGTYPE, b"2"),
        ("l", tarfile.SYMTYPE, "a.py"),
        ("d/up", tarfile.SYMTYPE, "../a.py"),
    )
    root = tmp_path / "work"
    unpack(path, sha256, root)
    pins = pin_files(root)
    assert set(pins) == {"a.py", "d/b.txt", "d/up", "l"}
    assert changed_files(root, pins) == ()
    (root / "new.pyc").write_bytes(b"beside them")
    assert changed_files(root, pins) == ()
    (root / "l").unlink()
    (root / "l").symlink_to("d/b.txt")
    (root / "d/b.txt").unlink()
    (root / "a.py").write_bytes(b"3")
    assert set(changed_files(root, pins)) == {"a.py", "d/b.txt", "l"}
