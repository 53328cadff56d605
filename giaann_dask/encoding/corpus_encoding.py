"""Encode inputs into a new corpus: the workers that have encoded the blocks write them, chunk by chunk.

The driver knows how long each block is, so it knows which blocks make up a chunk of an array.

Does not cover: the format (`giaann_dask.store.corpus`) and the commit (`giaann_dask.store.corpus_writing`).
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from distributed import Client, Future

from giaann_dask.cluster import query_scheduler, result, results, task_key
from giaann_dask.cluster.devices import declare_roles
from giaann_dask.cluster.sharing import SharedPlace, naming_worker
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.encoding.stream import EncodingStream, StreamedBlock, StreamOptions
from giaann_dask.errors import EmptyInputError
from giaann_dask.events import BlockEncoded, Observer, ignore
from giaann_dask.object_urls import absolute_place
from giaann_dask.storage import CHUNK
from giaann_dask.store.corpus import OFFSET, SEQUENCE_ARRAYS, SURFACE, TOKEN_ARRAYS, EncodedCorpus
from giaann_dask.store.corpus_writing import CorpusContent, CorpusWriter, WrittenChunks, new_corpus, write_chunks
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.segmentation import UNASSIGNED, EncodedBlock
from giaann_dask.text.vocabulary import Vocabulary

# Blocks of which the encoding may be unfinished when the next ones are read.
_ENCODING = 2


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
        Place of the corpus, which all workers can write to; it is there when it is complete.
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
    with new_corpus(path) as writer:
        place = SharedPlace(client, writer.held)
        place.require()
        chunks = _Chunks(client, place, writer)
        stream = EncodingStream(client, vocabulary, sources, options, ledger)
        pending: deque[StreamedBlock] = deque()
        for block in stream.blocks(inputs):
            pending.append(block)
            for update in block.ledger:
                ledger.record(update.entry)
            if len(pending) > _ENCODING:
                _take(chunks, pending.popleft(), observer)
        while pending:
            _take(chunks, pending.popleft(), observer)
        if not vocabulary.concepts:
            raise EmptyInputError(
                f"none of the {vocabulary.sequences} sequences has a noun",
                "sentences with nouns",
                "check the text and tagger",
                names=("tagger",),
            )
        written = chunks.finish()
        content = CorpusContent(
            tokens=chunks.tokens.length,
            sequences=chunks.sequences.length,
            vocabulary=vocabulary,
            surfaces=list(chunks.surfaces),
            ledger=ledger.entries,
            attributes=_attributes(sources),
            ever_pos=sources.ever_pos,
            tokenizer=tokenizer,
        )
        writer.finish(written, content)
    return EncodedCorpus(path)


def _attributes(sources: SourceOptions) -> dict[str, Any]:
    """Return the options of a corpus that decide which networks can be trained on it."""
    return {
        "seed_tokens": sources.filter.seed_tokens,
        "maximum_tokens": sources.filter.maximum_tokens,
        "branches": sources.specification.branches,
        "tagger": sources.tagger,
        "ever_pos": sources.ever_pos.identity(),
        "parts_of_speech": sources.filter.parts_of_speech,
        "rules": sources.text_rules(),
    }


def _take(chunks: _Chunks, block: StreamedBlock, observer: Observer) -> None:
    chunks.add(block)
    observer(BlockEncoded(block.mapping.sequences, block.characters, block.read))


class BlockPiece(NamedTuple):
    """Part of a block that belongs to a range of an array.

    Attributes
    ----------
    block : Future
        The block.
    low, high : int
        Range of the block's tokens or sequences.
    numbers : ndarray or None
        Identifier in the corpus of each word of the block's nouns; int32.
    """

    block: Future
    low: int
    high: int
    numbers: npt.NDArray[np.int32] | None = None


class _ChunkRange(NamedTuple):
    """Range of an array that begins with a chunk, and the pieces of blocks that it consists of."""

    start: int
    pieces: list[BlockPiece]


class ChunkedAxis:
    """Tokens or sequences of consecutive blocks, which are cut at the ends of chunks.

    Attributes
    ----------
    length : int
        Tokens or sequences of all blocks.
    """

    def __init__(self) -> None:
        self.length = 0
        self._start = 0
        self._pieces: list[BlockPiece] = []

    def add(self, block: BlockPiece) -> _ChunkRange | None:
        """Add a whole block; return the chunks that are complete with it, if there are any."""
        before = self.length
        self.length += block.high
        end = self.length // CHUNK * CHUNK
        if end <= self._start:
            self._pieces.append(block)
            return None
        head = end - before
        cut = _ChunkRange(self._start, [*self._pieces, block._replace(high=head)])
        self._start, self._pieces = end, [block._replace(low=head)] if end < self.length else []
        return cut

    def rest(self) -> _ChunkRange:
        """Return the range after the last complete chunk."""
        return _ChunkRange(self._start, self._pieces)


class _Chunks:
    """Chunks of a corpus that workers write while later blocks are encoded.

    Parameters
    ----------
    client : Client
        Client of the cluster.
    place : SharedPlace
        The corpus, as the workers see it.
    writer : CorpusWriter
        Makes the commit.

    Attributes
    ----------
    tokens, sequences : ChunkedAxis
        What has been added.
    surfaces : dict of str to int
        Words of nouns and their identifiers.
    """

    def __init__(self, client: Client, place: SharedPlace, writer: CorpusWriter) -> None:
        self._client, self._place = client, place
        self._fork = writer.fork()
        # Unique: what a session has written that was not committed may have been removed since.
        self._name = uuid.uuid4().hex
        self._where = declare_roles(client).anywhere()
        self.tokens, self.sequences = ChunkedAxis(), ChunkedAxis()
        self.surfaces: dict[str, int] = {}
        self._writing: deque[Future] = deque()
        self._written: list[WrittenChunks] = []

    def add(self, block: StreamedBlock) -> None:
        """Add the next block, and submit the writing of chunks that are complete with it."""
        numbers = np.array([self.surfaces.setdefault(word, len(self.surfaces)) for word in block.surfaces], np.int32)
        before, statistics = self.tokens.length, result(block.statistics)
        key = task_key("origins", block.encoded.key, before)
        origins = self._client.submit(sequence_arrays, block.encoded, before, key=key, **self._where)
        cut = self.tokens.add(BlockPiece(block.encoded, 0, statistics.tokens, numbers))
        if cut is not None:
            self._submit_tokens(cut)
        cut = self.sequences.add(BlockPiece(origins, 0, block.mapping.sequences))
        if cut is not None:
            self._submit("sequences", write_sequences, cut, None)

    def finish(self) -> list[WrittenChunks]:
        """Wait for all chunks, including the last ones, and return what was written."""
        rest = self.tokens.rest()
        if rest.pieces:
            self._submit_tokens(rest)
        # Even without pieces there is a last offset.
        self._submit("sequences", write_sequences, self.sequences.rest(), self.tokens.length)
        self._written += results(list(self._writing))
        return self._written

    def _submit_tokens(self, cut: _ChunkRange) -> None:
        self._submit("tokens", write_tokens, cut, [piece.numbers for piece in cut.pieces])

    def _submit(self, name: str, function: Callable[..., WrittenChunks], cut: _ChunkRange, argument: Any) -> None:
        present = query_scheduler(self._client, "ncores")
        self._place.retire_blind(set(present))
        while len(self._writing) > len(present):
            self._written.append(result(self._writing.popleft()))
        blocks, ranges = [piece.block for piece in cut.pieces], [(piece.low, piece.high) for piece in cut.pieces]
        key = task_key("write", self._name, name, cut.start)
        task = (self._fork, cut.start, blocks, ranges, argument)
        self._writing.append(self._client.submit(function, *task, key=key, **self._where))


def sequence_arrays(block: EncodedBlock, tokens_before: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays over the sequences of a block, after so many tokens of the corpus (a task)."""
    arrays = {name: getattr(block, name) for name in SEQUENCE_ARRAYS}
    return {**arrays, OFFSET: block.offsets[:-1] + tokens_before}


