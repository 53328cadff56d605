"""Group and join consecutive sentences of a document into sequences.

Does not cover: splitting text into sentences (`conllu`, `splitting`) and the length filter (`blocks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import TypeAlias

from giaann_dask.text.tokens import Sentence, SpacedSentence, TaggedSentence

Documents: TypeAlias = Iterable[tuple[int, Sequence[Sentence]]]


def group_sentences(documents: Documents, size: int) -> Iterator[tuple[int, int, Sentence]]:
    """Yield the sequences of a part: document, number of sentences and their tokens.

    Parameters
    ----------
    documents : iterable of (int, sequence of TaggedSentence or SpacedSentence)
        Document number and sentences of every passage, in order.
    size : int
        Sentences per sequence, counted from the document's first sentence in the part; the last
        sequence of a document may have fewer.

    Examples
    --------
    >>> one = TaggedSentence(["a"], ["a"], ["X"], [""])
    >>> [(d, n, s.forms) for d, n, s in group_sentences([(0, [one]), (0, [one, one]), (1, [one])], 2)]
    [(0, 2, ['a', 'a']), (0, 1, ['a']), (1, 1, ['a'])]
    """
    if size == 1:
        for document, sentences in documents:
            for sentence in sentences:
                yield document, 1, sentence
        return
    for document, passages in groupby(documents, key=lambda passage: passage[0]):
        group: list[Sentence] = []
        for _, sentences in passages:
            for sentence in sentences:
                group.append(sentence)
                if len(group) == size:
                    yield document, size, join_sentences(group)
                    group = []
        if group:
            yield document, len(group), join_sentences(group)


def join_sentences(sentences: Sequence[Sentence]) -> Sentence:
    """Return one sentence with the tokens of several sentences of the same type."""
    words = TaggedSentence(
        list(chain.from_iterable(sentence.forms for sentence in sentences)),
        list(chain.from_iterable(sentence.lemmas for sentence in sentences)),
        list(chain.from_iterable(sentence.upos for sentence in sentences)),
        list(chain.from_iterable(sentence.xpos for sentence in sentences)),
    )
    spaces = [sentence.spaces for sentence in sentences if isinstance(sentence, SpacedSentence)]
    return SpacedSentence(*words, list(chain.from_iterable(spaces))) if spaces else words


def crop(sentence: Sentence, tokens: int) -> Sentence:
    """Return a sentence's first tokens."""
    if len(sentence.forms) <= tokens:
        return sentence
    forms, lemmas, upos, xpos = sentence[:4]
    words = TaggedSentence(forms[:tokens], lemmas[:tokens], upos[:tokens], xpos[:tokens])
    return SpacedSentence(*words, sentence.spaces[:tokens]) if isinstance(sentence, SpacedSentence) else words
