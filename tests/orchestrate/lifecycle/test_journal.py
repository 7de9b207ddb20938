"""The journal: what is written can be read, what is torn is dropped, what is damaged is named."""

import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrate.errors import JournalDamagedError
from orchestrate.lifecycle.journal import Journal, last_record, read_journal
from orchestrate.receipts.journal_chain import read_journal as read_as_verify

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def write(path, count=4):
    journal = Journal(path)
    for number in range(count):
        journal.append("step", number=number)
    journal.close()
    return path


@settings(max_examples=50, deadline=None)
@given(facts=st.lists(st.dictionaries(st.sampled_from("abc"), values, max_size=3), max_size=5))
def test_what_is_appended_is_read_back_by_us_and_by_verify(tmp_path_factory, facts):
    path = tmp_path_factory.mktemp("j") / "journal.jsonl"
    journal = Journal(path)
    for one in facts:
        journal.append("step", **one)
    head = journal.head
    journal.close()
    view = read_journal(path)
    assert [dict(record.facts) for record in view.records] == facts
    assert (view.head, view.torn_bytes) == (head, 0)
    chain = read_as_verify(path.read_bytes())
    assert chain.head_of(len(facts)) == head


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, 200))
def test_a_torn_last_line_is_dropped_with_a_note_and_the_chain_goes_on(tmp_path_factory, cut):
    path = write(tmp_path_factory.mktemp("j") / "journal.jsonl")
    whole = path.read_bytes()
    last = len(whole) - (whole[:-1].rfind(b"\n") + 1)
    path.write_bytes(whole[: len(whole) - min(cut, last - 1)])
    assert read_journal(path).torn_bytes == last - min(cut, last - 1)
    journal = Journal(path)
    journal.append("after")
    journal.close()
    view = read_journal(path)
    assert [record.kind for record in view.records] == ["step", "step", "step", "note", "after"]
    assert "torn last line" in view.records[3].facts["text"]
    assert view.torn_bytes == 0


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_flipped_byte_anywhere_else_is_an_error_that_names_the_byte(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("j") / "journal.jsonl")
    whole = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(whole) - 2))
    whole[place] ^= 1 << data.draw(st.integers(0, 6))
    path.write_bytes(whole)
    with pytest.raises(JournalDamagedError) as caught:
        read_journal(path)
    begin = int(caught.value.cause.split("bytes ")[1].split(" ")[0])
    assert begin <= place
    assert f"damaged at byte {begin}" in caught.value.cause or "damaged at byte" in caught.value.cause
    with pytest.raises(JournalDamagedError):
        Journal(path)


def test_a_removed_record_is_damage(tmp_path):
    path = write(tmp_path / "journal.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    with pytest.raises(JournalDamagedError, match=f"damaged at byte {len(lines[0])}: record 2"):
        read_journal(path)


def test_an_intent_is_on_disk_before_append_returns(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_size), real(fd))[1])
    journal = Journal(tmp_path / "journal.jsonl")
    synced.clear()
    journal.append("acquiring", intent={})
    assert synced == [(tmp_path / "journal.jsonl").stat().st_size]
    journal.close()


def test_a_full_disk_is_answered_once_with_the_reserved_room_and_leaves_no_half_line(tmp_path, monkeypatch):
    made_room = []
    journal = Journal(tmp_path / "journal.jsonl", on_disk_full=lambda: made_room.append(True))
    journal.append("first")
    real = os.pwrite

    def refuse(fd, data, offset):
        if not made_room:
            real(fd, bytes(data)[:7], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", refuse)
    journal.append("second")
    journal.close()
    assert [record.kind for record in read_journal(tmp_path / "journal.jsonl").records] == ["first", "second"]
    assert made_room == [True]


def test_a_disk_that_stays_full_raises_and_the_journal_stays_whole(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("first")

    def refuse(fd, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="No space"):
        journal.append("second")
    monkeypatch.undo()
    journal.append("third")
    journal.close()
    assert [record.kind for record in read_journal(tmp_path / "journal.jsonl").records] == ["first", "third"]


def test_room_is_kept_beyond_the_end_and_given_back(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("first")
    assert path.stat().st_blocks * 512 >= 128 << 10
    journal.close()
    assert path.stat().st_blocks * 512 < 64 << 10
    assert len(path.read_bytes()) == path.stat().st_size


def test_the_last_record_is_read_from_the_end_alone_and_trusted_only_when_whole(tmp_path):
    path = write(tmp_path / "journal.jsonl", count=200)
    assert last_record(path).facts == {"number": 199}
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert last_record(path) is None
    path.write_bytes(whole[:-20] + b"x" + whole[-19:])
    assert last_record(path) is None
    path.write_bytes(b"")
    assert last_record(path) is None
