"""Evaluate a text with profile ``contexts`` and n-grams on a cluster: the probability of every token.

Builds tables from the counts of a commit, scores stretches of a text as tasks, and reports the sums. N-grams are made
of the same counts, or for a network of columns of its own training text, so that they are scored on the very tokens
that it predicts. Probabilities are in `contexts.scores`, and so are n-grams.

The tokens of the text, not its network, bound what fits: each of them takes about 250 bytes on a worker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from distributed import Client, Future

from giaann_dask.cluster import result, task_key
from giaann_dask.dask_types import register
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.encoding.stream import EncodingStream, StreamOptions
from giaann_dask.events import Observer, ignore
from giaann_dask.models.base import EvaluatedText
from giaann_dask.models.contexts.kernel import Text
from giaann_dask.models.contexts.kinds import count_kinds
from giaann_dask.models.contexts.scores import BEST, KNESER_NEY, LogLinearModel, PoolingOptions, backoff_matches
from giaann_dask.models.contexts.table_files import CommitTables, opened, submit_tables
from giaann_dask.models.contexts.tables import PackedTables, build_tables
from giaann_dask.models.words.score_report import (
    Baseline,
    ScoreReport,
    ScoringOptions,
    read_text,
    score_spans,
    tokens_of,
)
from giaann_dask.models.words.scores import TextScores
from giaann_dask.models.words.stream import TokenStream, stream_tokens
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.vocabulary import Vocabulary

register()


def score_network(text: EvaluatedText, options: ScoringOptions) -> ScoreReport:
    """Score every token of a text with a commit of profile ``contexts``.

    Raises
    ------
    EmptyInputError
        If there is no token after the seed tokens of any sentence, or the network has counted nothing.
    """
    started = time.perf_counter()
    tables = submit_tables(text.client, text.reader)
    read = read_text(text, options)
    scorer = Scorer(text.client, tables, read.stream, options.tokens_per_task)
    scores = scorer.score(BEST, text.observer)
    baseline = None
    if options.baseline is not None:
        baseline = Baseline(scorer.back_off(), scorer.score(KNESER_NEY), top_k=options.top_k)
    return ScoreReport.of(scores, text, options, read, time.perf_counter() - started, baseline)


class Scorer:
    """Scores one text with one set of tables, as tasks.

    Parameters
    ----------
    client : Client
        Where tasks run.
    tables, stream : Future
        `PackedTables` or `CommitTables`, and `TokenStream`.
    size : int
        Tokens of a task.
    """

    def __init__(self, client: Client, tables: Future, stream: Future, size: int) -> None:
        self._client, self._tables, self._stream, self._size = client, tables, stream, size
        key = task_key("text", tables.key, stream.key)
        self._text = client.submit(prepare_text, tables, stream, key=key)
        self._tokens = tokens_of(client, stream)

    def score(self, options: PoolingOptions, observer: Observer = ignore) -> TextScores:
        """Return the scores of all tokens."""

        def submit(span: tuple[int, int]) -> Future:
            key = task_key("score", self._text.key, span, options)
            return self._client.submit(score_span, self._tables, self._text, self._stream, span, options, key=key)

        return score_spans(submit, self._tokens, self._size, observer)

    def back_off(self) -> npt.NDArray[np.bool_]:
        """Return at which tokens plain backoff is right."""
        task = (self._tables, self._stream)
        key = task_key("backoff", *(future.key for future in task))
        matches: npt.NDArray[np.bool_] = result(self._client.submit(back_off, *task, key=key))
        return matches


def back_off(tables: PackedTables | CommitTables, stream: TokenStream) -> npt.NDArray[np.bool_]:
    """Return at which tokens plain backoff is right, as a task."""
    return backoff_matches(opened(tables), stream)


def prepare_text(tables: PackedTables | CommitTables, stream: TokenStream) -> Text:
    """Look up the words of a text, as a task."""
    return LogLinearModel(opened(tables), BEST).numbered(stream)


def score_span(
    tables: PackedTables | CommitTables, text: Text, stream: TokenStream, span: tuple[int, int], options: PoolingOptions
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
    names = manifest.specification.column_names
    begun = Vocabulary() if tokenizer is None else Vocabulary.of_subwords(tokenizer.names, names)
    limits = StreamOptions(max_sequences=max(manifest.sequences, 1))
    trained = _stream(client, EncodingStream(client, begun, texts.training_sources, limits), begun, texts.training)
    tables = client.submit(tables_of, trained, key=task_key("tables", trained.key))
    known = reader.saved_vocabulary()
    limits = StreamOptions(max_sequences=options.max_sequences, first_sequence=options.first_sequence)
    unseen = _stream(client, EncodingStream(client, known, texts.sources, limits), known, texts.inputs)
    scorer = Scorer(client, tables, unseen, options.tokens_per_task)
    return Baseline(scorer.back_off(), scorer.score(KNESER_NEY), scorer.score(BEST), options.top_k)


def tables_of(stream: TokenStream) -> PackedTables:
    """Count the contexts of a stream and make tables of them, as a task."""
    return build_tables([count_kinds(stream)], stream.words)


def _stream(client: Client, stream: EncodingStream, vocabulary: Vocabulary, inputs: Sequence[Source]) -> Future:
    """Return the tokens of the sequences of a text that are divided into columns, on the cluster."""
    blocks = [block.encoded for block in stream.blocks(inputs)]
    # Features keep their numbers, so the names at the end serve all blocks.
    features = tuple(vocabulary.features)
    key = task_key("stream", [block.key for block in blocks], features)
    return client.submit(stream_tokens, blocks, features, key=key)
