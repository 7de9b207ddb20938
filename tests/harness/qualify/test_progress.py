"""The file of which a node has to be the only writer."""

import json

from harness.progress import Progress


def test_what_was_written_stays_own_until_somebody_else_writes(tmp_path):
    path = tmp_path / "node.jsonl"
    progress = Progress(path)
    progress.write("node-started", cell=None)
    assert progress.is_own()
    with path.open("a") as file:
        file.write("{}\n")
    assert not progress.is_own()


def test_a_restored_file_has_the_own_lines_alone_and_another_inode(tmp_path):
    path = tmp_path / "node.jsonl"
    progress = Progress(path)
    progress.write("node-started")
    before = path.stat().st_ino
    path.unlink()
    progress.restore()
    progress.write("node-ended")
    assert progress.is_own()
    assert path.stat().st_ino != before
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["node-started", "node-ended"]
    assert [each.name for each in tmp_path.iterdir()] == ["node.jsonl"]
