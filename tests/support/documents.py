"""Read inputs as documents of sentences of words, by another way than the engine's encoding."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from giaann_dask.text.reading import parse_conllu, read_parts
from giaann_dask.text.splitting import split_text
from giaann_dask.text.tokens import Part

Document = list[Sequence[str]]

_NEW_DOCUMENT = re.compile(r"^# newdoc\b.*$", re.MULTILINE)


def read_documents(inputs: Sequence[str | os.PathLike[str]]) -> Iterator[Document]:
    """Yield the documents of inputs, in order: a file or record is one, and in CoNLL-U each ``# newdoc``."""
    current, number = Document(), -1
    for part in read_parts(inputs, None):
        for document, begins, sentences in _passages(part):
            if (begins or document != number) and current:
                yield current
                current = []
            number = document
            current.extend(sentences)
    if current:
        yield current


def _passages(part: Part) -> Iterator[tuple[int, bool, Document]]:
    """Yield the file or record of each passage, whether a document begins there, and its sentences."""
    if part.kind == "text":
        for document, sentences in zip(part.documents, split_sentences(part.passages), strict=True):
            yield document, False, [*sentences]
        return
    for document, passage in zip(part.documents, part.passages, strict=True):
        for number, text in enumerate(_NEW_DOCUMENT.split(passage)):
            yield document, number > 0, [sentence.forms for sentence in parse_conllu(text)]


def split_sentences(passages: Sequence[str]) -> list[list[list[str]]]:
    """Return the sentences of each passage, each a list of tokens."""
    text = split_text(passages)
    sentences = text.sentences()
    return [list(islice(sentences, count)) for count in text.passages.tolist()]
