"""Blocks of arrays, compared with sentences that are merged and flagged one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.merged_nouns import merge_nouns

from giaann_dask.text.block_building import BlockBuilder, RawBlockBuilder
from giaann_dask.text.blocks import (
    CANDIDATE,
    DELIMITER,
    NO_CONCEPT,
    NOUN,
    POS_FLAGS,
    PROBABLE,
    TOO_SHORT,
    FilterOptions,
    TaggedBlock,
)
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.tokens import TaggedSentence, TaggedText

EVER = EverPos(verb=frozenset(["run", "ran"]), adp=frozenset(["on"]), cconj=frozenset(["and", "or"]))
TOKENS = st.sampled_from(
    [
        ("Cats", "cat", "NOUN", "NNS"),
        ("cats", "cat", "NOUN", "NNS"),
        ("Rome", "Rome", "PROPN", "NNP"),
        ("-", "-", "PUNCT", "HYPH"),
        ("–", "-", "PUNCT", "HYPH"),
        ("-", "-", "NOUN", "NN"),
        ("ran", "run", "VERB", "VBD"),
        ("on", "on", "ADP", "IN"),
        ("and", "and", "CCONJ", "CC"),
        ("AND", "and", "CCONJ", "CC"),
        (",", ",", "PUNCT", ","),
        ("'s", "'s", "PART", "POS"),
        ("old", "old", "ADJ", "JJ"),
    ]
)
SENTENCES = st.lists(st.lists(TOKENS, min_size=1, max_size=14), max_size=8)


def sentence(tokens: Sequence[tuple[str, str, str, str]]) -> TaggedSentence:
    return TaggedSentence(*map(list, zip(*tokens, strict=True)))


def flags_one_by_one(sequence: TaggedSentence, options: FilterOptions) -> list[int]:
    """Return the flags of the tokens of one sequence by the rules, token by token."""
    merged = merge_nouns(sequence, options.merge_dashes)
    det = [EVER.delimiter(*each) for each in zip(merged.words, merged.lemmas, merged.xpos, strict=True)]
    probable = [EVER.probable_delimiter(*each) for each in zip(merged.words, merged.lemmas, strict=True)]
    flags = [NOUN if noun else DELIMITER * delimits for noun, delimits in zip(merged.nouns, det, strict=True)]
    nouns = [at for at, noun in enumerate(merged.nouns) if noun]
    for left, right in pairwise(nouns):
        gap = range(left + 1, right)
        if not any(det[at] for at in gap):
            for at in [at for at in gap if probable[at]][:1]:
                flags[at] |= PROBABLE
    if options.parts_of_speech:
        flags = [flag | POS_FLAGS.get(part, 0) for flag, part in zip(flags, merged.upos, strict=True)]
    return flags


def tokens_of(block: TaggedBlock, q: int) -> list[tuple[str, str]]:
    """Return symbol and surface of the tokens of a sequence."""
    found = []
    for at in range(block.offsets[q], block.offsets[q + 1]):
        if block.noun[at]:
            found.append((block.concepts[block.symbol[at]], block.surfaces[block.surface[at]]))
        else:
            found.append((block.features[block.symbol[at]], ""))
    return found


@examples(60)
@given(
    parts=st.lists(SENTENCES, min_size=1, max_size=3),
    dashes=st.booleans(),
    drop=st.booleans(),
    crop=st.booleans(),
    together=st.integers(0, 3),
    skip=st.integers(0, 3),
)
def test_arrays_equal_sentences_one_by_one(
    parts: list[list[list[tuple[str, str, str, str]]]], dashes: bool, drop: bool, crop: bool, together: int, skip: int
) -> None:
    options = FilterOptions(
        seed_tokens=2, maximum_tokens=9, drop_short=drop, parts_of_speech=dashes, sentences=together, crop=crop,
        merge_dashes=dashes,
    )  # fmt: skip
    builder = BlockBuilder(EVER, options)
    expected, counted = [], []
    for number, tokens in enumerate(parts):
        # Two documents in each part; the second one continues in the next part.
        documents = np.array([number + (2 * at >= len(tokens)) for at in range(len(tokens))], np.int64)
        builder.add_part(TaggedText.of([sentence(each) for each in tokens], document=documents), skip)
        sequences = []
        for document in sorted(set(documents.tolist())):
            of = [tokens[at] for at in np.flatnonzero(documents == document)]
            before = parts[number - 1] if number and document == number else []
            earlier = sum(2 * at >= len(before) for at in range(len(before)))
            if not together:
                # Windows of nine words, with the sentence of the first one.
                words = [(at, word) for at, each in enumerate(of) for word in each]
                windows = [words[first : first + 9] for first in range(0, len(words), 9)]
                sequences += [(document, earlier + each[0][0], [word for _, word in each]) for each in windows]
                continue
            groups = [(first, of[first : first + together]) for first in range(0, len(of), together)]
            sequences += [(document, earlier + first, list(chain.from_iterable(group))) for first, group in groups]
        long = [each for each in sequences if len(each[2]) > 2 and (crop or len(each[2]) <= 9)]
        counted.append(len(long))
        expected += [(document, first, sentence(joined[:9])) for document, first, joined in long[skip:]]
    block = builder.build()
    assert block.part_sequences == tuple(counted)
    assert list(zip(block.document.tolist(), block.sentence.tolist(), strict=True)) == [each[:2] for each in expected]
    for q, (_, _, sequence) in enumerate(expected):
        merged = merge_nouns(sequence, dashes)
        short = drop and len(merged.words) <= 2
        status = TOO_SHORT if short else CANDIDATE if any(merged.nouns) else NO_CONCEPT
        assert block.status[q] == status
        fields = zip(merged.words, merged.lemmas, merged.nouns, strict=True)
        symbols = [(lemma, word) if noun else (word, "") for word, lemma, noun in fields]
        assert tokens_of(block, q) == (symbols if status == CANDIDATE else [])
        flags = block.flags[block.offsets[q] : block.offsets[q + 1]].tolist()
        assert flags == (flags_one_by_one(sequence, options) if status == CANDIDATE else [])
    for noun, table in ((True, block.concepts), (False, block.features)):
        used = block.symbol[block.noun == noun].tolist()
        assert list(dict.fromkeys(used)) == list(range(len(table))), "symbols are numbered as they appear"


@pytest.mark.parametrize("raw", [False, True])
def test_a_part_without_sentences(raw: bool) -> None:
    options = FilterOptions(seed_tokens=0, maximum_tokens=9, raw=raw)
    builder = RawBlockBuilder(options) if raw else BlockBuilder(EVER, options)
    builder.add_part(TaggedText.of([]))
    block = builder.build()
    assert (len(block), block.part_sequences, block.offsets.tolist()) == (0, (0,), [0])


def test_raw_words_keep_their_order() -> None:
    builder = RawBlockBuilder(FilterOptions(seed_tokens=0, maximum_tokens=9, raw=True))
    for words in (["The", "cat", "the"], ["A", "CAT"]):
        builder.add_part(TaggedText.of([TaggedSentence(words, *[[""] * len(words)] * 3)]))
    block = builder.build()
    assert block.features == ("the", "cat", "a")
    assert block.symbol.tolist() == block.surface.tolist() == [0, 1, 0, 2, 1]
