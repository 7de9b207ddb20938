"""What a run leaves beside its processes: found while it is held, and told from what others have."""

import os
import secrets
import socket
import time

import pytest

from orchestrate.backends.leftovers import (
    SHARED_MEMORY,
    TempFolder,
    TempMark,
    files_named_after,
    held_ports,
    held_shared_files,
    listening,
)
from orchestrate.backends.process_table import read_process
from orchestrate.backends.sampling import Samples

MARK = TempMark("r20260102-030405-0a1b2c", "ada@ws", "2026-01-02T04:00:00Z", "/runs/r")


@pytest.fixture
def shared_file():
    path = SHARED_MEMORY / f"test-{secrets.token_hex(6)}"
    yield path
    path.unlink(missing_ok=True)


def me():
    return read_process(os.getpid())


def test_a_listening_socket_is_held_by_its_process_and_gone_when_closed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        assert number in {port.number for port in held_ports([me()])}
    assert number not in {port.number for port in listening()}


def test_the_number_alone_is_not_the_socket():
    samples = Samples()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        samples.take([me()])
        assert address[1] in {port.number for port in samples.ports_left()}
    with socket.create_server(address):
        assert address[1] not in {port.number for port in samples.ports_left()}


def test_shared_memory_that_is_held_is_seen_and_what_was_there_before_is_not_ours(shared_file):
    with shared_file.open("w"):
        fresh, late = Samples(), Samples()
        fresh.take([me()])
        late.begin()
        late.take([me()])
        assert str(shared_file) in {file.path for file in held_shared_files([me()])}
        assert str(shared_file) in {file.path for file in fresh.shared_left()}
        assert str(shared_file) not in {file.path for file in late.shared_left()}
    shared_file.unlink()
    assert fresh.shared_left() == set()


def test_another_file_of_the_same_name_is_not_the_one_that_was_seen(shared_file):
    samples = Samples()
    with shared_file.open("w"):
        samples.take([me()])
        shared_file.rename(shared_file.with_suffix(".old"))
    try:
        shared_file.touch()
        assert str(shared_file) not in {file.path for file in samples.shared_left()}
    finally:
        shared_file.with_suffix(".old").unlink()


def test_a_name_with_our_pid_as_a_number_is_ours_only_when_it_is_not_older_than_the_run():
    path = SHARED_MEMORY / f"torch_{os.getpid()}_{secrets.randbits(20)}_0"
    other = SHARED_MEMORY / f"torch_{os.getpid()}9_1_0"
    for file in (path, other):
        file.touch()
    try:
        found = {file.path for file in files_named_after((), [os.getpid()], time.time() - 60)}
        assert str(path) in found
        assert str(other) not in found
        assert str(path) not in {file.path for file in files_named_after((), [os.getpid()], time.time() + 60)}
    finally:
        path.unlink()
        other.unlink()


def test_a_file_with_our_pid_in_its_name_that_somebody_still_holds_is_not_ours():
    path = SHARED_MEMORY / f"foreign-{os.getpid()}-{secrets.randbits(20)}"
    try:
        with path.open("w"):
            assert str(path) not in {file.path for file in files_named_after((), [os.getpid()], time.time() - 60)}
        assert str(path) in {file.path for file in files_named_after((), [os.getpid()], time.time() - 60)}
    finally:
        path.unlink()


def test_samples_survive_the_journal(shared_file):
    before, after = Samples(), Samples()
    with shared_file.open("w"), socket.create_server(("127.0.0.1", 0)) as server:
        before.take([me()])
        for fact in before.news():
            after.recall(fact)
        assert before.news() == []
        assert server.getsockname()[1] in {port.number for port in after.ports_left()}
        assert str(shared_file) in {file.path for file in after.shared_left()}


def test_a_temporary_folder_says_whose_it_is_and_goes_with_all_that_is_in_it(tmp_path):
    folder = TempFolder.of(tmp_path, MARK.run_id, "0123456789abcdef")
    assert folder.path.name == "orchestrate-r20260102-030405-0a1b2c-01234567"
    folder.create(MARK)
    (folder.path / "deep" / "er").mkdir(parents=True)
    (folder.path / "deep" / "file").touch()
    assert folder.mark() == MARK
    assert folder.remove() is True
    assert folder.remove() is False
    assert not folder.exists()


def test_what_somebody_put_in_its_place_is_left_alone(tmp_path):
    target = tmp_path / "precious"
    target.mkdir()
    folder = TempFolder(tmp_path / "orchestrate-x")
    folder.path.symlink_to(target)
    with pytest.raises(PermissionError, match="left alone"):
        folder.remove()
    assert target.is_dir()


def test_a_link_inside_does_not_lead_the_removal_outside(tmp_path):
    target = tmp_path / "precious"
    target.mkdir()
    (target / "file").touch()
    folder = TempFolder(tmp_path / "orchestrate-x")
    folder.create(MARK)
    (folder.path / "link").symlink_to(target)
    folder.remove()
    assert (target / "file").exists()
