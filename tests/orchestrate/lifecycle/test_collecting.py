"""What comes home of a run into which somebody else wrote."""

import os
from types import SimpleNamespace

import pytest

from orchestrate.lifecycle.collecting import node_words

HOSTILE = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "deep": lambda path: path.write_text("[" * 200_000),
    "vast": lambda path: os.truncate(path.open("xb").name, 1 << 40),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_an_account_that_is_no_plain_file_says_nothing(tmp_path, make):
    make(tmp_path / "node.json")
    run = SimpleNamespace(evidence_of=lambda _attempt: tmp_path)
    journal = SimpleNamespace(attempts=[(1, SimpleNamespace(all=lambda _kind: ()))])
    (word,) = node_words(run, SimpleNamespace(cells=("one",)), journal)
    assert word.status == "not-run"