def write_tokens(
    fork: bytes,
    start: int,
    blocks: Sequence[EncodedBlock],
    ranges: Sequence[tuple[int, int]],
    numbers: Sequence[npt.NDArray[np.int32]],
) -> WrittenChunks:
    """Write chunks of the arrays over tokens (a task).

    Parameters
    ----------
    fork, start
        See `giaann_dask.store.corpus_writing.write_chunks`.
    blocks : sequence of EncodedBlock
        Consecutive blocks that have the tokens.
    ranges : sequence of (int, int)
        Tokens of each block that belong to the chunks.
    numbers : sequence of ndarray
        Identifier in the corpus of each word of a block's nouns; int32.
    """
    whole = list(zip(blocks, ranges, numbers, strict=True))
    arrays = {
        name: np.concatenate([getattr(block, name)[low:high] for block, (low, high), _ in whole])
        for name in TOKEN_ARRAYS
        if name != SURFACE
    }
    surfaces = [_renumbered(block.surface[low:high], known) for block, (low, high), known in whole]
    with naming_worker():
        return write_chunks(fork, start, {**arrays, SURFACE: np.concatenate(surfaces)})


def write_sequences(
    fork: bytes,
    start: int,
    blocks: Sequence[Mapping[str, npt.NDArray[Any]]],
    ranges: Sequence[tuple[int, int]],
    last: int | None,
) -> WrittenChunks:
    """Write chunks of the arrays over sequences (a task).

    Parameters
    ----------
    fork, start, ranges
        See `write_tokens`.
    blocks : sequence of dict of str to ndarray
        Arrays from `sequence_arrays`.
    last : int or None
        The number of tokens of the corpus, which follows the last offset.
    """
    names = (*SEQUENCE_ARRAYS, OFFSET) if blocks else ()
    pieces = {
        name: [block[name][low:high] for block, (low, high) in zip(blocks, ranges, strict=True)] for name in names
    }
    if last is not None:
        pieces.setdefault(OFFSET, []).append(np.array([last], np.int64))
    with naming_worker():
        return write_chunks(fork, start, {name: np.concatenate(parts) for name, parts in pieces.items()})


def _renumbered(surface: npt.NDArray[np.int32], numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the words of nouns as identifiers of the corpus; -1 for other tokens."""
    found = np.full(len(surface), UNASSIGNED, np.int32)
    noun = surface != UNASSIGNED
    found[noun] = numbers[surface[noun]]
    return found
