"""Blocks of raw words: sentences as they are, every word a feature by its lower-cased form.

Covers: what a ``tag`` task of profile ``best`` makes of parts: all sentences of any length, no tags, no
merged nouns, no columns. Does not cover: what all blocks have in common (`blocks`), and the contexts of
words (`giaann_dask.increments.contexts`).

A block carries its own words twice: as features, which the ordered merge numbers for the network, and as
surfaces, by which the block can be counted without the network's dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from giaann_dask.text.blocks import CANDIDATE, BlockBuilder, FilterOptions, TaggedBlock
from giaann_dask.text.conllu import parse_conllu
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.splitting import Splitter
from giaann_dask.text.tokens import Part, Sentence, TaggedSentence


class RawBlockBuilder(BlockBuilder):
    """Collects sentences of raw words, in order, into a `TaggedBlock`.

    Parameters
    ----------
    options : FilterOptions
        Which sentences are read.
    """

    def __init__(self, options: FilterOptions) -> None:
        super().__init__(EverPos(), options)

    def _add_sequence(self, sentence: Sentence) -> None:
        self._status.append(CANDIDATE)
        self._lengths.append(len(sentence.forms))
        self._symbol.extend(self._features.setdefault(word.lower(), len(self._features)) for word in sentence.forms)

    def build(self) -> TaggedBlock:
        """Return the block; surfaces are its features, and every token has one."""
        block = super().build()
        flags = np.zeros(len(block.symbol), np.uint8)
        return replace(block, flags=flags, surface=block.symbol, surfaces=block.features)


def raw_sentences(part: Part) -> Iterator[tuple[int, list[TaggedSentence]]]:
    """Yield the document and the sentences of each passage of a part, without tags.

    Raises
    ------
    InputFormatError
        If a CoNLL-U line is malformed.
    """
    if part.kind == "conllu":
        for document, passage in zip(part.documents, part.passages, strict=True):
            yield document, parse_conllu(passage, part.source)
        return
    for document, sentences in zip(part.documents, Splitter().split(part.passages), strict=True):
        yield document, [_untagged(words) for words in sentences]


def _untagged(words: Sequence[str]) -> TaggedSentence:
    nothing = [""] * len(words)
    return TaggedSentence(words, nothing, nothing, nothing)
