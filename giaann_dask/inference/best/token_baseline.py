"""N-grams beside a network of columns, on the very tokens that it is trained and evaluated on.

Covers: the sequences that a network of profile ``v1`` or ``v2`` reads as streams of tokens, and n-gram
models and the rules of profile ``best`` counted and scored on these. Does not cover: networks of profile
``best``, whose own counts make the n-grams (`best.evaluation`).

The same sequences count, cut, merged and left out alike, and the same tokens of them are predicted, so
that top-1 can be compared. The counts are made anew, from text that has to be named: a network of columns
does not hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distributed import Client, Future

from giaann_dask.cluster import task_key
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.encoding.stream import EncodingStream, StreamOptions
from giaann_dask.increments.context_counts import count_contexts
from giaann_dask.increments.context_increments import stream_tokens
from giaann_dask.increments.contexts import TokenStream
from giaann_dask.inference.best.evaluation import Baseline, Scorer, ScoringOptions
from giaann_dask.inference.best.ngram import smoothing
from giaann_dask.inference.best.scores import BEST
from giaann_dask.inference.best.tables import PooledTables, build_tables
from giaann_dask.store.network_store import CommitReader
from giaann_dask.text.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class BaselineTexts:
    """The texts of a comparison.

    Attributes
    ----------
    training, inputs : sequence of str
        What the network was trained on, and what is predicted.
    training_sources, sources : SourceOptions
        How each is read.
    """

    training: Sequence[str]
    inputs: Sequence[str]
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


def _stream(client: Client, stream: EncodingStream, vocabulary: Vocabulary, inputs: Sequence[str]) -> Future:
    """Return the tokens of the sequences of a text that are divided into columns, on the cluster."""
    blocks = [block.encoded for block in stream.blocks(inputs)]
    # Features keep their numbers, so the names at the end serve all blocks.
    features = tuple(vocabulary.features)
    key = task_key("stream", [block.key for block in blocks], features)
    return client.submit(stream_tokens, blocks, features, key=key)
