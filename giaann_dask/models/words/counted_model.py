"""Define the base class of models of one's own: words counted after contexts, and probabilities made of the counts.

A model says which contexts it counts and how counts become probabilities; numbering, training on a cluster, commits,
adding, forgetting, tracing, export, generation, serving and evaluation are those of all models. Do not change either
rule after networks were trained: counts are stored by segment, which is the place of a context among the others.
"""

from __future__ import annotations

import math
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import task_key
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.dask_types import read_only
from giaann_dask.errors import OptionError, PromptError, SpecificationError
from giaann_dask.events import Observer, ignore
from giaann_dask.keys import Integers, unpack_target, word_key
from giaann_dask.models import model_of
from giaann_dask.models.base import EvaluatedText, WorkerOpening
from giaann_dask.models.generation_options import GenerationOptions, option_pairs, require_prompt
from giaann_dask.models.results import (
    Candidate,
    ConnectionKey,
    Reason,
    ScoredWord,
    largest_contributions,
)
from giaann_dask.models.words.counting import count_contexts
from giaann_dask.models.words.model import ContextNames, WordModel, find_occurrences
from giaann_dask.models.words.predictor import (
    WordPredictor,
    WordText,
    most_probable,
    opened_from_rows,
    sentences_of,
    word_places,
    words_above,
)
from giaann_dask.models.words.scores import MOST_RANK, TextScores, token_bytes
from giaann_dask.models.words.seen_words import RECENT_WORDS, SeenWords, SparseProbabilities
from giaann_dask.models.words.spelling import Spelling
from giaann_dask.models.words.stream import EVERYWHERE, NONE, Context, Feature, TokenStream, find_numbers, view_identity
from giaann_dask.rows.protocol import RowProjection
from giaann_dask.rows.regions import open_regions
from giaann_dask.rows.remote import RegionKeys, row_source
from giaann_dask.rows.source import RowSource
from giaann_dask.rows.stored import KEPT_BYTES, StoredRows
from giaann_dask.runs.postings import Postings
from giaann_dask.runs.run import Run
from giaann_dask.spec import MAXIMUM_SEGMENTS, Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client, Future

    from giaann_dask.models.words.score_report import ScoreReport, ScoringOptions

Floats = npt.NDArray[np.float64]
OptionPairs: TypeAlias = tuple[tuple[str, Any], ...]

# Contexts of a model at most: how many tokens are sorted at a time depends on it.
_MOST_CONTEXTS = 1024
_NO_WORDS, _NO_COUNTS = read_only(np.zeros(0, np.int64)), read_only(np.zeros(0))


