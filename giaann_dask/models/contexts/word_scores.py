"""Score each word of a text with profile ``contexts``: its probability, and the most probable words at its place.

Does not cover: sums over whole corpora on a cluster (`giaann_dask.models.contexts.evaluation`).
"""

from __future__ import annotations

from giaann_dask.models.contexts.kernel import distribution
from giaann_dask.models.contexts.scores import LogLinearModel
from giaann_dask.models.generation_options import require_prompt
from giaann_dask.models.results import Candidate, ScoredWord
from giaann_dask.models.words.prompts import sentences_of, word_places
from giaann_dask.models.words.sampling import most_probable
from giaann_dask.models.words.stream import TokenStream


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
    places = word_places(text, [word for sentence in sentences for word in sentence])
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
