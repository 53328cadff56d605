"""Tag consecutive parts into one block, as a ``tag`` task does on a worker.

The steps are in `splitting`, `conllu`, `tagging` and `blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from giaann_dask.text.block_building import BlockBuilder, RawBlockBuilder
from giaann_dask.text.blocks import FilterOptions, TaggedBlock
from giaann_dask.text.conllu import parse_conllu
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.splitting import Splitter
from giaann_dask.text.subword_blocks import SubwordBlockBuilder
from giaann_dask.text.tagging import tag_text
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.tokens import Part, SplitText, TaggedText, TaggedWord

GOLD = "gold"


def tag_part(part: Part, tagger: str | None) -> TaggedText:
    """Return the sentences of a part with tags.

    Parameters
    ----------
    part : Part
        Raw text or CoNLL-U lines.
    tagger : str or None
        ``"gold"`` keeps the tags of CoNLL-U; any other name tags the words anew; None leaves tags and lemmas empty.

    Raises
    ------
    InputFormatError
        If a CoNLL-U line is malformed, or the tagger is ``"gold"`` and the part is plain text.
    OptionError
        If there is no tagger of that name.
    """
    documents = np.array(part.documents, np.int64)
    if part.kind == "conllu":
        passages = [parse_conllu(passage, part.source) for passage in part.passages]
        if tagger == GOLD:
            sentences = list(chain.from_iterable(passages))
            spaced = np.array([space for sentence in sentences for space in sentence.spaces], np.bool_)
            return TaggedText.of(sentences, spaced, np.repeat(documents, np.array([*map(len, passages)], np.int64)))
        text = SplitText.of(passages)
    else:
        text = Splitter().split_text(part.passages)
    document = np.repeat(documents, text.passages)
    if tagger is not None:
        return tag_text(tagger, text, document)
    return TaggedText(text.types.mapped(_untagged), text.type_of, text.spaced, text.ends, document)


def _untagged(form: str) -> TaggedWord:
    return TaggedWord(form, "", "", "")


def tag_block(
    parts: Sequence[Part],
    skips: Sequence[int],
    tagger: str,
    lexicon: EverPos | SubwordTokenizer,
    options: FilterOptions,
) -> TaggedBlock:
    """Tag consecutive parts into one block.

    Parameters
    ----------
    parts : sequence of Part
        Input, in order.
    skips : sequence of int
        For each part, how many of its counted sequences are in the network already.
    tagger : str
        Name of a tagger.
    lexicon : EverPos or SubwordTokenizer
        Ever-POS lexicon of a word model, or tokenizer of a subword model.
    options : FilterOptions
        Which sentences are read.

    Returns
    -------
    TaggedBlock
    """
    builder = make_builder(lexicon, options)
    for part, skip in zip(parts, skips, strict=True):
        builder.add_part(tag_part(part, None if options.raw else tagger), skip)
    return builder.build()


def make_builder(lexicon: EverPos | SubwordTokenizer, options: FilterOptions) -> BlockBuilder:
    """Return the block builder for subwords, raw words or words with merged nouns."""
    if options.raw:
        return RawBlockBuilder(options)
    if isinstance(lexicon, SubwordTokenizer):
        return SubwordBlockBuilder(lexicon, options)
    return BlockBuilder(lexicon, options)