class CountedModel(WordModel):
    """Base class of models of words: defines what is counted and how counts predict.

    Contexts of one name share a segment, so that their counts add up.
    `options` is a frozen dataclass of the model's options; `Specification.model_options` sets them.
    """

    @abstractmethod
    def contexts(self, options: Any) -> Sequence[Context]:
        """Return the contexts that words are counted after, of 31 names at most; words alone are always counted."""

    @abstractmethod
    def probabilities(self, seen: SeenWords, options: Any) -> Floats | SparseProbabilities:
        """Return the probability of each known word to come next.

        Parameters
        ----------
        seen : SeenWords
            Counts of words after the contexts as they are now.
        options : object
            An instance of `options`.

        Returns
        -------
        ndarray or SparseProbabilities
            In the order of ``seen.counts``; not negative, with a sum of at most 1. The rest is the probability of a
            word that is not known. Or `SeenWords.sparse`, which costs less where few words stand out.
        """

    def layout(self, specification: Specification) -> tuple[tuple[Context, ...], ...]:
        """Return the contexts that are counted on each segment, the first of them empty.

        Raises
        ------
        SpecificationError
            If they cannot be counted.
        """
        return _layout(self.contexts(self.options_of(specification)), specification.profile)

    def require_trainable(self, specification: Specification) -> None:
        """See `Model.require_trainable`."""
        self.layout(specification)

    def counts_alike(self, one: Specification, other: Specification) -> bool:
        """See `Model.counts_alike`: options that only predictions read may differ."""
        first, second = (
            [
                (each.name, [(view_identity(view), at) for view, at in each.parts])
                for several in layout
                for each in several
            ]
            for layout in (self.layout(one), self.layout(other))
        )
        return first == second

    def count_stream(self, stream: TokenStream, specification: Specification) -> Run:
        """See `WordModel.count_stream`."""
        return count_contexts(stream, dict(enumerate(self.layout(specification))))

    def indexed_features(self, specification: Specification) -> tuple[Feature, ...]:
        """See `WordModel.indexed_features`."""
        views = (view for several in self.layout(specification) for each in several for view in each.views)
        return tuple(dict.fromkeys(view for view in views if not isinstance(view, str)))

    def shares(
        self, postings: Callable[[int], Postings], connection: ConnectionKey, specification: Specification
    ) -> tuple[Integers, Integers]:
        """See `Model.shares`; of contexts that share a segment, each may have counted."""
        found = []
        for each in self.layout(specification)[connection.segment]:
            moved = [part._replace(distance=at) for part, (_, at) in zip(connection.context, each.parts, strict=True)]
            found.append(find_occurrences(postings, connection.target, moved))
        sequences, amounts = (np.concatenate(part) for part in zip(*found, strict=True))
        every, row = np.unique(sequences, return_inverse=True)
        return every, np.bincount(row, amounts, len(every)).astype(np.int64)

    def names(self, specification: Specification, vocabulary: Vocabulary) -> ContextNames:
        """See `Model.names`."""
        return ContextNames(vocabulary.features[1:], [several[0] for several in self.layout(specification)])

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
    contexts : tuple of (int, Context)
        The contexts of the model, in its order, each with its segment.
    """

    def __init__(self, reader: CommitReader, rows: RowSource, observer: Observer = ignore) -> None:
        super().__init__(reader, rows, observer)
        self._source = rows
        self._model = cast("CountedModel", model_of(self.specification))
        self._options = self._model.options_of(self.specification)
        self.contexts = _in_order(self._model.contexts(self._options))
        row, names = rows.row(EVERYWHERE), reader.saved_vocabulary().features[1:]
        counted = (
            {} if row is None else dict(zip(unpack_target(row.target)[1].tolist(), row.strength.tolist(), strict=True))
        )
        found = sorted((-counted[key], name, key) for name in names if (key := word_key(name)) in counted)
        self.words = tuple(name for _, name, _ in found)
        counts = np.array([-count for count, *_ in found], float)
        keys = np.array([key for *_, key in found], np.int64)
        self._order = np.argsort(keys)
        self._keys = keys[self._order]
        once = int((counts == 1).sum())
        self._seen = SeenWords(read_only(counts), (), self.words, total=float(counts.sum()), once=once)

    def numbers(self, keys: Integers) -> Integers:
        """Return the places of words by their keys, `NONE` for unknown ones."""
        return find_numbers(self._keys, self._order, keys)

    def seen(self, sentence: tuple[str, ...], text: tuple[str, ...] = ()) -> SeenWords:
        """Return what predicts the next word.

        Parameters
        ----------
        sentence, text : tuple of str
            Words of the sentence and of the text so far, lower-cased.
        """
        stream, after = TokenStream.from_documents([[[*sentence, ""]]]), []
        for segment, context in self.contexts:
            key = int(stream.sources(segment, context, len(sentence))[0])
            row = None if key == NONE else self._source.row(key)
            if row is None:
                after.append((_NO_WORDS, _NO_COUNTS))
                continue
            of, word, _ = unpack_target(row.target)
            number = self.numbers(word)
            known = (of == segment) & (number != NONE)
            after.append((read_only(number[known]), read_only(row.strength[known].astype(np.float64))))
        return replace(self._seen, after=tuple(after), sentence=sentence, text=text[-RECENT_WORDS:])

    def options(self, changed: OptionPairs = ()) -> Any:
        """Return the model's options, some of them changed for a prediction (`Model.changed_options`)."""
        return self._model.changed_options(self.specification, changed) if changed else self._options

    def chance(self, seen: SeenWords, options: Any) -> Floats | SparseProbabilities:
        """Return the probability of each known word, as the model says with its options.

        Raises
        ------
        OptionError
            If these are no probabilities.
        """
        found = self._model.probabilities(seen, options)
        if isinstance(found, SparseProbabilities):
            fits, total = found.valid() and len(found) == len(self.words), found.total
        else:
            found = np.asarray(found, np.float64)
            fits, total = found.shape == seen.counts.shape and bool((found >= 0).all()), float(found.sum())
        if not fits or not total <= 1 + 1e-6:
            shape = (len(found),) if isinstance(found, SparseProbabilities) else found.shape
            received = f"the model {self.profile} returns {shape} values with a sum of {total:g}"
            expected = f"{len(self.words)} probabilities, one for each known word"
            raise OptionError(received, expected, "correct its method probabilities")
        return found

    @cached_property
    def _spelling(self) -> Spelling:
        return Spelling.learn(self.words)

    def log_probability(self, chance: Floats | SparseProbabilities, word: str) -> tuple[float, int]:
        """Return the natural logarithm of a word's probability, and its place, `NONE` where it is not known."""
        number = int(self.numbers(np.array([word_key(word)], np.int64))[0])
        with np.errstate(divide="ignore"):
            if number != NONE:
                return float(np.log(chance[number])), number
            total = chance.total if isinstance(chance, SparseProbabilities) else chance.sum()
            # An unknown word costs its spelling, so that models with other dictionaries can be compared.
            return float(np.log(max(1 - total, 0)) + self._spelling.log_probability([word])[0]), NONE

    def release(self) -> None:
        """See `WordPredictor.release`."""
        if isinstance(self._source, StoredRows):
            self._source.release_beyond(KEPT_BYTES)

    def start(self, prompt: str, options: GenerationOptions) -> CountedText:
        """Return the continuation of a prompt."""
        return CountedText(self, prompt, options)

    def score(
        self, text: str, candidates: int = 0, after: int = 0, model_options: OptionPairs = ()
    ) -> tuple[ScoredWord, ...]:
        """See `WordPredictor.score`."""
        options = self.options(model_options)
        require_prompt(text)
        sentences = sentences_of(text)
        places = iter(word_places(text, [word for sentence in sentences for word in sentence]))
        found, words = [], [word.lower() for sentence in sentences for word in sentence]
        starts = np.cumsum([0, *map(len, sentences)]).tolist()
        for first, last in pairwise(starts):
            for at in range(first, last):
                begin, end = next(places)
                if end <= after:
                    continue
                seen = self.seen(tuple(words[first:at]), tuple(words[max(at - RECENT_WORDS, 0) : at]))
                chance = self.chance(seen, options)
                value, number = self.log_probability(chance, words[at])
                likely = most_probable(chance, max(candidates, 1)).tolist()
                listed = tuple(Candidate(self.words[each], "", float(chance[each])) for each in likely[:candidates])
                found.append(ScoredWord(begin, end, value, number == likely[0], listed))
        return tuple(found)


