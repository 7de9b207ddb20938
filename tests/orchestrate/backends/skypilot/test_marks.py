"""What the name of a cluster and the comment of a Slurm job say, and what they do not."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate.backends.skypilot_marks import cluster_name, is_of_cluster, marks_of_comment, marks_of_name

TOKEN = "00112233445566778899aabbccddeeff"
COMMENT = f"orchestrate/1,run=r20261130-224410-aaaaaa,owner=ann,token={TOKEN},expires=20261130T224410Z"


def test_a_name_carries_token_and_expiry_in_thirty_characters():
    name = cluster_name(TOKEN, "2026-11-30T22:44:10.000Z")
    assert len(name) <= 30
    marks = marks_of_name(name)
    assert marks.token_digest == hashlib.sha256(TOKEN.encode()).hexdigest()[:14]
    assert marks.expires_at == "2026-11-30T22:45:00.000Z", "rounded up: it must not expire before its time"


def test_a_comment_says_run_owner_and_the_same_token():
    told = marks_of_comment(COMMENT)
    assert (told.run_id, told.owner) == ("r20261130-224410-aaaaaa", "ann")
    assert told.token_digest == marks_of_name(cluster_name(TOKEN, "2026-11-30T22:44:10.000Z")).token_digest


@pytest.mark.parametrize(
    "name", ["orc-0123456789abcd-26113022451", "orc-0123456789abc-2611302245", "orc-0123456789ABCD-2611302245",
             "xorc-0123456789abcd-2611302245", "orc-0123456789abcd-2613302245", "orc-0123456789abcd", ""],
)  # fmt: skip
def test_a_look_alike_is_no_name_of_ours(name):
    assert marks_of_name(name) is None


@given(st.text(max_size=60))
def test_no_text_is_taken_for_a_comment_of_ours(text):
    assert marks_of_comment(text) is None
    assert marks_of_comment(COMMENT + text) is None or not text


def test_only_skypilots_own_suffix_makes_it_the_clusters():
    cluster = cluster_name(TOKEN, "2026-11-30T22:44:10.000Z")
    assert is_of_cluster(cluster, cluster)
    assert is_of_cluster(f"{cluster}-fcd1e5cf", cluster)
    for other in (f"{cluster}0", f"{cluster}-fcd1e5c", f"{cluster}-fcd1e5cf0", f"{cluster}-FCD1E5CF", cluster[:-1]):
        assert not is_of_cluster(other, cluster)
