"""The prefix tree and its layouts, against a model that looks at every prefix of every row."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.errors import InputError
from harness.packing import loss_weight, pack
from harness.prefix_tree import (
    ROOT,
    SEGMENT_LENGTH_THRESHOLDS,
    Layout,
    PrefixTree,
    candidate_family,
    equal_labels,
    features,
)

groups_of_rows = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1, max_size=7)
"""Few token values and short rows: equal rows, rows that are prefixes of others and deep nesting are all common."""

hard_cases = [
    example([(1,)]),
    example([(1, 2), (1, 2)]),
    example([(1, 2), (1, 2, 3)]),
    example([(1,), (1, 2), (1, 2, 3), (1, 2, 3)]),
    example([(1, 2, 0), (1, 2, 1), (2, 2, 0), (2, 2, 0)]),
    example([(0,), (1,), (2,)]),
]


def with_hard_cases(test):
    for case in hard_cases:
        test = case(test)
    return test


def naive_nodes(rows):
    """(end, rows) of each prefix of two or more rows after which at least one of them goes another way or ends."""

    def through(prefix):
        return frozenset(index for index, row in enumerate(rows) if row[: len(prefix)] == prefix)

    found = set()
    for row in rows:
        for end in range(1, len(row) + 1):
            here = through(row[:end])
            onward = through(row[: end + 1]) if end < len(row) else frozenset()
            if len(here) > 1 and onward != here:
                found.add((end, here))
    return found


def naive_owner(tree, shared, row, position):
    """What holds the token of `row` at `position`: the first shared node that ends beyond it, or the row's own tail."""
    ends = [node for node in tree.nodes if node.id in shared and row in node.rows and node.end > position]
    return min(ends, key=lambda node: node.end).id if ends else ("tail", row)


def naive_owners(tree, layout):
    return {
        row: [naive_owner(tree, layout.shared, row, position) for position in range(length)]
        for row, length in enumerate(tree.row_lengths)
    }


def naive_shared_at(tree, threshold):
    shared = set()
    for node in tree.nodes:
        above = [other.end for other in tree.nodes if other.id in shared and set(other.rows) > set(node.rows)]
        # Nodes of equal rows do not exist, so a strict superset of rows is a strict ancestor.
        if node.end - max(above, default=0) >= threshold:
            shared.add(node.id)
    return frozenset(shared)


@given(groups_of_rows)
@with_hard_cases
def test_the_nodes_are_exactly_the_prefixes_where_rows_part_or_end(rows):
    tree = PrefixTree.from_rows(rows)
    assert {(node.end, frozenset(node.rows)) for node in tree.nodes} == naive_nodes(rows)
    assert len(tree.nodes) == len(naive_nodes(rows))


@given(groups_of_rows)
@with_hard_cases
def test_a_node_starts_where_its_parent_ends_and_is_numbered_after_it(rows):
    tree = PrefixTree.from_rows(rows)
    for index, node in enumerate(tree.nodes):
        assert node.id == index
        if node.parent == ROOT:
            assert (node.start, node.depth) == (0, 1)
        else:
            parent = tree.nodes[node.parent]
            assert node.parent < index
            assert (node.start, node.depth) == (parent.end, parent.depth + 1)
            assert set(node.rows) < set(parent.rows)
    for row, deepest in enumerate(tree.deepest):
        through = [node.id for node in tree.nodes if row in node.rows]
        assert deepest == max(through, key=lambda node: tree.nodes[node].end, default=ROOT)


@given(groups_of_rows, st.data())
def test_features_of_any_layout_count_what_a_look_at_each_token_counts(rows, data):
    tree = PrefixTree.from_rows(rows)
    shared = data.draw(st.sets(st.sampled_from([node.id for node in tree.nodes]))) if tree.nodes else set()
    layout = Layout("any", frozenset(shared))
    owners = naive_owners(tree, layout)
    stored = {(owner, position) for row in owners.values() for position, owner in enumerate(row)}
    lengths = {owner: sum(one == owner for one, _ in stored) for owner, _ in stored}
    found = features(tree, layout)
    assert found.packed_tokens == len(stored)
    assert found.segment_count == len(lengths)
    assert found.max_depth == max(len(set(row)) for row in owners.values())
    assert found.segments_below == tuple(
        sum(length < bound for length in lengths.values()) for bound in SEGMENT_LENGTH_THRESHOLDS
    )


@given(groups_of_rows)
@with_hard_cases
def test_full_sharing_stores_each_distinct_prefix_once(rows):
    tree = PrefixTree.from_rows(rows)
    everything = Layout("full_sharing", frozenset(node.id for node in tree.nodes))
    # What rows have beyond their deepest node differs, so that no two tails begin alike: a trie has as many tokens.
    distinct = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}
    assert features(tree, everything).packed_tokens == len(distinct)


@given(groups_of_rows)
@with_hard_cases
def test_thresholds_are_exactly_those_at_which_the_choice_changes(rows):
    tree = PrefixTree.from_rows(rows)
    last = max(tree.row_lengths) + 1
    chosen = {threshold: naive_shared_at(tree, threshold) for threshold in range(1, last + 1)}
    changes = [t for t in chosen if t == 1 or chosen[t] != chosen[t - 1]]
    labels = [f"minimum_effective_span_{threshold}" for threshold in changes]
    named = {layout.label: layout.shared for layout in candidate_family(tree)}
    equal = equal_labels(tree)
    assert {label for label in (*named, *equal) if label.startswith("minimum")} == set(labels)
    for threshold, label in zip(changes, labels, strict=True):
        assert named[equal.get(label, label)] == chosen[threshold]


