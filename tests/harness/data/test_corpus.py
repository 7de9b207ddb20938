"""The public corpus that ships, and private ones that stay where they are."""

import hashlib
import json
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import corpus
from harness.errors import InputError
from harness.layouts import describe
from harness.prefix_tree import PrefixTree
from harness.workloads import SETS_DIR, load_rows, workload

PUBLIC = SETS_DIR / "corpus" / "cal-text.json"
PINNED = workload("cal-text").sha256

SECRET = 987654321
"""A token id that stands in private files only, and must not come out of them."""


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=("Cs",))), min_size=1, max_size=4))
def test_encoded_passages_can_be_decoded(passages):
    row = corpus.encode(passages)
    assert corpus.decode(row) == passages
    assert all(0 <= token < corpus.VOCABULARY for token in row)


@pytest.mark.parametrize("row", [(), (97,), (97, 98)])
def test_a_row_that_ends_within_a_passage_is_no_text(row):
    with pytest.raises(ValueError, match="END_OF_PASSAGE"):
        corpus.decode(row)


def test_the_public_corpus_is_real_text_of_eight_groups():
    texts = [corpus.decode(row) for group in range(8) for row in load_rows("cal-text", group)]
    assert ["We hold these truths to be self-evident,", "that all men are created equal,"] in [t[:2] for t in texts]
    assert len(json.loads(PUBLIC.read_text())["groups"]) == workload("cal-text").groups == 8


def test_every_passage_of_the_public_corpus_has_its_source_in_the_readme():
    readme = (PUBLIC.parent / "README.md").read_text()
    sources = {name.partition(".")[0] for name in json.loads(PUBLIC.read_text())["passages"]}
    assert sources
    for source in sources:
        assert f"| `{source}` |" in readme


def test_the_groups_have_the_kinds_that_training_groups_have():
    trees = [PrefixTree.from_rows(load_rows("cal-text", group)) for group in range(8)]
    depths = [max((node.depth for node in tree.nodes), default=0) for tree in trees]
    assert depths[2] == 0, "a singleton"
    assert len(trees[2].row_lengths) == 1
    assert depths[5] >= 4, "a deep one"
    assert sum(depth >= 2 for depth in depths) >= 4
    assert sum(node.depth == 1 for node in trees[3].nodes) == 2, "two families"
    ends_inside = [
        row for row, node in enumerate(trees[6].deepest) if trees[6].nodes[node].end == trees[6].row_lengths[row]
    ]
    assert len(ends_inside) == 3, "rows that repeat or are prefixes of others"


def test_the_deep_group_nests_prefixes_at_least_four_deep_in_its_packing_too():
    candidates = describe("cal-text", 5, load_rows("cal-text", 5))["candidates"]
    assert max(one["max_depth"] for one in candidates) >= 5


def test_a_flipped_byte_of_the_public_corpus_is_refused_with_file_and_both_digests(tmp_path):
    damaged = bytearray(PUBLIC.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "cal-text.json").write_bytes(damaged)
    with pytest.raises(InputError) as refused:
        corpus.public_group(tmp_path / "cal-text.json", 0, PINNED)
    assert "cal-text.json" in refused.value.cause
    assert PINNED in refused.value.cause
    assert hashlib.sha256(damaged).hexdigest() in refused.value.cause


