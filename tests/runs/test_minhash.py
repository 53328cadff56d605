"""Features by shared neighbours: signatures do not depend on the regions, and what is planted is found."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from giaann_dask.keys import pack_neuron, pack_target
from giaann_dask.models.columns.flags import (
    LEAST_FILLED,
    PARTS,
    MinHashes,
    merge_minhashes,
    minhash_neighbours,
    similar_by_neighbours,
)
from giaann_dask.runs.run import Run
from giaann_dask.text.attachments import attach

Pairs = set[tuple[int, int, int]]


def run_of(pairs: Pairs, segments: int = 1) -> Run:
    """A run with connections from (column, feature) to a column's own neuron, on some segments."""
    keys = sorted(
        (int(pack_neuron(column, feature)), int(pack_target(segment, pack_neuron(target, 0), 0)))
        for column, feature, target in pairs
        for segment in range(segments)
    )
    if not keys:
        return Run.empty()
    source, counts = np.unique([key[0] for key in keys], return_counts=True)
    targets = np.array([key[1] for key in keys], np.int64)
    return Run(source, np.concatenate([[0], np.cumsum(counts)]), targets, np.ones(len(keys), np.int32))


def same(one: MinHashes, other: MinHashes) -> bool:
    return np.array_equal(one.feature, other.feature) and np.array_equal(one.least, other.least)


@given(
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 90)), max_size=200),
    st.integers(1, 4),
)
def test_signatures_are_those_of_all_regions_in_any_order(pairs: Pairs, regions: int) -> None:
    random = np.random.default_rng(len(pairs))
    dealt: list[Pairs] = [set() for _ in range(regions)]
    for pair in sorted(pairs):
        dealt[int(random.integers(regions))].add(pair)
    parts = [minhash_neighbours(run_of(part)) for part in dealt]
    whole = minhash_neighbours(run_of(pairs))
    assert same(merge_minhashes(parts), whole)
    assert same(merge_minhashes([*parts[::-1], parts[0]]), whole), "a region that is looked at twice changes nothing"
    assert same(minhash_neighbours(run_of(pairs, segments=3)), whole), "segments do not matter, neurons do"
    assert whole.feature.tolist() == sorted({feature for _, feature, _ in pairs if feature})


def test_nothing_is_similar_to_nothing() -> None:
    assert similar_by_neighbours(merge_minhashes([])) == {}
    assert similar_by_neighbours(minhash_neighbours(Run.empty())) == {}


@examples(30)
@given(st.integers(0, 2**32), st.integers(20, 300))
def test_what_shares_most_is_found_and_what_shares_little_is_not(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    words = random.permutation(2000)
    # 1 and 2 have nine of ten in common, in different columns; 3 has a tenth of theirs; 4 has none.
    sets = {
        1: words[:size],
        2: words[size // 10 : size + size // 20],
        3: words[size - size // 10 :][:size],
        4: words[-9:],
    }
    pairs = {(feature % 2, feature, int(word)) for feature, its in sets.items() for word in its}
    found = similar_by_neighbours(minhash_neighbours(run_of(pairs)))
    assert found == {1: [2], 2: [1]}


def test_features_with_few_neighbours_are_left_alone() -> None:
    few = {(0, feature, word) for feature in (1, 2) for word in range(LEAST_FILLED - 1)}
    assert similar_by_neighbours(minhash_neighbours(run_of(few))) == {}
    many = {(0, feature, word) for feature in (1, 2) for word in range(PARTS)}
    assert similar_by_neighbours(minhash_neighbours(run_of(many))) == {1: [2], 2: [1]}


def test_similar_features_send_together() -> None:
    found = attach(["", "a", "b", "c"], ["neighbours"], subwords=False, neighbours={1: [2, 9], 2: [1], 9: [1]})
    assert [found.groups_of(feature) for feature in range(5)] == [[], [0], [1], [], []]
    assert [found.members_of(group).tolist() for group in (0, 1)] == [[2], [1]]
    assert found.weight.tolist() == [0.25, 0.25]
