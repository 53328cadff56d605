"""Counts of contexts: exact sums, whatever the blocks and their order, and the same from a trained network."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from giaann_dask.errors import OptionError, SpecificationError
from giaann_dask.increments.context_counts import ContextCounts, add_counts, count_contexts, subtract_counts
from giaann_dask.increments.contexts import CHAIN, CONTEXTS, SINGLE, TokenStream, source_key, word_key
from giaann_dask.keys import pack_neuron, pack_target, unpack_target
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packing import pack, unpack
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.store.pooled_connections import pool_connections

Documents = list[list[list[str]]]
WORDS = st.sampled_from(["a", "b", "The", "the", "cats", "walking", "talking", "1984", "é"])
DOCUMENTS = st.lists(st.lists(st.lists(WORDS, min_size=1, max_size=9), max_size=4), max_size=4)


def counted(documents: Documents, block_tokens: int = 1 << 18) -> ContextCounts:
    return count_contexts(TokenStream.from_documents(documents), block_tokens=block_tokens)


def plain(counts: ContextCounts) -> object:
    run = counts.run
    arrays = (run.source, run.pointer, run.target, run.strength)
    return [(str(array.dtype), array.tobytes()) for array in arrays], counts.words


def pairs(documents: Documents, distance: int) -> Counter[tuple[str, str]]:
    lowered = [[word.lower() for word in sentence] for document in documents for sentence in document]
    return Counter((s[i - distance], s[i]) for s in lowered for i in range(distance, len(s)))


def found_pairs(counts: ContextCounts, distance: int) -> Counter[tuple[str, str]]:
    kind = SINGLE[distance]
    name = {int(source_key(kind, [np.array(word_key(word))])): word for word in counts.words}
    word = {word_key(word): word for word in counts.words}
    segment, neuron, _ = unpack_target(counts.run.target)
    source = np.repeat(counts.run.source, np.diff(counts.run.pointer))
    chosen = (segment == kind) & np.isin(source, list(name))
    entries = zip(source[chosen].tolist(), neuron[chosen].tolist(), counts.run.strength[chosen].tolist(), strict=True)
    return Counter({(name[s], word[n]): count for s, n, count in entries})


@settings(max_examples=25, deadline=None)
@given(DOCUMENTS, DOCUMENTS)
def test_parts_add_up_to_the_whole_and_can_be_taken_away(first: Documents, second: Documents) -> None:
    one, two, whole = counted(first), counted(second), counted(first + second)
    assert plain(add_counts([one, two])) == plain(add_counts([two, one])) == plain(whole)
    assert plain(subtract_counts(whole, two)) == plain(one)
    assert plain(subtract_counts(whole, whole)) == plain(ContextCounts.empty())


@settings(max_examples=25, deadline=None)
@given(DOCUMENTS, st.integers(1, 7))
def test_blocks_do_not_matter(documents: Documents, block_tokens: int) -> None:
    assert plain(counted(documents, block_tokens)) == plain(counted(documents))


@settings(max_examples=25, deadline=None)
@given(DOCUMENTS)
def test_counts_are_those_of_a_dictionary(documents: Documents) -> None:
    counts = counted(documents)
    for distance in (1, 3, 6):
        assert found_pairs(counts, distance) == pairs(documents, distance)
    segment, neuron, _ = unpack_target(counts.run.target)
    total = dict(zip(neuron[segment == 0].tolist(), counts.run.strength[segment == 0].tolist(), strict=True))
    expected = Counter(word.lower() for document in documents for sentence in document for word in sentence)
    assert total == {word_key(word): count for word, count in expected.items()}


def test_counts_are_packed_like_any_run() -> None:
    counts = counted([[["the", "cat", "saw", "the", "dog", "and", "the", "cat"]]])
    assert plain(ContextCounts(unpack(pack(counts.run)), counts.words)) == plain(counts)


def test_what_was_not_counted_cannot_be_taken_away() -> None:
    few, more = counted([[["a", "b"]]]), counted([[["a", "b"], ["a", "b"]]])
    with pytest.raises(OptionError, match="not counted"):
        subtract_counts(few, more)
    with pytest.raises(OptionError, match="not counted"):
        subtract_counts(few, counted([[["c"]]]))


def test_each_link_of_the_chain_extends_the_one_before() -> None:
    for kind in range(1, CHAIN + 1):
        assert CONTEXTS[kind].parts[:-1] == CONTEXTS[kind - 1].parts
    assert list(SINGLE) == [1, 2, 3, 4, 5, 6]


SPECIFICATION = Specification(seed_tokens=12)


def connections(sentence: list[tuple[int, int]]) -> Run:
    """The feature segments of the connections that one sentence of neurons makes, as training would."""
    increments, parts = SPECIFICATION.increments(), []
    for j, (column, feature) in enumerate(sentence):
        for i in range(j):
            distance = min(j - i, SPECIFICATION.feature_segments)
            target = pack_target(SPECIFICATION.segments - distance, pack_neuron(column, feature), 0)
            gain = np.array([increments[j - i]], np.int32)
            parts.append(Run(np.array([pack_neuron(*sentence[i])]), np.array([0, 1]), target.reshape(1), gain))
    return merge_runs(parts)


def test_a_network_pools_to_the_counts_of_its_text() -> None:
    concepts, features = ("cat", "dog"), ("prime", "the", "sees")
    sentence = [(0, 1), (0, 0), (0, 2), (1, 1), (1, 0), (1, 2), (0, 1), (0, 0)]
    words = [concepts[c] if f == 0 else features[f] for c, f in sentence]
    run = connections(sentence)
    pooled = pool_connections([run, Run.empty()], SPECIFICATION, concepts, features)
    assert pooled.words == counted([[words]]).words
    for distance in SINGLE:
        assert found_pairs(pooled, distance) == pairs([[words]], distance)
    with pytest.raises(SpecificationError, match="multiple"):
        pool_connections([run], Specification(seed_tokens=12, proximity_scale=3.0), concepts, features)
    with pytest.raises(SpecificationError, match="plain sums"):
        pool_connections([run], Specification(pos_factors={"NOUN": 2.0}), concepts, features)