class CountedText(WordText):
    """Continuation of one text; parameters are those of `CountedPredictor.start`.

    Raises
    ------
    PromptError
        If the prompt has no word, or the network has counted nothing.
    """

    def __init__(self, opened: CountedPredictor, prompt: str, options: GenerationOptions) -> None:
        super().__init__(prompt, options, [context for _, context in opened.contexts])
        if not opened.words:
            raise PromptError("the network has counted no word", "a trained network", "train it first")
        self._opened, self._words = opened, [word.lower() for word in self.prompt]
        self._own = opened.options(option_pairs(options.model_options))

    def predict(self) -> tuple[Sequence[str], Floats | SparseProbabilities]:
        """See `WordText.predict`."""
        opened = self._opened
        self._seen = opened.seen(tuple(self._sentence), tuple(self._words[-RECENT_WORDS:]))
        self._chance = opened.chance(self._seen, self._own)
        total = self._chance.total if isinstance(self._chance, SparseProbabilities) else self._chance.sum()
        if not total > 0:
            received = f"the model {opened.profile} gives every known word the probability 0"
            raise OptionError(received, "one word at least that can follow", "correct its method probabilities")
        return opened.words, self._chance

    def enter(self, word: int) -> None:
        """See `WordText.enter`."""
        self._words.append(self._opened.words[word])

    def reasons(self, word: int) -> tuple[Reason, ...]:
        """Return the contexts that the word was seen after, the one that raises its probability most first.

        How much a context raises it is what the model says without this context.
        """
        found, probability = [], float(self._chance[word])
        for number, (words, counts) in enumerate(self._seen.after):
            at = np.flatnonzero(words == word)
            if len(at) and probability:
                segment, context = self._opened.contexts[number]
                without = float(self._opened.chance(self._seen.without(number), self._own)[word])
                gain = math.log(probability / max(without, sys.float_info.min))
                key, nearest = self._key(segment, self._opened.words[word], context), self._nearest(context)
                found.append(Reason(self._shown(context), "", nearest, segment, 0, float(counts[at[0]]), gain, key))
        return tuple(largest_contributions(found, self._options.reasons))


