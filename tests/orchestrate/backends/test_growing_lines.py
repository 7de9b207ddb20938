"""A file that grows, in a folder in which others write too."""

import os

import pytest

from orchestrate.backends.growing_lines import GrowingLines


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "node.jsonl"
    path.write_text('{"a": 1}\n{"a":')
    return path


def test_whole_lines_are_read_once(file):
    lines = GrowingLines(file)
    assert list(lines.read()) == [{"a": 1}]
    with file.open("a") as more:
        more.write(" 2}\nno JSON\n[]\n" + "[" * 100_000 + '\n{"a": 3}\n')
    assert list(lines.read()) == [{"a": 2}, {"a": 3}]
    assert list(lines.read()) == []


@pytest.mark.timeout(20)
def test_a_fifo_or_a_link_keeps_no_reader(file):
    lines = GrowingLines(file)
    target = file.rename(file.with_name("elsewhere"))
    os.mkfifo(file)
    assert list(lines.read()) == []
    file.unlink()
    file.symlink_to(target)
    assert list(lines.read()) == []


@pytest.mark.parametrize("how", ["replaced", "shortened"])
def test_after_another_file_or_a_shorter_one_nothing_is_read(file, how):
    lines = GrowingLines(file)
    assert len(list(lines.read())) == 1
    if how == "replaced":
        other = file.with_name("other")
        other.write_text('{"a": 1}\n{"a": 4}\n')
        other.replace(file)
    else:
        file.write_text("{}\n")
    assert list(lines.read()) == []