def test_the_harness_refuses_a_flipped_byte_in_its_own_corpus(tmp_path, harness):
    shutil.copytree(SETS_DIR.parent, tmp_path / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path / "harness" / "sets" / "corpus" / "cal-text.json"
    data = bytearray(target.read_bytes())
    data[-100] ^= 4
    target.write_bytes(data)
    answer = harness("layouts", "--workload", "cal-text", "--group", "1", root=tmp_path)
    assert answer.returncode == 2
    assert "cal-text.json" in answer.stderr
    assert PINNED in answer.stderr


def test_a_passage_that_does_not_exist_is_refused_by_place(tmp_path):
    document = json.loads(PUBLIC.read_text())
    document["groups"][3]["rows"][1][0] = "sonnet18.night"
    path = tmp_path / "cal-text.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"groups\[3\]\.rows\[1\]\[0\].*sonnet18\.night"):
        corpus.public_group(path, 3, hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def private(tmp_path):
    """A private corpus file as a function of its lines, with its digest."""

    def make(*lines):
        path = tmp_path / "tokens.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path, hashlib.sha256(path.read_bytes()).hexdigest()

    return make


def line(group, rows):
    return json.dumps({"group": group, "rows": rows})


def test_a_private_corpus_is_read_by_path_and_digest(private):
    path, sha256 = private(line(1, [[1, 2], [1, 3]]), line(4, [[SECRET]]))
    assert load_rows("cal-ellavox", 1, path, sha256) == ((1, 2), (1, 3))
    assert load_rows("cal-ellavox", 4, path, sha256) == ((SECRET,),)


def test_a_private_corpus_that_was_not_named_is_an_error_that_says_how():
    with pytest.raises(InputError) as refused:
        load_rows("cal-ellavox", 1)
    assert "private" in refused.value.cause
    assert "CORPUS" in refused.value.remedy


def test_a_private_corpus_without_a_digest_is_refused(private):
    path, _ = private(line(1, [[1]]))
    with pytest.raises(InputError) as refused:
        load_rows("cal-ellavox", 1, path)
    assert "CORPUS_SHA256" in refused.value.remedy


@pytest.mark.parametrize("sha256", ["", "abc", "A" * 64])
def test_a_text_that_is_no_digest_is_refused(private, sha256):
    path, _ = private(line(1, [[1]]))
    with pytest.raises(InputError, match="not a SHA-256"):
        load_rows("cal-ellavox", 1, path, sha256)


def test_a_missing_private_corpus_is_refused_by_its_name_without_the_way_there(tmp_path):
    with pytest.raises(InputError) as refused:
        load_rows("cal-ellavox", 1, tmp_path / "deep" / "tokens.jsonl", "0" * 64)
    assert "tokens.jsonl" in refused.value.cause
    assert str(tmp_path) not in refused.value.cause


def test_another_private_corpus_is_refused_with_both_digests(private):
    path, sha256 = private(line(1, [[1]]))
    with pytest.raises(InputError) as refused:
        load_rows("cal-ellavox", 1, path, "0" * 64)
    assert sha256 in refused.value.cause
    assert "0" * 64 in refused.value.cause


def test_a_group_that_a_private_corpus_lacks_lists_its_groups(private):
    path, sha256 = private(line(5, [[1]]), line(3, [[1]]))
    with pytest.raises(InputError, match="no group 1") as refused:
        load_rows("cal-ellavox", 1, path, sha256)
    assert "3, 5" in refused.value.remedy


@pytest.mark.parametrize(
    ("damaged", "cause"),
    [
        (f"[{SECRET}", "line 2: not JSON"),
        (f"[{SECRET}]", "line 2: must be an object"),
        (json.dumps({"group": 2, "rows": [[SECRET]], "text": str(SECRET)}), "line 2: must be an object with exactly"),
        (json.dumps({"group": "2", "rows": [[SECRET]]}), "line 2 at group"),
        (json.dumps({"group": 2, "rows": [[SECRET, -1]]}), "line 2 at rows[0][1]"),
        (json.dumps({"group": 2, "rows": [[SECRET, 1.5]]}), "line 2 at rows[0][1]"),
        (json.dumps({"group": 2, "rows": [[SECRET], []]}), "line 2 at rows"),
        (json.dumps({"group": 2, "rows": []}), "line 2 at rows"),
        (json.dumps({"group": 2, "rows": str(SECRET)}), "line 2 at rows"),
        (json.dumps({"group": 1, "rows": [[SECRET]]}), "line 2: has group 1 a second time"),
    ],
)
def test_a_damaged_line_is_refused_by_number_and_its_content_is_never_printed(private, harness, damaged, cause):
    path, sha256 = private(line(1, [[1, SECRET]]), damaged)
    answer = harness(
        "layouts", "--workload", "cal-ellavox", "--group", "1", env={"CORPUS": str(path), "CORPUS_SHA256": sha256}
    )
    assert answer.returncode == 2
    assert cause in answer.stderr
    assert str(SECRET) not in answer.stderr + answer.stdout
    assert "Traceback" not in answer.stderr


def test_layouts_of_a_private_corpus_print_lengths_and_no_token(private, harness):
    path, sha256 = private(line(1, [[SECRET, SECRET + 1], [SECRET, SECRET + 2]]))
    answer = harness(
        *("layouts", "--workload", "cal-ellavox", "--group", "1", "--json"),
        env={"CORPUS": str(path), "CORPUS_SHA256": sha256},
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["tokens"] == 4
    assert not any(str(SECRET + n) in answer.stdout for n in range(3))


def damaged_file(tmp_path, kind):
    path = tmp_path / kind
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "zero":
            path.symlink_to("/dev/zero")
        case "huge":
            with path.open("wb") as file:
                file.truncate(corpus.MAX_PRIVATE_BYTES + 1)
    return path


@pytest.mark.parametrize("kind", ["fifo", "folder", "zero", "huge"])
def test_a_private_corpus_that_can_not_be_read_to_its_end_is_refused(tmp_path, kind):
    path = damaged_file(tmp_path, kind)
    with pytest.raises(InputError, match=f"the private corpus {kind}") as caught:
        load_rows("cal-ellavox", 1, path, "0" * 64)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("group", ["\uff11", "+1", "01", " 1", "1_0", "-1", ""])
def test_a_group_that_no_cell_key_would_name_is_refused(harness, group):
    answer = harness("layouts", "--workload", "cal-text", f"--group={group}")
    assert answer.returncode == 2
    assert "is not a group number" in answer.stderr
    assert answer.stdout == ""
