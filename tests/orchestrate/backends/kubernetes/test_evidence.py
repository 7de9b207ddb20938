"""What arrives from a container is unpacked only where it belongs, whole, and within limits."""

import gzip
import io
import tarfile

import pytest

from orchestrate.backends import kubernetes_evidence
from orchestrate.backends.kubernetes_api import Api
from orchestrate.backends.kubernetes_client import ApiError, Exit
from orchestrate.backends.kubernetes_evidence import Container, EvidenceError, evidence_sha256


class Stream:
    """A transport whose container answers every command with `data`."""

    server = context = namespace = "x"

    def __init__(self, data=b"", code=0, stderr="", chunk=1000):
        self.data, self.code, self.stderr, self.chunk = data, code, stderr, chunk

    def run(self, namespace, pod, container, command, write, timeout_s):
        for start in range(0, len(self.data), self.chunk):
            write(self.data[start : start + self.chunk])
        return Exit(self.code, self.stderr)


def fetch(folder, data, **more):
    api = Api(Stream(data, **more))
    return Container(api, "team", "pod").fetch(folder, api.budget(10))


def packed(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data, kind in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.size = len(data) if kind == tarfile.REGTYPE else 0
            member.linkname = "/etc/passwd" if kind in {tarfile.SYMTYPE, tarfile.LNKTYPE} else ""
            tar.addfile(member, io.BytesIO(data) if member.size else None)
    return buffer.getvalue()


def test_files_arrive_with_the_digest_that_their_folder_has(tmp_path):
    data = packed(("a/b.json", b"1" * 5000, tarfile.REGTYPE), ("node.jsonl", b"", tarfile.REGTYPE),
                  ("ended", b"{}", tarfile.REGTYPE))  # fmt: skip
    assert fetch(tmp_path / "in", data) == evidence_sha256(tmp_path / "in")
    assert (tmp_path / "in" / "a" / "b.json").read_bytes() == b"1" * 5000


@pytest.mark.parametrize(
    "member",
    [
        ("../out", b"x", tarfile.REGTYPE),
        ("/out", b"x", tarfile.REGTYPE),
        ("a/../../out", b"x", tarfile.REGTYPE),
        ("link", b"", tarfile.SYMTYPE),
        ("hard", b"", tarfile.LNKTYPE),
        ("fifo", b"", tarfile.FIFOTYPE),
        ("folder", b"", tarfile.DIRTYPE),
    ],
    ids=lambda member: f"{member[0]}",
)
def test_what_is_no_file_of_the_folder_is_refused(tmp_path, member):
    with pytest.raises(EvidenceError, match="no file of its folder"):
        fetch(tmp_path / "in", packed(member))
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert list((tmp_path / "in").iterdir()) == []


def test_a_name_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(EvidenceError, match="did not arrive whole"):
        fetch(tmp_path / "in", packed((b"caf\xe9".decode("utf-8", "surrogateescape"), b"x", tarfile.REGTYPE)))


def test_a_stream_that_was_damaged_anywhere_is_refused_or_arrives_with_the_digest_of_what_lies_there(tmp_path):
    rows = "".join(f'{{"row": {hash((1, number))}}}\n' for number in range(5000))
    whole = packed(("a.json", rows.encode(), tarfile.REGTYPE), ("b", b"2", tarfile.REGTYPE))
    refused = 0
    for place in range(0, len(whole), 100):
        broken = bytearray(whole)
        broken[place] ^= 0x5A
        try:
            assert fetch(tmp_path / f"in{place}", bytes(broken)) == evidence_sha256(tmp_path / f"in{place}")
        except EvidenceError:
            refused += 1
    assert refused


def test_two_files_of_one_name_are_refused(tmp_path):
    one = ("a", b"x", tarfile.REGTYPE)
    with pytest.raises(EvidenceError):
        fetch(tmp_path / "in", packed(one, one))


@pytest.mark.parametrize("cut", [0.3, 0.9])
def test_a_stream_that_was_cut_is_not_taken_for_whole(tmp_path, cut):
    data = packed(("a", bytes(range(256)) * 300, tarfile.REGTYPE))
    with pytest.raises(EvidenceError, match="whole"):
        fetch(tmp_path / "in", data[: int(len(data) * cut)])


def test_nothing_at_all_is_not_taken_for_no_evidence(tmp_path):
    with pytest.raises(EvidenceError):
        fetch(tmp_path / "in", b"")


@pytest.mark.parametrize(("limit", "value"), [("MAX_BYTES", 1000), ("MAX_FILES", 1), ("MAX_PACKED_BYTES", 20)], ids=str)
def test_more_than_the_limit_is_refused(tmp_path, monkeypatch, limit, value):
    monkeypatch.setattr(kubernetes_evidence, limit, value)
    data = packed(("a", b"x" * 900, tarfile.REGTYPE), ("b", b"y" * 900, tarfile.REGTYPE))
    with pytest.raises(EvidenceError):
        fetch(tmp_path / "in", data)


def test_a_command_that_fails_in_the_container_is_told_with_its_words(tmp_path):
    with pytest.raises(ApiError, match="no space left"):
        fetch(tmp_path / "in", gzip.compress(b""), code=1, stderr="no space left\n")
