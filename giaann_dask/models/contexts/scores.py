"""Prediction by pooled counts: profile ``contexts``, and n-gram models of the same counts for comparison.

Has the weights of each kind of context and their defaults, and the scores of a text. The n-gram models are plain
backoff, and modified Kneser-Ney smoothing, which is the chain of contexts without further evidence. No library is used:
the counts exist already, and NLTK's `KneserNeyInterpolated` has a single discount instead of three and answers one
query at a time. Tables are in `giaann_dask.models.contexts.tables`, and the compiled pass in
`giaann_dask.models.contexts.span_kernel`.

Weights do not change what was learnt. They are constants of the profile, a row of them for each length of the longest
context that was seen, chosen once by `benchmarks/choose_weights.py` on text that is neither trained on nor reported on.
How much recent words say depends on how much the text that is read repeats itself (`contexts.kernel.recency_of`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.models.contexts.kernel import NEAR_KINDS, RECENT_KINDS, Evidence, Floats, Pooling, Text, recency_of
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS
from giaann_dask.models.contexts.span_kernel import distribution, score_tokens
from giaann_dask.models.contexts.tables import PRIOR_COUNTS, RowTables
from giaann_dask.models.generation_options import require_prompt
from giaann_dask.models.results import Candidate, ScoredWord
from giaann_dask.models.words.predictor import most_probable, sentences_of, word_places
from giaann_dask.models.words.scores import TextScores, token_bytes
from giaann_dask.models.words.stream import NONE, TokenStream

NAMES = tuple(context.name for context in CONTEXTS[1:])


@dataclass(frozen=True, kw_only=True)
class PoolingOptions:
    """Options of pooling evidence.

    Parameters
    ----------
    weights : tuple of float
        Of each kind of context, in the order of `NAMES`.
    recent_weights : tuple of float
        Of the words read lately in the same document: of each word, fading; of what followed the last
        word; of what followed the last two.
    longer_weights : tuple of tuple of float
        Both kinds of weights where a context of two words of the chain was seen before, or of three, and so on, the
        last for all longer ones; those of contexts of the nearest word are always those in `weights`.
    remembered_tokens : int
        How many tokens back that reaches; 0 leaves it out.
    fading_tokens : float
        By which distance the first of these counts 1 / e.
    chain : int
        Longest context of the chain, 0 to 4 words.
    """

    weights: tuple[float, ...] = (0.0,) * len(NAMES)
    recent_weights: tuple[float, ...] = (0.0,) * RECENT_KINDS
    longer_weights: tuple[tuple[float, ...], ...] = ()
    remembered_tokens: int = 1500
    fading_tokens: float = 50.0
    chain: int = CHAIN

    @property
    def pooling(self) -> Pooling:
        """The weights and fading as arrays."""
        weights = np.array(((*self.weights, *self.recent_weights), *self.longer_weights), np.float64)
        weights[:, NEAR_KINDS] = weights[0, NEAR_KINDS]
        distance = np.arange(self.remembered_tokens + 1, dtype=np.float64)
        # Words read long ago count little, but count.
        return Pooling(weights, np.maximum(np.exp(-distance / self.fading_tokens), np.finfo(np.float64).tiny))

    @property
    def kinds(self) -> list[int]:
        """Places in `CONTEXTS` of the kinds of contexts that have a weight."""
        weighed = (self.pooling.weights[:, : len(NAMES)] != 0.0).any(axis=0)
        kinds: list[int] = (np.flatnonzero(weighed) + 1).tolist()
        return kinds


# Chosen by `benchmarks/choose_weights.py` with the counts of twelve texts of different kinds, each on other text of the
# same kind: web (EWT train and dev), encyclopedia, editorials, fortunes, two dictionaries, five manuals, and novels.
# After four words of a passage that was counted before, the chain says most, and other contexts and recent words less.
BEST = PoolingOptions(
    weights=(
        *(-0.186, 0.0, 0.0, 0.0),
        *(0.0, 0.0, 0.0, 0.0, 0.0),
        *(-0.027, 0.197, 0.023, 0.208),
        *(0.095, 0.103, 0.192, 0.076, 0.0, 0.0),
    ),
    recent_weights=(0.534, 0.294, 0.667),
    longer_weights=(
        (
            *(-0.186, -0.143, 0.0, 0.0),
            *(0.0, 0.0, 0.0, 0.0, 0.0),
            *(0.064, 0.164, 0.018, 0.029),
            *(0.095, 0.079, 0.09, -0.015, 0.0, 0.0),
            *(0.493, 0.209, 0.382),
        ),
        (
            *(-0.186, -0.093, -0.13, 0.0),
            *(0.0, 0.0, 0.0, 0.0, 0.0),
            *(0.044, 0.059, -0.005, 0.055),
            *(0.095, 0.026, 0.087, -0.014, 0.0, 0.0),
            *(0.466, 0.193, 0.296),
        ),
        (
            *(-0.186, -0.097, -0.163, 0.054),
            *(0.0, 0.0, 0.0, 0.0, 0.0),
            *(0.05, 0.068, 0.045, 0.019),
            *(0.095, 0.066, 0.085, -0.015, 0.0, 0.0),
            *(0.374, 0.14, 0.127),
        ),
    ),
)


@dataclass(frozen=True, eq=False)
class LogLinearModel:
    """Tables and how they are pooled.

    Attributes
    ----------
    tables : RowTables
        What was learnt.
    options : PoolingOptions
        Weights.
    """

    tables: RowTables
    options: PoolingOptions = field(default_factory=PoolingOptions)

    def score(self, stream: TokenStream) -> TextScores:
        """Score every token of a text, given the tokens before it in its sentence and document."""
        return self.score_span(stream, self.numbered(stream), 0, len(stream))

    def score_span(self, stream: TokenStream, text: Text, begin: int, end: int) -> TextScores:
        """Score the tokens of a stretch of a text, which `numbered` returned; the same however it is cut."""
        return self.score_part(stream, *self.with_evidence(stream, text, begin, end), begin, end)

    def with_evidence(self, stream: TokenStream, text: Text, begin: int, end: int) -> tuple[Text, Evidence]:
        """Return the part of a text that a stretch of it is scored by, with rows at its end, and the evidence."""
        # Two more tokens than are remembered, which say what the first of these came after.
        first = max(begin - self.options.remembered_tokens - 2, 0)
        rows = np.full((end - first, len(NAMES)), NONE, np.int64)
        evidence, rows[begin - first :] = self.evidence_before(stream, begin, end)
        part = {name: getattr(text, name)[first:end] for name in ("words", "document", "recency")}
        return text._replace(**part, rows=rows), evidence

    def evidence_before(self, stream: TokenStream, begin: int, end: int) -> tuple[Evidence, Integers]:
        """Return the evidence before the tokens of a span; see `RowTables.of_tokens`."""
        evidence, rows = self.tables.of_tokens(stream, begin, end)
        return evidence._replace(chain=self.options.chain), rows

    def score_part(self, stream: TokenStream, part: Text, evidence: Evidence, begin: int, end: int) -> TextScores:
        """Score the tokens of a stretch of a text, given what `with_evidence` returned for it."""
        length = len(part.words)
        logs, rank = score_tokens(part, evidence, self.options.pooling, length - (end - begin), length)
        index, words = stream.index[begin:end], part.words[length - (end - begin) :]
        used, at = np.unique(index, return_inverse=True)
        lengths = token_bytes([stream.words[number] for number in used.tolist()])
        known = words < len(self.tables.words.words)
        origin = stream.place[begin:end], stream.document[begin:end]
        return TextScores(logs, rank == 0, lengths[at], *origin, known, rank)

    def numbered(self, stream: TokenStream) -> Text:
        """Return a text with the probabilities of its unknown words added to those of the known ones, without rows."""
        unknown, number = self.number_words(stream)
        text = self.tables.words.with_unknown(unknown)
        words = number[stream.index]
        recency = recency_of(words, stream.document, text.share)
        return text._replace(words=words, document=stream.document, recency=recency)

    def number_words(self, stream: TokenStream) -> tuple[tuple[str, ...], Integers]:
        """Return the unknown words of a text, and the number of each of its words."""
        known = self.tables.words
        number = known.word_numbers(stream.keys)
        missing = np.flatnonzero(number == NONE)
        number[missing] = len(known.words) + np.arange(len(missing))
        return tuple(stream.words[at] for at in missing.tolist()), number

    def score_text(self, text: str, candidates: int = 0, after: int = 0) -> tuple[ScoredWord, ...]:
        """Return the probability of each word of a text, which is one document.

        Parameters
        ----------
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
        part, evidence = self.with_evidence(stream, self.numbered(stream), first, len(stream))
        scores = self.score_part(stream, part, evidence, first, len(stream))
        names = self.tables.words.names_with(self.number_words(stream)[0]) if candidates else ()
        found = []
        for at, (begin, end) in enumerate(places[first:]):
            likely: tuple[Candidate, ...] = ()
            if candidates:
                now = len(part.words) - len(stream) + first + at
                chance, _ = distribution(part, evidence, self.options.pooling, now)
                best = most_probable(chance, candidates).tolist()
                likely = tuple(Candidate(names[word], "", float(chance[word])) for word in best)
            found.append(ScoredWord(begin, end, float(scores.log_probability[at]), bool(scores.matches[at]), likely))
        return tuple(found)


