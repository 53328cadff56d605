"""Define the base class of models of one's own: words counted after contexts, and probabilities made of the counts.

A model says which contexts it counts and how counts become probabilities; numbering, training on a cluster, commits,
adding, forgetting, tracing, export, generation, serving and evaluation are those of all models. Do not change either
rule after networks were trained: counts are stored by segment, which is the place of a context among the others.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import task_key
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.errors import OptionError, PromptError, SpecificationError
from giaann_dask.events import Observer, ignore
from giaann_dask.keys import Integers, unpack_target, word_key
from giaann_dask.models import model_of
from giaann_dask.models.base import EvaluatedText, WorkerOpening
from giaann_dask.models.generation_options import GenerationOptions, require_prompt
from giaann_dask.models.results import (
    Candidate,
    Reason,
    ScoredWord,
    largest_contributions,
)
from giaann_dask.models.words.counting import count_contexts
from giaann_dask.models.words.model import ContextNames, WordModel
from giaann_dask.models.words.predictor import (
    WordPredictor,
    WordText,
    most_probable,
    opened_from_rows,
    sentences_of,
    word_places,
)
from giaann_dask.models.words.scores import MOST_RANK, TextScores, token_bytes
from giaann_dask.models.words.specification import own_options
from giaann_dask.models.words.spelling import Spelling
from giaann_dask.models.words.stream import EVERYWHERE, NONE, Context, TokenStream, find_numbers
from giaann_dask.rows.protocol import RowProjection
from giaann_dask.rows.regions import open_regions
from giaann_dask.rows.remote import RegionKeys, row_source
from giaann_dask.rows.source import RowSource
from giaann_dask.rows.stored import KEPT_BYTES, StoredRows
from giaann_dask.runs.run import Run
from giaann_dask.spec import MAXIMUM_SEGMENTS, Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client, Future

    from giaann_dask.models.words.score_report import ScoreReport, ScoringOptions

Floats = npt.NDArray[np.float64]


class CountedModel(WordModel):
    """Base class of models of words: defines what is counted and how counts predict.

    `options` is a frozen dataclass of the model's options; `Specification.model_options` sets them.
    """

    @abstractmethod
    def contexts(self, options: Any) -> Sequence[Context]:
        """Return the contexts that words are counted after, 31 at most; how often words occur is always counted."""

    @abstractmethod
    def probabilities(self, seen: SeenWords, options: Any) -> Floats:
        """Return the probability of each known word to come next.

        Parameters
        ----------
        seen : SeenWords
            Counts of words after the contexts as they are now.
        options : object
            An instance of `options`.

        Returns
        -------
        ndarray
            In the order of ``seen.counts``; not negative, with a sum of at most 1. The rest is the probability of a
            word that is not known.
        """

    def options_of(self, specification: Specification) -> Any:
        """Return the model's own options of a network."""
        return own_options(specification, self.options)

    def require_contexts(self, specification: Specification) -> tuple[Context, ...]:
        """Return the contexts of a network.

        Raises
        ------
        SpecificationError
            If there are too many.
        """
        contexts = tuple(self.contexts(self.options_of(specification)))
        if len(contexts) >= MAXIMUM_SEGMENTS:
            most = f"at most {MAXIMUM_SEGMENTS - 1}, a segment for each"
            raise SpecificationError(f"a model of {len(contexts)} contexts", most, "count fewer")
        return contexts

    def all_contexts(self, specification: Specification) -> tuple[Context, ...]:
        """Return the contexts of a network by segment, the first of them empty."""
        return (Context("all", ()), *self.require_contexts(specification))

    def require_trainable(self, specification: Specification) -> None:
        """See `Model.require_trainable`."""
        self.require_contexts(specification)

    def count_stream(self, stream: TokenStream, specification: Specification) -> Run:
        """See `WordModel.count_stream`."""
        return count_contexts(stream, dict(enumerate(self.all_contexts(specification))))

    def names(self, specification: Specification, vocabulary: Vocabulary) -> ContextNames:
        """See `Model.names`."""
        return ContextNames(vocabulary.features[1:], self.all_contexts(specification))

    def open(
        self,
        reader: CommitReader,
        *,
        client: Client | None = None,
        options: GenerationOptions,
        observer: Observer = ignore,
    ) -> CountedPredictor:
        """See `Model.open`; rows are read from the store."""
        return CountedPredictor(reader, StoredRows(reader), observer)

    def open_on_workers(self, client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
        """See `Model.open_on_workers`."""
        regions = open_regions(client, reader, options.rows)
        arguments = (str(reader.path), reader.commit, regions.argument)
        return WorkerOpening.over(regions, counted_from_regions, arguments)

    def open_rows(self, reader: CommitReader, rows: RowSource) -> CountedPredictor:
        """See `WordModel.open_rows`."""
        return CountedPredictor(reader, rows)

    def score(self, text: EvaluatedText, options: ScoringOptions) -> ScoreReport:
        """See `Model.score`."""
        return score_counted(text, options)


@dataclass(frozen=True, eq=False)
class SeenWords:
    """Counts that predict the next word of a text.

    Attributes
    ----------
    counts : ndarray
        Frequency of each known word, in decreasing order; float64, shape ``(words,)``.
    after : tuple of (ndarray, ndarray)
        For each context of the model the places in `counts` of the words that followed it, int64, and how often each
        did, float64; both are empty where it was never seen.
    """

    counts: Floats
    after: tuple[tuple[Integers, Floats], ...]


class CountedPredictor(WordPredictor):
    """A commit of a model of one's own, opened in this process.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    rows : RowSource
        Its counts.
    observer : callable, optional
        Called when prompts enter, advance or leave.

    Attributes
    ----------
    words : tuple of str
        Known words, the most frequent ones first, equal ones by name.
    contexts : tuple of Context
        Kinds of contexts by segment, the first of them empty.
    """

    def __init__(self, reader: CommitReader, rows: RowSource, observer: Observer = ignore) -> None:
        super().__init__(reader, rows, observer)
        self._source = rows
        self._model = cast("CountedModel", model_of(self.specification))
        self._options = self._model.options_of(self.specification)
        self.contexts = self._model.all_contexts(self.specification)
        row, names = rows.row(EVERYWHERE), reader.saved_vocabulary().features[1:]
        counted = (
            {} if row is None else dict(zip(unpack_target(row.target)[1].tolist(), row.strength.tolist(), strict=True))
        )
        found = sorted((-counted[key], name, key) for name in names if (key := word_key(name)) in counted)
        self.words = tuple(name for _, name, _ in found)
        self._counts = np.array([-count for count, *_ in found], float)
        keys = np.array([key for *_, key in found], np.int64)
        self._order = np.argsort(keys)
        self._keys = keys[self._order]

    def numbers(self, keys: Integers) -> Integers:
        """Return the places of words by their keys, `NONE` for unknown ones."""
        return find_numbers(self._keys, self._order, keys)

    def seen(self, sentence: Sequence[str]) -> SeenWords:
        """Return the counts that predict the word after the beginning of a sentence."""
        stream, after = TokenStream.from_documents([[[*sentence, ""]]]), []
        for segment, context in enumerate(self.contexts[1:], 1):
            key = int(stream.sources(segment, context, len(sentence))[0])
            row = None if key == NONE else self._source.row(key)
            if row is None:
                after.append((np.zeros(0, np.int64), np.zeros(0)))
                continue
            of, word, _ = unpack_target(row.target)
            number = self.numbers(word)
            known = (of == segment) & (number != NONE)
            after.append((number[known], row.strength[known].astype(np.float64)))
        return SeenWords(self._counts, tuple(after))

    def chance(self, seen: SeenWords) -> Floats:
        """Return the probability of each known word, as the model says.

        Raises
        ------
        OptionError
            If these are no probabilities.
        """
        found = np.asarray(self._model.probabilities(seen, self._options), np.float64)
        fits = found.shape == self._counts.shape and bool((found >= 0).all()) and float(found.sum()) <= 1 + 1e-6
        if not fits:
            received = f"the model {self.profile} returns {found.shape} values with a sum of {float(found.sum()):g}"
            expected = f"{len(self.words)} probabilities, one for each known word"
            raise OptionError(received, expected, "correct its method probabilities")
        return found

    @cached_property
    def _spelling(self) -> Spelling:
        return Spelling.learn(self.words)

    def log_probability(self, chance: Floats, word: str) -> tuple[float, int]:
        """Return the natural logarithm of a word's probability, and its place, `NONE` where it is not known."""
        number = int(self.numbers(np.array([word_key(word)], np.int64))[0])
        with np.errstate(divide="ignore"):
            if number != NONE:
                return float(np.log(chance[number])), number
            # An unknown word costs its spelling, so that models with other dictionaries can be compared.
            return float(np.log(max(1 - chance.sum(), 0)) + self._spelling.log_probability([word])[0]), NONE

    def release(self) -> None:
        """See `WordPredictor.release`."""
        if isinstance(self._source, StoredRows):
            self._source.release_beyond(KEPT_BYTES)

    def start(self, prompt: str, options: GenerationOptions) -> CountedText:
        """Return the continuation of a prompt."""
        return CountedText(self, prompt, options)

    def score(self, text: str, candidates: int = 0, after: int = 0) -> tuple[ScoredWord, ...]:
        """See `WordPredictor.score`."""
        require_prompt(text)
        sentences = sentences_of(text)
        places = iter(word_places(text, [word for sentence in sentences for word in sentence]))
        found = []
        for sentence in sentences:
            for at, word in enumerate(sentence):
                begin, end = next(places)
                if end <= after:
                    continue
                chance = self.chance(self.seen(sentence[:at]))
                value, number = self.log_probability(chance, word.lower())
                likely = most_probable(chance, candidates).tolist() if candidates else []
                listed = tuple(Candidate(self.words[each], "", float(chance[each])) for each in likely)
                found.append(ScoredWord(begin, end, value, number == int(np.argmax(chance)), listed))
        return tuple(found)


class CountedText(WordText):
    """Continuation of one text; parameters are those of `CountedPredictor.start`.

    Raises
    ------
    PromptError
        If the prompt has no word, or the network has counted nothing.
    """

    def __init__(self, opened: CountedPredictor, prompt: str, options: GenerationOptions) -> None:
        super().__init__(prompt, options, opened.contexts)
        if not opened.words:
            raise PromptError("the network has counted no word", "a trained network", "train it first")
        self._opened = opened

    def predict(self) -> tuple[Sequence[str], Floats]:
        """See `WordText.predict`."""
        self._seen = self._opened.seen(self._sentence)
        return self._opened.words, self._opened.chance(self._seen)

    def reasons(self, word: int) -> tuple[Reason, ...]:
        """Return the contexts that the word was seen after, the one that raises its share most first."""
        found, share = [], float(self._seen.counts[word] / self._seen.counts.sum())
        for segment, (words, counts) in enumerate(self._seen.after, 1):
            at = np.flatnonzero(words == word)
            if len(at):
                count = float(counts[at[0]])
                gain = math.log(count / float(counts.sum()) / share)
                key, nearest = self._key(segment, self._opened.words[word]), self._nearest(segment)
                found.append(Reason(self._shown(segment), "", nearest, segment, 0, count, gain, key))
        return tuple(largest_contributions(found, self._options.reasons))


def counted_from_regions(path: str, commit: str, regions: Sequence[Run] | RegionKeys) -> CountedPredictor:
    """Open a commit in a task, given its regions or where these are."""
    reader = open_commit(path, commit)
    return CountedPredictor(reader, row_source(reader.placement(), regions, projection=RowProjection()))


def score_counted(text: EvaluatedText, options: ScoringOptions) -> ScoreReport:
    """Score every token of a text; see `Model.score`.

    Raises
    ------
    OptionError
        If a baseline is asked for, which the counts of a model of one's own do not give.
    EmptyInputError
        If there is no token after the seed tokens of any sentence.
    """
    from giaann_dask.models.words.score_report import ScoreReport, read_text, score_spans, tokens_of

    client, reader = text.client, text.reader
    specification = reader.manifest().specification
    if options.baseline is not None:
        received = f"baseline for a network of the model {specification.profile}"
        raise OptionError(received, "profile contexts, whose counts n-grams are made of", "leave it out")
    started = time.perf_counter()
    stream, sequences = read_text(text, options)
    place = str(reader.path), reader.commit

    def submit(span: tuple[int, int]) -> Future:
        return client.submit(score_span, *place, stream, span, key=task_key("score", place, stream.key, span))

    scores = score_spans(submit, tokens_of(client, stream), options.tokens_per_task, text.observer)
    return ScoreReport.of(scores, text, options, sequences, time.perf_counter() - started)


def score_span(path: str, commit: str, stream: TokenStream, span: tuple[int, int]) -> TextScores:
    """Score the tokens of a stretch of a text, given the words before them in their sentence (a task)."""
    opened = cast(CountedPredictor, opened_from_rows(path, commit))
    begin, end = span
    logs, ranks, known = np.zeros(end - begin), np.zeros(end - begin, np.int64), np.zeros(end - begin, np.bool_)
    for at in range(begin, end):
        sentence = [stream.words[word] for word in stream.index[at - int(stream.place[at]) : at].tolist()]
        chance = opened.chance(opened.seen(sentence))
        logs[at - begin], number = opened.log_probability(chance, stream.words[stream.index[at]])
        known[at - begin] = number != NONE
        # Of equals the first one is more probable.
        above = (chance > chance[number]).sum() + (chance[:number] == chance[number]).sum()
        ranks[at - begin] = MOST_RANK if number == NONE else min(int(above), MOST_RANK)
    words = stream.index[begin:end]
    return TextScores(logs, ranks == 0, token_bytes(stream.words)[words], stream.place[begin:end], known, ranks)
