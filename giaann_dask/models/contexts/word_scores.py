"""Score each word of a text with profile ``best``: its probability, and the most probable words at its place.

Does not cover: sums over whole corpora on a cluster (`giaann_dask.models.contexts.evaluation`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from giaann_dask.models.contexts.kernel import distribution
from giaann_dask.models.contexts.kinds import TokenStream
from giaann_dask.models.contexts.scores import LogLinearModel
from giaann_dask.models.options import require_prompt
from giaann_dask.models.results import Candidate, ScoredWord
from giaann_dask.text.reading import ReadOptions, text_paragraphs
from giaann_dask.text.splitting import Splitter


def sentences_of(text: str) -> list[list[str]]:
    r"""Return the sentences of a text, each a list of words, as those of a file with this text.

    Examples
    --------
    >>> sentences_of("The mill stood\nby the river. It\n\nThe baker")
    [['The', 'mill', 'stood', 'by', 'the', 'river', '.'], ['It'], ['The', 'baker']]
    """
    passages = list(text_paragraphs(text, ReadOptions().part_characters))
    return [sentence for passage in Splitter().split(passages) for sentence in passage]


def score_text(model: LogLinearModel, text: str, candidates: int = 0, after: int = 0) -> tuple[ScoredWord, ...]:
    """Return the probability of each word of a text, which is one document.

    Parameters
    ----------
    model : LogLinearModel
        The learned counts and how they are pooled.
    text : str
        Any text; one without words has no scores.
    candidates : int
        Most probable words to report at the place of each word.
    after : int
        Only words that end after so many characters are scored, given all words before them.

    Raises
    ------
    PromptError
        If it is no text.
    """
    require_prompt(text)
    sentences = sentences_of(text)
    places = _places(text, [word for sentence in sentences for word in sentence])
    first = sum(end <= after for _, end in places)
    stream = TokenStream.from_documents([sentences])
    model = model.for_text(stream, first)
    prepared = model.text(stream) if candidates else model.numbered(stream)
    scores = model.score_span(stream, prepared, first, len(stream))
    names = (*model.tables.words, *model.number_words(stream)[0]) if candidates else ()
    found = []
    for at, (begin, end) in enumerate(places[first:]):
        likely: tuple[Candidate, ...] = ()
        if candidates:
            chance, _ = distribution(prepared, model.evidence, model.options.pooling, first + at)
            best = most_probable(chance, candidates).tolist()
            likely = tuple(Candidate(names[word], "", float(chance[word])) for word in best)
        found.append(ScoredWord(begin, end, float(scores.log_probability[at]), bool(scores.matches[at]), likely))
    return tuple(found)


def most_probable(chance: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the most probable words, best first, equal ones by number.

    Examples
    --------
    >>> most_probable(np.array([0.1, 0.6, 0.3]), 2).tolist()
    [1, 2]
    """
    count = min(count, len(chance))
    likely = np.argpartition(-chance, count - 1)[:count]
    return likely[np.lexsort((likely, -chance[likely]))]


def _places(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Return where each word is in its text, which splitting changes by white space alone."""
    places = []
    end = 0
    for word in words:
        begin = text.index(word, end)
        end = begin + len(word)
        places.append((begin, end))
    return places
