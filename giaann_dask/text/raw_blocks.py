"""Build blocks of raw words for profile ``best``: every word is a feature by its lower-cased form.

All sentences of any length are used, without tags, merged nouns or columns. A block has its words twice: as features,
which the ordered merge maps to the network's dictionary, and as surfaces, so that the block can be counted without
that dictionary.

Does not cover: the base class (`blocks`) and the contexts of words (`giaann_dask.increments.contexts`).
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
    """Collect sentences of raw words, in order, into a `TaggedBlock`.

    Parameters
    ----------
    options : FilterOptions
        Limits and rules for sentences.
    """

    def __init__(self, options: FilterOptions) -> None:
        super().__init__(EverPos(), options)

    def _add_sequence(self, sentence: Sentence) -> None:
        self._status.append(CANDIDATE)
        self._lengths.append(len(sentence.forms))
        self._symbol.extend(self._features.setdefault(word.lower(), len(self._features)) for word in sentence.forms)

    def build(self) -> TaggedBlock:
        """Return the block; its surfaces are its features, for every token."""
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
    empty = [""] * len(words)
    return TaggedSentence(words, empty, empty, empty)
