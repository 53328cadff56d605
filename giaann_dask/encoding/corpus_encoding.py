"""Encode inputs into a new corpus on disk: gather encoded blocks in order and write them with one writer.

Does not cover: the format (`giaann_dask.text.corpus`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from distributed import Client

from giaann_dask.cluster import result
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.encoding.stream import EncodingStream, StreamedBlock, StreamOptions
from giaann_dask.errors import EmptyInputError, parameter
from giaann_dask.events import BlockEncoded, Observer, ignore
from giaann_dask.storage import absolute_place
from giaann_dask.text.corpus import CorpusWriter, EncodedCorpus
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.vocabulary import Vocabulary


def encode_corpus(
    client: Client,
    inputs: Sequence[Source],
    path: str | Path,
    sources: SourceOptions,
    options: StreamOptions,
    observer: Observer = ignore,
) -> EncodedCorpus:
    """Encode inputs into a new corpus.

    Parameters
    ----------
    client : Client
        Client of the cluster.
    inputs : sequence of str or MemoryInput
        Files, folders, globs or datasets.
    path : str or Path
        Path of the corpus; it is created there when it is complete.
    sources : SourceOptions
        Options of reading and tagging.
    options : StreamOptions
        Limits and block sizes.
    observer : callable, optional
        Called with an event for every block.

    Returns
    -------
    EncodedCorpus

    Raises
    ------
    GiaannError
        If an input or the path cannot be used; then the incomplete corpus is removed.
    """
    tokenizer = sources.tokenizer
    vocabulary = (
        Vocabulary() if tokenizer is None else Vocabulary.of_subwords(tokenizer.names, sources.filter.column_names)
    )
    ledger = Ledger()
    path = absolute_place(path)
    writer = CorpusWriter(path)
    try:
        stream = EncodingStream(client, vocabulary, sources, options)
        pending: deque[StreamedBlock] = deque()
        for block in stream.blocks(inputs):
            pending.append(block)
            for update in block.ledger:
                ledger.record(update.position, update.entry)
            if len(pending) > 2:
                _write(writer, pending.popleft(), observer)
        while pending:
            _write(writer, pending.popleft(), observer)
        if not vocabulary.concepts:
            raise EmptyInputError(
                f"none of the {vocabulary.sequences} sequences has a noun",
                "sentences with nouns",
                f"look at the text and at {parameter('tagger')}",
            )
        attributes = {
            "seed_tokens": sources.filter.seed_tokens,
            "maximum_tokens": sources.filter.maximum_tokens,
            "branches": options.branches,
            "tagger": sources.tagger,
            "ever_pos": sources.ever_pos.identity(),
            # Only present if used, so that other corpora stay byte-identical to those of earlier versions.
            **({"parts_of_speech": True} if sources.filter.parts_of_speech else {}),
            **({"rules": dict(sources.rules)} if sources.rules else {}),
        }
        writer.finish(vocabulary, ledger.entries, attributes, sources.ever_pos, tokenizer)
    except BaseException:
        writer.discard()
        raise
    return EncodedCorpus(path)


def _write(writer: CorpusWriter, block: StreamedBlock, observer: Observer) -> None:
    writer.append(result(block.encoded))
    observer(BlockEncoded(block.mapping.sequences, block.characters, block.read))
