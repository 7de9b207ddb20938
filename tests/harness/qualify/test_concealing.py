"""What a group prints of the secrets that it was given."""

import pytest
from defusedxml.ElementTree import fromstring

from harness.concealing import Secrets, secret_values
from orchestrate.qualify.test_counts import from_junit


def test_values_of_secret_names_are_concealed_in_every_form_and_the_rest_is_untouched(tmp_path):
    env = {"API_KEY": 'a"b<c>\\0123456789', "HF_TOKEN": "hunter2hunter2", "PLAIN": "hunter2hunter2x"}
    secrets = Secrets(env)
    (tmp_path / "a").mkdir()
    log = tmp_path / "a/output.log"
    log.write_bytes(
        b'\xff raw a"b<c>\\0123456789 json a\\"b<c>\\\\0123456789 xml a"b&lt;c&gt;\\0123456789\nhunter2hunter2'
    )
    other = tmp_path / "same"
    other.write_bytes(b"nothing here\n")
    before = other.stat()
    secrets.conceal(tmp_path)
    assert secrets.found == ("API_KEY", "HF_TOKEN")
    assert log.read_bytes() == b"\xff raw (API_KEY) json (API_KEY) xml (API_KEY)\n(HF_TOKEN)"
    assert other.stat().st_ino == before.st_ino


def test_paths_addresses_and_words_are_no_secrets():
    env = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token0",
        "SECRET_BACKEND": "kubernetes",
        "ACTIONS_ID_TOKEN_REQUEST_URL": "https://pipelines.example.org/0123456789",
        "TOKENIZERS_PARALLELISM": "false",
        "EMPTY_TOKEN": "",
    }
    assert secret_values(env) == {}


def test_a_link_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("hunter2hunter2")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    secrets = Secrets({"HF_TOKEN": "hunter2hunter2"})
    secrets.conceal(folder)
    assert secrets.found == ()
    assert outside.read_text() == "hunter2hunter2"


@pytest.mark.parametrize("name", ["HF_TOKEN", 'odd<&"TOKEN'])
def test_a_report_without_its_secrets_is_still_xml(tmp_path, name):
    (tmp_path / "junit.xml").write_text('<testcase><skipped message="no login for hunter2hunter2"/></testcase>')
    secrets = Secrets({name: "hunter2hunter2"})
    secrets.conceal(tmp_path)
    (skipped,) = fromstring((tmp_path / "junit.xml").read_bytes())
    assert "hunter2" not in skipped.get("message")
    assert secrets.found == (name,)


def test_a_group_that_conceals_in_its_report_stays_whole_and_names_of_files_are_concealed_too(qualify, tmp_path):
    report = "<testsuite tests='1'><testcase name='a'/><system-out>$HF_TOKEN</system-out></testsuite>"
    foreign = tmp_path / "0/evidence/groups/foreign"
    node = qualify(
        {"name": "unit", "report": "junit", "junit": "r.xml",
         "command": ["bash", "-c", f'echo "{report}" > r.xml; touch "log-$HF_TOKEN"']},
        {"name": "foreign", "command": ["bash", "-c", f"touch {foreign}/$HF_TOKEN"]},
        environ={"HF_TOKEN": "hunter2hunter2"},
    )  # fmt: skip
    assert node.wait() == 1
    unit, foreign = node.result()["cells"]
    counts = from_junit((node.evidence / "groups/unit/junit.xml").read_bytes())
    assert (unit["status"], counts.passed, counts.gaps) == ("complete", 1, ())
    assert unit["added"] == {"count": 2, "first": ["log-(HF_TOKEN)", "r.xml"]}
    assert "(HF_TOKEN)" in foreign["reason"]
    assert foreign["concealed"] == ["HF_TOKEN"]
    assert not [path for path in node.evidence.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
