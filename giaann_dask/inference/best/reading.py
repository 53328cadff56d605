"""Inputs as documents of sentences of words, for counting contexts and scoring them.

Covers: raw words, or words with nouns merged as in profile ``v1``; where documents begin. Does not cover:
files (`giaann_dask.text.reading`), tags (`giaann_dask.text.tagging`) and the counts
(`giaann_dask.increments.context_counts`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from giaann_dask.errors import OptionError, parameter
from giaann_dask.text.block_tagging import tag_sentences
from giaann_dask.text.conllu import parse_conllu
from giaann_dask.text.noun_merging import merge_nouns
from giaann_dask.text.reading import ReadOptions, read_parts
from giaann_dask.text.splitting import Splitter
from giaann_dask.text.tokens import Part, TaggedSentence

Document = list[Sequence[str]]

RAW, MERGED = "raw", "merged"
_NEW_DOCUMENT = re.compile(r"^# newdoc\b.*$", re.MULTILINE)


def read_documents(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    tokens: str = RAW,
    tagger: str = "gold",
    options: ReadOptions | None = None,
) -> Iterator[Document]:
    """Yield the documents of inputs, in order, one held at a time.

    Parameters
    ----------
    inputs : sequence of str or path
        As `giaann_dask.text.reading.read_parts` takes them.
    tokens : str
        ``"raw"`` takes words as they are, which needs no tags; ``"merged"`` joins the nouns of a run to
        one token, as training does.
    tagger : str
        What tells nouns where tokens are merged.
    options : ReadOptions, optional
        How files are read.

    Yields
    ------
    list of sequence of str
        Sentences. A document ends with its file or record, and in CoNLL-U at each ``# newdoc``.

    Raises
    ------
    OptionError
        If there is no such kind of tokens.
    """
    if tokens not in (RAW, MERGED):
        raise OptionError(f"{parameter('tokens')} is {tokens!r}", f"{RAW} or {MERGED}", "choose another value")
    current, number = Document(), -1
    for part in read_parts(inputs, options):
        for document, begins, sentences in _passages(part, None if tokens == RAW else tagger):
            if (begins or document != number) and current:
                yield current
                current = []
            number = document
            current.extend(sentences)
    if current:
        yield current


def _passages(part: Part, tagger: str | None) -> Iterator[tuple[int, bool, Document]]:
    """Yield the file or record of each stretch of text, whether a document begins there, and its sentences."""
    if part.kind == "text":
        if tagger is None:
            for document, sentences in zip(part.documents, Splitter().split(part.passages), strict=True):
                yield document, False, [*sentences]
        else:
            yield from ((document, False, _merged(s)) for document, s in tag_sentences(part, tagger))
        return
    for document, passage in zip(part.documents, part.passages, strict=True):
        for number, text in enumerate(_NEW_DOCUMENT.split(passage)):
            if tagger is not None:
                piece = Part(part.source, part.kind, (text,), (document,))
                yield document, number > 0, _merged([s for _, found in tag_sentences(piece, tagger) for s in found])
            else:
                yield document, number > 0, [sentence.forms for sentence in parse_conllu(text, part.source)]


def _merged(sentences: Sequence[TaggedSentence]) -> Document:
    """Return sentences with their nouns merged."""
    return [merge_nouns(sentence).words for sentence in sentences]
