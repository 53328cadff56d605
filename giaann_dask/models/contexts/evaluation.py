"""Evaluate a text with profile ``best`` and n-grams on a cluster: the probability of every token.

Builds tables from the counts of a commit, scores stretches of a text as tasks, and reports the sums. N-grams are made
of the same counts, or for a network of columns of its own training text, so that they are scored on the very tokens
that it predicts. Probabilities are in `contexts.scores`, n-grams in `contexts.ngram`.

The tokens of the text, not its network, bound what fits: each of them takes about 250 bytes on a worker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from distributed import Client, Future

from giaann_dask.cluster import result, task_key
from giaann_dask.dask_types import register
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.encoding.stream import EncodingStream, StreamOptions, check_limits
from giaann_dask.errors import OptionError, parameter, require_option
from giaann_dask.events import BlockEncoded, Observer, SequencesEvaluated, ignore
from giaann_dask.keywords import names_keywords
from giaann_dask.models.contexts.commit_tables import CommitTables, opened, submit_tables
from giaann_dask.models.contexts.counting import count_contexts
from giaann_dask.models.contexts.increments import stream_tokens
from giaann_dask.models.contexts.kernel import Text
from giaann_dask.models.contexts.kinds import TokenStream
from giaann_dask.models.contexts.ngram import backoff_matches, baseline_lines, smoothing
from giaann_dask.models.contexts.scores import (
    BEST,
    LogLinearModel,
    PoolingOptions,
    ScoreSummary,
    TextScores,
    join_scores,
)
from giaann_dask.models.contexts.span_kernel import MOST_RANK
from giaann_dask.models.contexts.tables import PooledTables, build_tables
from giaann_dask.representations import Summarised, Summary, finite, format_count
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.vocabulary import Vocabulary

register()

# The more, the fewer rows are read for several tasks.
TOKENS_PER_TASK = 8192
NGRAM = "ngram"


@names_keywords
@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """Options of scoring.

    Parameters
    ----------
    maximum_sequences : int, optional
        Sentences to read.
    first_sequence : int
        The first of them, counted from 0.
    baseline : {"ngram"}, optional
        Also score n-gram models of the same counts.
    tokens_per_task : int
        Tokens of one task; the figures do not depend on it.
    top_k : tuple of int
        How often one of the k most probable words is right is told for each of these.

    Raises
    ------
    OptionError
        If there is no such baseline, a task would have no tokens, or k or a limit is out of range.

    Examples
    --------
    >>> ScoringOptions(baseline="ngram").baseline
    'ngram'
    """

    maximum_sequences: int | None = None
    first_sequence: int = 0
    baseline: Literal["ngram"] | None = None
    tokens_per_task: int = TOKENS_PER_TASK
    top_k: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        check_limits(self.maximum_sequences, self.first_sequence)
        if self.baseline not in (None, NGRAM):
            raise OptionError(f"{parameter('baseline')} is {self.baseline!r}", NGRAM, "choose it, or leave it out")
        require_option(self.tokens_per_task >= 1, "tokens_per_task", self.tokens_per_task, "1 or more")
        if not self.top_k or not all(1 <= k <= MOST_RANK for k in self.top_k):
            raise OptionError(
                f"{parameter('top_k')} is {self.top_k}",
                f"numbers from 1 to {MOST_RANK}",
                f"set {parameter('top_k')} to such values",
            )


@dataclass(frozen=True, eq=False)
class Baseline:
    """N-gram models on some tokens, made of the same counts of the same text.

    Attributes
    ----------
    backoff : ndarray
        At which tokens plain backoff is right, bool, shape ``(tokens,)``.
    smoothed : TextScores
        Of the modified smoothing of Kneser and Ney.
    pooled : TextScores or None
        Of profile ``best`` on these tokens, where it is not what the baseline stands beside.
    """

    backoff: npt.NDArray[np.bool_]
    smoothed: TextScores
    pooled: TextScores | None = None

    def as_dict(self, seed_tokens: int) -> dict[str, Any]:
        """Return JSON-ready figures of the tokens after the first ones of each sentence."""
        summary = self.smoothed.summary(seed_tokens)
        matches = int(self.backoff[self.smoothed.place >= seed_tokens].sum())
        backoff = {"tokens": summary.tokens, "matches": matches, "top1": matches / summary.tokens}
        pooled = {} if self.pooled is None else {"best": self.pooled.summary(seed_tokens).as_dict()}
        return {"backoff": backoff, "kneser_ney": summary.as_dict(), **pooled}

    def lines(self, seed_tokens: int) -> list[str]:
        """Return these figures for a person."""
        lines = baseline_lines(self.backoff, self.smoothed, seed_tokens)
        if self.pooled is None:
            return lines
        found = self.pooled.summary(seed_tokens)
        return [*lines, f"profile best       top-1 {found.top1:.4f} of {found.tokens:,} tokens, {found.costs}"]


@dataclass(frozen=True, repr=False)
class ScoreReport(Summarised):
    """Probability of a text by a network of profile ``best``.

    Attributes
    ----------
    sequences : int
        Sentences.
    seed_tokens : int
        Tokens of each that are only given.
    predicted : ScoreSummary
        Figures of the tokens after these.
    every : ScoreSummary
        Figures of every token.
    seconds : float
        Time, without the start of the cluster.
    commit : str
        The commit that was evaluated.
    scores : TextScores
        Of each token, in order.
    baseline : Baseline or None
        N-gram models, where asked for.
    top_k : dict of int to float
        Share of the tokens after the seed tokens that are among the k most probable words, by k.
    """

    sequences: int
    seed_tokens: int
    predicted: ScoreSummary
    every: ScoreSummary
    seconds: float
    commit: str
    scores: TextScores = field(compare=False)
    baseline: Baseline | None = field(default=None, compare=False)
    top_k: dict[int, float] = field(default_factory=dict)

    @property
    def top1(self) -> float:
        """Share of the tokens after the seed tokens that are predicted right."""
        return self.predicted.top1

    @property
    def prediction_tokens(self) -> int:
        """Tokens after the seed tokens, of which `top1` is a share."""
        return self.predicted.tokens

    @property
    def tokens_per_second(self) -> float:
        """Scored tokens a second, reading and tables included."""
        return self.every.tokens / max(self.seconds, 1e-9)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "sequences": self.sequences,
            "seed_tokens": self.seed_tokens,
            "prediction_tokens": self.predicted.tokens,
            "prediction_matches": self.predicted.matches,
            "top1": self.top1,
            "top_k": {str(k): share for k, share in self.top_k.items()},
            "perplexity": finite(self.predicted.perplexity),
            "bits_per_byte": self.predicted.bits_per_byte,
            "unknown": self.predicted.unknown,
            "every_token": self.every.as_dict(),
            "baseline": None if self.baseline is None else self.baseline.as_dict(self.seed_tokens),
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "commit": self.commit,
        }

    def summary(self) -> Summary:
        """Return the lines that represent the evaluation."""
        predicted, every = self.predicted, self.every
        rows = (
            ("top-1", f"{predicted.top1:.4f}"),
            ("right", f"{format_count(predicted.matches)} of {format_count(predicted.tokens)}"),
            ("perplexity", predicted.shown_perplexity),
            ("bits per byte", f"{predicted.bits_per_byte:.3f}"),
            ("every token", every.costs),
            ("tokens", f"{format_count(every.tokens)}, {self.tokens_per_second:,.0f} a second"),
        )
        return Summary("Evaluation", rows)

    def lines(self) -> list[str]:
        """Return the figures of the n-gram models as readable lines; none if these were not requested."""
        return [] if self.baseline is None else self.baseline.lines(self.seed_tokens)


def score_network(
    client: Client,
    reader: CommitReader,
    inputs: Sequence[Source],
    sources: SourceOptions,
    options: ScoringOptions,
    observer: Observer = ignore,
) -> ScoreReport:
    """Score every token of a text.

    Parameters
    ----------
    client : Client
        Where tasks run.
    reader : CommitReader
        The commit to evaluate, of profile ``best``.
    inputs : sequence of str or MemoryInput
        Text, as for training.
    sources : SourceOptions
        How it is read.
    options : ScoringOptions
        Options of scoring.
    observer : callable, optional
        Told of progress.

    Raises
    ------
    EmptyInputError
        If there is no token after the seed tokens of any sentence, or the network has counted nothing.
    """
    started = time.perf_counter()
    specification = reader.manifest().specification
    tables = submit_tables(client, reader)
    stream, sequences = _read_text(client, inputs, sources, options, observer)
    scorer = Scorer(client, tables, stream, options.tokens_per_task)
    scores = scorer.score(BEST, observer)
    baseline = None
    if options.baseline is not None:
        baseline = Baseline(scorer.back_off(), scorer.score(smoothing()))
    every, predicted = scores.summary(), scores.summary(specification.seed_tokens)
    seconds = time.perf_counter() - started
    seed = specification.seed_tokens
    top_k = {k: scores.top_k(k, seed) for k in sorted({1, *options.top_k})}
    return ScoreReport(sequences, seed, predicted, every, seconds, reader.commit, scores, baseline, top_k)


def _read_text(
    client: Client, inputs: Sequence[Source], sources: SourceOptions, options: ScoringOptions, observer: Observer
) -> tuple[Future, int]:
    """Return the tokens of a text on the cluster, and the number of its sentences."""
    limits = StreamOptions(
        branches=1, maximum_sequences=options.maximum_sequences, first_sequence=options.first_sequence
    )
    stream = EncodingStream(client, Vocabulary(), sources, limits)
    blocks = []
    for block in stream.blocks(inputs):
        blocks.append(block.encoded)
        observer(BlockEncoded(block.mapping.sequences, block.characters, block.read))
    key = task_key("stream", [block.key for block in blocks])
    return client.submit(stream_tokens, blocks, key=key), stream.counted


class Scorer:
    """Scores one text with one set of tables, as tasks.

    Parameters
    ----------
    client : Client
        Where tasks run.
    tables, stream : Future
        `PooledTables` or `CommitTables`, and `TokenStream`.
    size : int
        Tokens of a task.
    """

    def __init__(self, client: Client, tables: Future, stream: Future, size: int) -> None:
        self._client, self._tables, self._stream, self._size = client, tables, stream, size
        key = task_key("text", tables.key, stream.key)
        self._text = client.submit(prepare_text, tables, stream, key=key)
        self._tokens: int = result(client.submit(len, stream, key=task_key("len", stream.key)))

    def score(self, options: PoolingOptions, observer: Observer = ignore) -> TextScores:
        """Return the scores of all tokens."""
        futures = []
        for begin in range(0, self._tokens, self._size):
            span = begin, min(begin + self._size, self._tokens)
            key = task_key("score", self._text.key, span, options)
            task = (self._tables, self._text, self._stream, span, options)
            futures.append(self._client.submit(score_span, *task, key=key))
        parts = []
        for future in futures:
            part: TextScores = result(future)
            parts.append(part)
            observer(SequencesEvaluated(int((part.place == 0).sum()), int(part.matches.sum()), len(part.matches)))
        return join_scores(parts)

    def back_off(self) -> npt.NDArray[np.bool_]:
        """Return at which tokens plain backoff is right."""
        task = (self._tables, self._stream)
        key = task_key("backoff", *(future.key for future in task))
        matches: npt.NDArray[np.bool_] = result(self._client.submit(back_off, *task, key=key))
        return matches


def back_off(tables: PooledTables | CommitTables, stream: TokenStream) -> npt.NDArray[np.bool_]:
    """Return at which tokens plain backoff is right, as a task."""
    return backoff_matches(opened(tables), stream)


def prepare_text(tables: PooledTables | CommitTables, stream: TokenStream) -> Text:
    """Look up the words of a text, as a task."""
    return LogLinearModel(opened(tables)).numbered(stream)


def score_span(
    tables: PooledTables | CommitTables, text: Text, stream: TokenStream, span: tuple[int, int], options: PoolingOptions
) -> TextScores:
    """Score a span of a text, as a task, given the text before it in its document."""
    return LogLinearModel(opened(tables), options).score_span(stream, text, *span)


@dataclass(frozen=True, eq=False)
class BaselineTexts:
    """The texts of a comparison.

    Attributes
    ----------
    training, inputs : sequence of str or MemoryInput
        What the network was trained on, and what is predicted.
    training_sources, sources : SourceOptions
        How each is read.
    """

    training: Sequence[Source]
    inputs: Sequence[Source]
    training_sources: SourceOptions
    sources: SourceOptions


def score_same_tokens(client: Client, reader: CommitReader, texts: BaselineTexts, options: ScoringOptions) -> Baseline:
    """Count the sequences that a network was trained on and score those that it is evaluated on.

    Parameters
    ----------
    client : Client
        Where tasks run.
    reader : CommitReader
        A commit of profile ``v1`` or ``v2``; as many sequences of the training text are read as it holds.
    texts : BaselineTexts
        Both texts.
    options : ScoringOptions
        What is scored.

    Raises
    ------
    EmptyInputError
        If no sequence of the training text is divided into columns.
    """
    manifest, tokenizer = reader.manifest(), reader.tokenizer()
    specification = manifest.specification
    begun = Vocabulary() if tokenizer is None else Vocabulary.of_subwords(tokenizer.names, specification.column_names)
    limits = StreamOptions.of(specification, maximum_sequences=max(manifest.sequences, 1))
    trained = _stream(client, EncodingStream(client, begun, texts.training_sources, limits), begun, texts.training)
    tables = client.submit(tables_of, trained, key=task_key("tables", trained.key))
    known = reader.saved_vocabulary()
    limits = StreamOptions.of(
        specification, maximum_sequences=options.maximum_sequences, first_sequence=options.first_sequence
    )
    unseen = _stream(client, EncodingStream(client, known, texts.sources, limits), known, texts.inputs)
    scorer = Scorer(client, tables, unseen, options.tokens_per_task)
    return Baseline(scorer.back_off(), scorer.score(smoothing()), scorer.score(BEST))


def tables_of(stream: TokenStream) -> PooledTables:
    """Count the contexts of a stream and make tables of them, as a task."""
    counts = count_contexts(stream)
    return build_tables([counts.run], counts.words)


def _stream(client: Client, stream: EncodingStream, vocabulary: Vocabulary, inputs: Sequence[Source]) -> Future:
    """Return the tokens of the sequences of a text that are divided into columns, on the cluster."""
    blocks = [block.encoded for block in stream.blocks(inputs)]
    # Features keep their numbers, so the names at the end serve all blocks.
    features = tuple(vocabulary.features)
    key = task_key("stream", [block.key for block in blocks], features)
    return client.submit(stream_tokens, blocks, features, key=key)
