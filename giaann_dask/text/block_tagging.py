"""Tag consecutive parts into one block, as a ``tag`` task does on a worker.

The steps are in `splitting`, `conllu`, `tagging` and `blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from giaann_dask.text.blocks import BlockBuilder, FilterOptions, RawBlockBuilder, TaggedBlock, raw_sentences
from giaann_dask.text.conllu import parse_conllu, parse_spaced_conllu
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.splitting import Splitter
from giaann_dask.text.subword_blocks import SubwordBlockBuilder
from giaann_dask.text.tagging import make_tagger
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.tokens import Part, SpacedSentence, TaggedSentence

GOLD = "gold"


def tag_sentences(part: Part, tagger: str) -> Iterator[tuple[int, list[TaggedSentence]]]:
    """Yield the document and the tagged sentences of each passage of a part.

    Parameters
    ----------
    part : Part
        Raw text or CoNLL-U lines.
    tagger : str
        ``"gold"`` keeps the tags of CoNLL-U; any other name tags the words anew.

    Raises
    ------
    InputFormatError
        If a CoNLL-U line is malformed, or the tagger is ``"gold"`` and the part is plain text.
    OptionError
        If there is no tagger of that name.
    """
    if part.kind == "conllu":
        passages = [parse_conllu(passage, part.source) for passage in part.passages]
        if tagger == GOLD:
            yield from zip(part.documents, passages, strict=True)
            return
        words = [[sentence.forms for sentence in passage] for passage in passages]
    else:
        words = [list(passage) for passage in Splitter().split(part.passages)]
    yield from zip(part.documents, _tag(words, tagger), strict=True)


def tag_spaced_sentences(part: Part, tagger: str) -> Iterator[tuple[int, list[SpacedSentence]]]:
    """Yield the same as `tag_sentences`, with the spaces between words."""
    if part.kind == "conllu":
        passages = [parse_spaced_conllu(passage, part.source) for passage in part.passages]
        if tagger == GOLD:
            yield from zip(part.documents, passages, strict=True)
            return
        spaced = [[(sentence.forms, sentence.spaces) for sentence in passage] for passage in passages]
    else:
        spaced = [list(passage) for passage in Splitter().split_spaced(part.passages)]
    tagged = _tag([[words for words, _ in passage] for passage in spaced], tagger)
    for document, found, passage in zip(part.documents, tagged, spaced, strict=True):
        yield document, [SpacedSentence(*each, spaces) for each, (_, spaces) in zip(found, passage, strict=True)]


def _tag(words: Sequence[Sequence[Sequence[str]]], tagger: str) -> Iterator[list[TaggedSentence]]:
    """Yield the tagged sentences of each passage; one call of the tagger tags all of them."""
    tagged = iter(make_tagger(tagger).tag([sentence for passage in words for sentence in passage]))
    for passage in words:
        yield [next(tagged) for _ in passage]


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
    if options.raw:
        for part, skip in zip(parts, skips, strict=True):
            builder.add_part(raw_sentences(part), skip)
        return builder.build()
    tag = tag_spaced_sentences if isinstance(lexicon, SubwordTokenizer) else tag_sentences
    for part, skip in zip(parts, skips, strict=True):
        builder.add_part(tag(part, tagger), skip)
    return builder.build()


def make_builder(lexicon: EverPos | SubwordTokenizer, options: FilterOptions) -> BlockBuilder:
    """Return the block builder for subwords, raw words or words with merged nouns."""
    if options.raw:
        return RawBlockBuilder(options)
    if isinstance(lexicon, SubwordTokenizer):
        return SubwordBlockBuilder(lexicon, options)
    return BlockBuilder(lexicon, options)