# Pooling of evidence that is an interpolated n-gram model with modified Kneser-Ney smoothing: the chain is all of it.
KNESER_NEY = PoolingOptions(chain=CHAIN, remembered_tokens=0)


def backoff_matches(tables: RowTables, stream: TokenStream) -> npt.NDArray[np.bool_]:
    """Return at which tokens plain backoff is right.

    The longest context that was ever seen predicts the word that most often followed it; of equals the
    one that is most frequent altogether.

    Parameters
    ----------
    tables : RowTables
        What was counted.
    stream : TokenStream
        Text to predict.

    Returns
    -------
    ndarray
        Bool, shape ``(tokens,)``.
    """
    evidence, rows = tables.of_tokens(stream, 0, len(stream))
    # Words are numbered by falling count, so that number 0 is what an empty context predicts.
    predicted = np.zeros(len(stream), np.int64)
    for kind in range(CHAIN):
        found = np.flatnonzero(rows[:, kind] != NONE)
        distinct, which = np.unique(rows[found, kind], return_inverse=True)
        best = np.array([_most_frequent(evidence, tables.words.share, row) for row in distinct.tolist()], np.int64)
        if len(found):
            predicted[found] = best[which]
    number = tables.words.word_numbers(stream.keys)
    matches: npt.NDArray[np.bool_] = predicted == number[stream.index]
    return matches


def _most_frequent(evidence: Evidence, share: Floats, row: int) -> int:
    """Return the word that most often followed a context."""
    entries = slice(int(evidence.pointer[row]), int(evidence.pointer[row + 1]))
    word = evidence.word[entries]
    # Evidence is the logarithm of 1 + count / prior; single precision tells counts apart up to a million.
    count = np.rint(np.expm1(evidence.evidence[entries].astype(np.float64)) * PRIOR_COUNTS * share[word])
    return int(word[np.argmax(count)])
