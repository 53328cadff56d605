"""Counts of contexts: exact sums, whatever the blocks and their order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from giaann_dask.keys import pack_target, source_key, unpack_target, word_key
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS, SINGLE, context_sources
from giaann_dask.models.words.counting import BLOCK_TOKENS, EXTENDS, count_contexts
from giaann_dask.models.words.stream import NONE, Context, TokenStream
from giaann_dask.runs.packing import pack, unpack
from giaann_dask.runs.run import Run

Documents = list[list[list[str]]]
WORDS = st.sampled_from(["a", "b", "The", "the", "cats", "walking", "talking", "1984", "é"])
DOCUMENTS = st.lists(st.lists(st.lists(WORDS, min_size=1, max_size=9), max_size=4), max_size=4)


def counted(documents: Documents, block_tokens: int = BLOCK_TOKENS) -> Run:
    return count_blocks(TokenStream.from_documents(documents), [*range(len(CONTEXTS))], block_tokens)


def count_blocks(stream: TokenStream, kinds: list[int], block_tokens: int) -> Run:
    extended = {kind: kind - 1 for kind in range(2, CHAIN + 1)}
    return count_contexts(stream, {kind: CONTEXTS[kind] for kind in kinds}, extended, block_tokens)


def plain(run: Run) -> object:
    arrays = (run.source, run.pointer, run.target, run.strength)
    return [(str(array.dtype), array.tobytes()) for array in arrays]


def pairs(documents: Documents, distance: int) -> Counter[tuple[str, str]]:
    lowered = [[word.lower() for word in sentence] for document in documents for sentence in document]
    return Counter((s[i - distance], s[i]) for s in lowered for i in range(distance, len(s)))


def found_pairs(run: Run, words: tuple[str, ...], distance: int) -> Counter[tuple[str, str]]:
    kind = SINGLE[distance]
    name = {int(source_key(kind, [np.array(word_key(word))])): word for word in words}
    word = {word_key(word): word for word in words}
    segment, neuron, _ = unpack_target(run.target)
    source = np.repeat(run.source, np.diff(run.pointer))
    chosen = (segment == kind) & np.isin(source, list(name))
    entries = zip(source[chosen].tolist(), neuron[chosen].tolist(), run.strength[chosen].tolist(), strict=True)
    return Counter({(name[s], word[n]): count for s, n, count in entries})


@examples(25)
@given(DOCUMENTS, st.integers(1, 7))
def test_blocks_do_not_matter(documents: Documents, block_tokens: int) -> None:
    assert plain(counted(documents, block_tokens)) == plain(counted(documents))


@examples(25)
@given(DOCUMENTS)
def test_counts_are_those_of_a_dictionary(documents: Documents) -> None:
    run, words = counted(documents), TokenStream.from_documents(documents).words
    for distance in (1, 3, 6):
        assert found_pairs(run, words, distance) == pairs(documents, distance)
    segment, neuron, _ = unpack_target(run.target)
    total = dict(zip(neuron[segment == 0].tolist(), run.strength[segment == 0].tolist(), strict=True))
    expected = Counter(word.lower() for document in documents for sentence in document for word in sentence)
    assert total == {word_key(word): count for word, count in expected.items()}


@examples(10)
@given(st.integers(0, 1 << 32), st.integers(1, 40), st.sampled_from([1, 100, 1 << 18]))
def test_rows_of_any_length_are_counted(seed: int, words: int, block_tokens: int) -> None:
    """Some rows are those of the same word over and over; blocks have few tokens or many."""
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
    run = count_blocks(stream, kinds, block_tokens)
    source = np.repeat(run.source, np.diff(run.pointer))
    found = list(zip(source.tolist(), run.target.tolist(), run.strength.tolist(), strict=True))
    assert found == sorted((*pair, count) for pair, count in expected.items())


def test_counts_are_packed_like_any_run() -> None:
    run = counted([[["the", "cat", "saw", "the", "dog", "and", "the", "cat"]]])
    assert plain(unpack(pack(run))) == plain(run)


def test_each_link_of_the_chain_extends_the_one_before() -> None:
    for kind in range(1, CHAIN + 1):
        assert CONTEXTS[kind].parts[:-1] == CONTEXTS[kind - 1].parts
    assert list(SINGLE) == [1, 2, 3, 4, 5, 6]


def test_contexts_that_extend_several_are_connected_with_each() -> None:
    """As contexts of one key by chance do: here those of an ending extend those of all words with that ending."""
    document = ["walking", "jumping", "talked", "walked", "jumping", "walking", "talking", "walking"]
    stream = TokenStream.from_documents([[document, document[::-1]]])
    contexts = {2: Context("1", (("word", 1),)), 1: Context("e1", (("ending", 1),))}
    run = count_contexts(stream, contexts, {1: 2})
    word, ending = (stream.sources(kind, context) for kind, context in contexts.items())
    expected = Counter(zip(ending.tolist(), word.tolist(), strict=True))
    segment, neuron, _ = unpack_target(run.target)
    extends = segment == EXTENDS
    source = np.repeat(run.source, np.diff(run.pointer))[extends]
    found = zip(source.tolist(), neuron[extends].tolist(), run.strength[extends].tolist(), strict=True)
    assert max(Counter(source.tolist()).values()) == 3
    assert {(a, b): count for a, b, count in found} == expected
    assert all((np.diff(run.target[begin:end]) > 0).all() for begin, end in pairwise(run.pointer.tolist()))
