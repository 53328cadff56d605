"""Counts of contexts: exact sums, whatever the blocks and their order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from giaann_dask.keys import pack_target, source_key, unpack_target, word_key
from giaann_dask.models.contexts.counting import ContextCounts, count_contexts, count_rows
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS, EXTENDS, SINGLE, context_sources
from giaann_dask.models.words.stream import NONE, TokenStream
from giaann_dask.runs.packing import pack, unpack

Documents = list[list[list[str]]]
WORDS = st.sampled_from(["a", "b", "The", "the", "cats", "walking", "talking", "1984", "é"])
DOCUMENTS = st.lists(st.lists(st.lists(WORDS, min_size=1, max_size=9), max_size=4), max_size=4)


def counted(documents: Documents) -> ContextCounts:
    return count_contexts(TokenStream.from_documents(documents))


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


@examples(25)
@given(DOCUMENTS, st.integers(1, 7))
def test_blocks_do_not_matter(documents: Documents, block_tokens: int) -> None:
    run = count_rows(TokenStream.from_documents(documents), range(len(CONTEXTS)), block_tokens)
    whole = counted(documents)
    assert plain(ContextCounts(run, whole.words)) == plain(whole)


@examples(25)
@given(DOCUMENTS)
def test_counts_are_those_of_a_dictionary(documents: Documents) -> None:
    counts = counted(documents)
    for distance in (1, 3, 6):
        assert found_pairs(counts, distance) == pairs(documents, distance)
    segment, neuron, _ = unpack_target(counts.run.target)
    total = dict(zip(neuron[segment == 0].tolist(), counts.run.strength[segment == 0].tolist(), strict=True))
    expected = Counter(word.lower() for document in documents for sentence in document for word in sentence)
    assert total == {word_key(word): count for word, count in expected.items()}


@examples(10)
@given(st.integers(0, 1 << 32), st.integers(1, 40), st.sampled_from([1, 100, 1 << 18]))
def test_rows_of_any_length_are_counted(seed: int, words: int, block_tokens: int) -> None:
    """Short rows are sorted by insertion, long ones otherwise; some are those of the same word over and over."""
    rng = np.random.default_rng(seed)
    names = [f"word{number}" for number in np.minimum(rng.geometric(1 / words, 600), 500).tolist()]
    ends = [0, *np.cumsum(rng.integers(1, 30, 40)).tolist()]
    stream = TokenStream.from_documents([[names[begin:end] for begin, end in pairwise(ends) if names[begin:end]]])
    kinds = [0, *range(1, CHAIN + 1), len(CONTEXTS) - 1]
    expected: Counter[tuple[int, int]] = Counter()
    word = stream.keys[stream.index]
    for kind in kinds:
        source = context_sources(stream, kind)
        links = [(source, pack_target(kind, word, 0))]
        if 1 < kind <= CHAIN:
            links.append((source, pack_target(EXTENDS, context_sources(stream, kind - 1), 0)))
        expected.update((s, t) for a, b in links for s, t in zip(a.tolist(), b.tolist(), strict=True) if s != NONE)
    run = count_rows(stream, kinds, block_tokens)
    source = np.repeat(run.source, np.diff(run.pointer))
    found = list(zip(source.tolist(), run.target.tolist(), run.strength.tolist(), strict=True))
    assert found == sorted((*pair, count) for pair, count in expected.items())


def test_counts_are_packed_like_any_run() -> None:
    counts = counted([[["the", "cat", "saw", "the", "dog", "and", "the", "cat"]]])
    assert plain(ContextCounts(unpack(pack(counts.run)), counts.words)) == plain(counts)


def test_each_link_of_the_chain_extends_the_one_before() -> None:
    for kind in range(1, CHAIN + 1):
        assert CONTEXTS[kind].parts[:-1] == CONTEXTS[kind - 1].parts
    assert list(SINGLE) == [1, 2, 3, 4, 5, 6]
