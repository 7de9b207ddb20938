"""Whose traces a folder holds, and the word that the ranks of one job share."""

import threading

from torch.distributed import HashStore

from harness.trace.format import TraceWriter
from harness.trace.job_identity import free_place, launch_identity, shared_identity


def claim(folder, rank, job):
    place = free_place(folder, rank, job)
    TraceWriter(place, rank, world_size=4).close()
    return place.relative_to(folder).as_posix()


def test_ranks_of_two_jobs_never_share_a_folder_whoever_comes_first(tmp_path):
    places = [claim(tmp_path, rank, job) for job, rank in (("a", 0), ("b", 1), ("b", 0), ("a", 1), ("c", 2))]
    assert places == [".", "job2", "job2", ".", "job3"]


def test_a_rank_that_comes_again_has_another_folder_though_its_job_is_the_same(tmp_path):
    assert [claim(tmp_path, 0, "a"), claim(tmp_path, 0, "a"), claim(tmp_path, 1, "a")] == [".", "job2", "."]


def test_ranks_that_come_at_once_agree_whose_the_folder_is(tmp_path):
    together = threading.Barrier(8)
    places = {}

    def come(rank):
        together.wait()
        places[rank] = free_place(tmp_path, rank, "ab"[rank % 2])

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    even, odd = ({places[rank] for rank in range(start, 8, 2)} for start in (0, 1))
    assert len(even) == len(odd) == 1
    assert even | odd == {tmp_path, tmp_path / "job2"}


def test_attempts_differ_in_what_the_launcher_says_of_them():
    launched = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_PORT": "29500", "RANK": "0"}
    again = launched | {"TORCHELASTIC_RESTART_COUNT": "1"}
    assert launch_identity(launched) == launch_identity(launched | {"RANK": "1"})
    assert launch_identity(launched) != launch_identity(again)


def test_the_word_of_a_job_is_what_the_first_rank_put_into_its_store():
    store = HashStore()
    assert shared_identity(store) == shared_identity(store)
    assert shared_identity(store) != shared_identity(HashStore())


def test_a_store_that_can_not_say_gives_no_word():
    class Broken:
        def compare_set(self, key, expected, desired):
            raise RuntimeError("the connection is gone")

    assert shared_identity(Broken()) is None