@given(groups_of_rows)
@with_hard_cases
def test_a_family_has_no_layout_twice_and_names_those_it_leaves_out(rows):
    tree = PrefixTree.from_rows(rows)
    family = candidate_family(tree)
    assert len({layout.shared for layout in family}) == len(family)
    assert family[0] == Layout("no_sharing", frozenset())
    equal = equal_labels(tree)
    labels = [layout.label for layout in family]
    assert not set(equal) & set(labels)
    assert set(equal.values()) <= set(labels)
    assert {"no_sharing", "depth_one", "full_sharing"} <= {*equal, *labels}


def test_the_first_label_stands_for_equal_layouts():
    tree = PrefixTree.from_rows([(1, 2), (1, 3)])
    assert [layout.label for layout in candidate_family(tree)] == ["no_sharing", "depth_one"]
    assert equal_labels(tree) == {
        "minimum_effective_span_1": "depth_one",
        "minimum_effective_span_2": "no_sharing",
        "full_sharing": "depth_one",
    }


def test_a_single_row_has_nothing_to_share():
    tree = PrefixTree.from_rows([(5, 6, 7)])
    assert tree.nodes == ()
    assert [layout.label for layout in candidate_family(tree)] == ["no_sharing"]
    assert features(tree, candidate_family(tree)[0]).max_depth == 1


@pytest.mark.parametrize(("rows", "cause"), [([], "no rows"), ([(1,), ()], "row 1 of the group has no tokens")])
def test_empty_groups_and_empty_rows_are_refused(rows, cause):
    with pytest.raises(InputError, match=cause):
        PrefixTree.from_rows(rows)


@given(groups_of_rows, st.permutations(range(3)))
def test_the_tree_does_not_depend_on_what_the_tokens_are(rows, renamed):
    assert PrefixTree.from_rows(rows) == PrefixTree.from_rows([[renamed[token] for token in row] for row in rows])


@given(groups_of_rows)
@with_hard_cases
def test_every_row_can_be_read_back_from_every_packing(rows):
    tree = PrefixTree.from_rows(rows)
    for layout in candidate_family(tree):
        packed = pack(rows, tree, layout)
        for row, tokens in enumerate(rows):
            way = [segment for segment in packed.segments if row in segment.rows]
            assert [segment.depth for segment in way] == list(range(1, len(way) + 1))
            assert [segment.parent for segment in way] == [ROOT, *(segment.index for segment in way[:-1])]
            read = [token for s in way for token in packed.tokens[s.start : s.start + s.length]]
            assert tuple(read) == tuple(tokens)
            assert [s.row_start for s in way] == [sum(t.length for t in way[:i]) for i, s in enumerate(way)]
        assert [s.start for s in packed.segments] == [
            sum(other.length for other in packed.segments[: s.index]) for s in packed.segments
        ]
        assert all(segment.length > 0 and segment.parent < segment.index for segment in packed.segments)
        assert features(tree, layout).packed_tokens == len(packed.tokens)


@given(groups_of_rows)
@with_hard_cases
def test_the_loss_is_the_same_for_every_layout(rows):
    tree = PrefixTree.from_rows(rows)
    wanted = [
        (tokens[position], tokens[position + 1], loss_weight(row, position))
        for row, tokens in enumerate(rows)
        for position in range(len(tokens) - 1)
    ]
    for layout in candidate_family(tree):
        packed = pack(rows, tree, layout)
        assert [(packed.tokens[term.packed_index], term.target, term.weight) for term in packed.terms] == wanted


def test_loss_weights_are_positive_and_tell_neighbours_apart():
    weights = [[loss_weight(row, position) for position in range(64)] for row in range(64)]
    assert all(1 <= weight < 2 for row in weights for weight in row)
    assert all(one != other for row in weights for one, other in itertools.pairwise(row))
    assert all(one[0] != other[0] for one, other in itertools.pairwise(weights))


def test_the_digest_tells_any_two_packings_apart():
    rows = [(1, 2, 3), (1, 2, 4), (1, 5)]
    tree = PrefixTree.from_rows(rows)
    digests = [pack(rows, tree, layout).digest for layout in candidate_family(tree)]
    other = [(1, 2, 3), (1, 2, 4), (1, 6)]
    digests += [pack(other, PrefixTree.from_rows(other), layout).digest for layout in candidate_family(tree)]
    assert len(set(digests)) == len(digests)
    assert digests[0] == pack(rows, tree, candidate_family(tree)[0]).digest


def test_the_digest_sees_a_token_that_is_no_target():
    digests = []
    for rows in ([(1, 2, 3)], [(9, 2, 3)]):
        tree = PrefixTree.from_rows(rows)
        digests.append(pack(rows, tree, candidate_family(tree)[0]).digest)
    assert digests[0] != digests[1]


def test_a_tree_of_other_rows_is_refused():
    tree = PrefixTree.from_rows([(1, 2)])
    with pytest.raises(InputError, match="other rows"):
        pack([(1, 2, 3)], tree, candidate_family(tree)[0])
