"""Receipts are written whole or not at all, never edited, and form one line."""

import os
from pathlib import Path

import pytest

from orchestrate.errors import ReceiptError
from orchestrate.receipts.canonical import canonical_bytes, sha256_hex
from orchestrate.receipts.statement import Stage, Subject, statement
from orchestrate.receipts.store import ReceiptStore


def made(stage=Stage.PLAN, previous=None, **facts):
    return statement(
        stage,
        run_id="r1",
        attempt=1,
        previous=previous,
        started_at="2026-01-02T03:04:05Z",
        ended_at="2026-01-02T03:04:05Z",
        facts=facts,
        subjects=[Subject("plan.json", "a" * 64)],
    )


@pytest.fixture
def store(tmp_path):
    return ReceiptStore(tmp_path / "receipts")


def test_a_receipt_is_named_by_its_digest_and_readable_only_by_its_owner(store):
    sha256 = store.put(made())
    path = store.folder / f"{sha256}.json"
    assert sha256_hex(path.read_bytes()) == sha256
    assert path.read_bytes() == canonical_bytes(made())
    assert (path.stat().st_mode & 0o777, store.folder.stat().st_mode & 0o777) == (0o600, 0o700)


def test_an_empty_store_has_no_receipts_no_tip_and_no_closure(store):
    assert (store.load(), store.tip(), store.newest_closure()) == ((), None, None)


def test_receipts_load_in_the_order_in_which_they_were_written(store):
    for stage in (Stage.PLAN, Stage.ADMIT, Stage.ACQUIRE, Stage.RUN):
        store.put(made(stage, store.tip()))
    assert [receipt.stage for receipt in store.load()] == [Stage.PLAN, Stage.ADMIT, Stage.ACQUIRE, Stage.RUN]


def test_the_same_statement_twice_is_one_receipt(store):
    assert store.put(made()) == store.put(made())
    assert len(store.load()) == 1


def test_file_then_name_then_folder_reach_the_disk_in_this_order(store, monkeypatch):
    store.folder.mkdir()
    events = []
    real_fsync = os.fsync

    def watched(descriptor):
        named = len(list(store.folder.glob("*.json")))
        events.append((Path(f"/proc/self/fd/{descriptor}").readlink().name[:9], named))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    store.put(made())
    assert events == [(".writing-", 0), ("receipts", 1)]


def test_a_full_disk_leaves_no_half_receipt(store, monkeypatch):
    def full(_fd):
        raise OSError(28, "No space left on device")

    store.put(made())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.put(made(Stage.ADMIT, store.tip()))
    assert [path.suffix for path in store.folder.iterdir()] == [".json"]


def test_what_a_killed_writer_left_is_not_a_receipt_and_goes_with_the_next_write(store):
    store.put(made())
    (store.folder / ".writing-0011").write_bytes(b'{"half":')
    assert len(store.load()) == 1
    store.put(made(Stage.ADMIT, store.tip()))
    assert not list(store.folder.glob(".writing-*"))


def test_a_changed_receipt_is_named(store):
    path = store.folder / f"{store.put(made())}.json"
    path.write_bytes(path.read_bytes().replace(b'"r1"', b'"r2"'))
    with pytest.raises(ReceiptError, match=path.name):
        store.load()


def test_a_removed_receipt_is_a_gap(store):
    first = store.put(made())
    second = store.put(made(Stage.ADMIT, first))
    store.put(made(Stage.ACQUIRE, second))
    (store.folder / f"{second}.json").unlink()
    with pytest.raises(ReceiptError, match="gap: the acquire"):
        store.load()


def test_two_histories_are_a_fork(store):
    first = store.put(made())
    store.put(made(Stage.ADMIT, first))
    store.put(made(Stage.ACQUIRE, first))
    with pytest.raises(ReceiptError, match="forks"):
        store.load()


def test_the_newest_closure_is_the_one_that_no_other_supersedes(store):
    store.put(made())
    first = store.put(made(Stage.CLOSURE, store.tip(), supersedes=None))
    assert store.newest_closure().sha256 == first
    second = store.put(made(Stage.CLOSURE, store.tip(), supersedes=first))
    assert store.newest_closure().sha256 == second


@pytest.mark.parametrize("supersedes", [None, "0" * 64, ["x"], {"a": 1}, 7])
def test_two_closures_that_do_not_supersede_each_other_are_refused(store, supersedes):
    store.put(made())
    store.put(made(Stage.CLOSURE, store.tip(), supersedes=None))
    store.put(made(Stage.CLOSURE, store.tip(), supersedes=supersedes))
    with pytest.raises(ReceiptError, match="two closures"):
        store.newest_closure()


def test_a_receipt_larger_than_any_reader_takes_is_not_written(store):
    with pytest.raises(ReceiptError, match="larger"):
        store.put(made(log="x" * (17 << 20)))
    assert not store.folder.exists()