def _in_order(contexts: Sequence[Context]) -> tuple[tuple[int, Context], ...]:
    """Return contexts with their segments, one for each name; the first is that of all words."""
    segments: dict[str, int] = {}
    return tuple((segments.setdefault(each.name, len(segments) + 1), each) for each in contexts)


def _layout(contexts: Any, profile: str) -> tuple[tuple[Context, ...], ...]:
    """Return the contexts of each segment, the first of them empty; see `CountedModel.layout`."""
    found = tuple(contexts) if isinstance(contexts, Iterable) else ()
    if not isinstance(contexts, Iterable) or not all(isinstance(each, Context) for each in found):
        received = f"the model {profile} returns {contexts!r} as contexts"
        raise SpecificationError(received, "a list of gd.Context", "correct its method contexts")
    segments: dict[int, list[Context]] = {0: [Context("all", ())]}
    for segment, context in _in_order(found):
        segments.setdefault(segment, []).append(context)
        if context.views != segments[segment][0].views:
            received = f"contexts {segments[segment][0].parts} and {context.parts} of one name, {context.name!r}"
            expected = "contexts of one name, which share a segment, of the same views"
            raise SpecificationError(received, expected, "give them other names")
    most = f"at most {MAXIMUM_SEGMENTS - 1} names of contexts, a segment for each, and {_MOST_CONTEXTS} contexts"
    if len(segments) > MAXIMUM_SEGMENTS or len(found) > _MOST_CONTEXTS:
        raise SpecificationError(f"a model of {len(found)} contexts", most, "count fewer")
    return tuple(map(tuple, segments.values()))


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
    changed = option_pairs(options.model_options)
    model_of(specification).changed_options(specification, changed)
    started = time.perf_counter()
    read = read_text(text, options)
    stream = read.stream
    place = str(reader.path), reader.commit

    def submit(span: tuple[int, int]) -> Future:
        key = task_key("score", place, stream.key, span, changed)
        return client.submit(score_span, *place, stream, span, changed, key=key)

    scores = score_spans(submit, tokens_of(client, stream), options.tokens_per_task, text.observer)
    return ScoreReport.of(scores, text, options, read, time.perf_counter() - started)


def score_span(
    path: str, commit: str, stream: TokenStream, span: tuple[int, int], changed: OptionPairs = ()
) -> TextScores:
    """Score the tokens of a stretch of a text, given the words before them in their sentence (a task)."""
    opened = cast(CountedPredictor, opened_from_rows(path, commit))
    (begin, end), options = span, opened.options(changed)
    logs, ranks, known = np.zeros(end - begin), np.zeros(end - begin, np.int64), np.zeros(end - begin, np.bool_)
    first = max(begin - max(RECENT_WORDS, *stream.place[begin : begin + 1].tolist()), 0)
    text = [stream.words[word] for word in stream.index[first:end].tolist()]
    for at, place in enumerate(stream.place[begin:end].tolist(), begin):
        same = int(np.searchsorted(stream.document[first:at], stream.document[at]))
        now = at - first
        chance = opened.chance(opened.seen(tuple(text[now - place : now]), tuple(text[same:now])), options)
        logs[at - begin], number = opened.log_probability(chance, text[now])
        known[at - begin] = number != NONE
        ranks[at - begin] = MOST_RANK if number == NONE else min(words_above(chance, number), MOST_RANK)
    words = stream.index[begin:end]
    origin = stream.place[begin:end], stream.document[begin:end]
    return TextScores(logs, ranks == 0, token_bytes(stream.words)[words], *origin, known, ranks)
