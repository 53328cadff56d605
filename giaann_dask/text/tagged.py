"""From raw parts to a tagged block: splitting, tokenising, tagging, collecting.

Covers: what one ``tag`` task does on a worker. Does not cover: each of these steps
(`splitting`, `conllu`, `tagging`, `blocks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from giaann_dask.text.blocks import BlockBuilder, FilterOptions, TaggedBlock
from giaann_dask.text.conllu import parse_conllu
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.splitting import Splitter
from giaann_dask.text.subword_blocks import SubwordBlockBuilder
from giaann_dask.text.tagging import make_tagger
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.tokens import Part, TaggedSentence

GOLD = "gold"


def tag_sentences(part: Part, tagger: str, spaces: bool = False) -> Iterator[tuple[int, list[TaggedSentence]]]:
    """Yield the document and the tagged sentences of each passage of a part.

    Parameters
    ----------
    part : Part
        Raw text or CoNLL-U lines.
    tagger : str
        ``"gold"`` keeps the tags of CoNLL-U; any other name tags the words anew.
    spaces : bool
        Whether sentences tell which words white space follows.

    Raises
    ------
    InputFormatError
        If a CoNLL-U line is malformed, or gold tags are asked of plain text.
    OptionError
        If there is no tagger of that name.
    """
    if part.kind == "conllu":
        parsed = [parse_conllu(passage, part.source, spaces) for passage in part.passages]
        if tagger == GOLD:
            yield from zip(part.documents, parsed, strict=True)
            return
        words = [[(sentence.forms, sentence.spaces) for sentence in passage] for passage in parsed]
    else:
        words = [list(passage) for passage in Splitter().split_spaced(part.passages)]
    flat = [sentence for passage in words for sentence, _ in passage]
    tagged = iter(make_tagger(tagger).tag(flat))
    for document, passage in zip(part.documents, words, strict=True):
        found = [next(tagged) for _ in passage]
        if spaces:
            found = [each._replace(spaces=spaced) for each, (_, spaced) in zip(found, passage, strict=True)]
        yield document, found


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
        Parts of speech that words can ever have, or what divides text into subwords.
    options : FilterOptions
        Which sentences are read.

    Returns
    -------
    TaggedBlock
    """
    subwords = isinstance(lexicon, SubwordTokenizer)
    builder = make_builder(lexicon, options)
    for part, skip in zip(parts, skips, strict=True):
        builder.add_part(tag_sentences(part, tagger, spaces=subwords), skip)
    return builder.build()


def make_builder(lexicon: EverPos | SubwordTokenizer, options: FilterOptions) -> BlockBuilder:
    """Return what collects sequences: of subwords where there is a tokenizer, else of words."""
    if isinstance(lexicon, SubwordTokenizer):
        return SubwordBlockBuilder(lexicon, options)
    return BlockBuilder(lexicon, options)
