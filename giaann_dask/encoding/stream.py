"""Tag and encode blocks in parallel and merge their dictionaries in order, as sequential reading would.

A bounded number of blocks is in flight. Their summaries are merged into the dictionaries in the order of the text,
parts in the ledger are skipped, and reading stops at a limit.

As long as a network contains exactly the beginning of an encoded corpus, its dictionaries equal those of the corpus as
of the same sequence. Then the identifiers of the corpus are reused (`CorpusReuse`), and only the arrays that training
uses are read.

Does not cover: using encoded blocks (`corpus_encoding`, `giaann_dask.training`, `giaann_dask.predict`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import directed, query_scheduler, result, task_key
from giaann_dask.cluster.submitting import TaskSubmitter
from giaann_dask.encoding.sources import (
    CorpusRange,
    GroupLimits,
    LedgerUpdate,
    SourceOptions,
    Unit,
    UnitGroup,
    WorkerReading,
    join_records,
    open_corpus,
    read_units,
    submit_lexicon,
    submit_tag,
    tag_contents,
)
from giaann_dask.errors import require_at_least
from giaann_dask.keywords import names_keywords
from giaann_dask.store.corpus import EncodedCorpus
from giaann_dask.text.blocks import CANDIDATE, STATUS_NAMES
from giaann_dask.text.input_files import ReadingStopped
from giaann_dask.text.ledger import Ledger, LedgerEntry
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.segmentation import EncodedBlock, encode_block
from giaann_dask.text.tokens import Part
from giaann_dask.text.vocabulary import BlockMapping, BlockSummary, Vocabulary, summarise

if TYPE_CHECKING:
    from distributed import Client, Future

_LOG = logging.getLogger(__name__)
# Blocks of text that training and encoding join: a tenth less processor time for eight novels.
JOINED = 4
# Blocks are joined once there were this many times those that are in flight: a small text is shared among all workers.
_TIMES_IN_FLIGHT = 2


@names_keywords
@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Limits of reading, and sizes of blocks.

    Parameters
    ----------
    max_sequences : int, optional
        Stop after this many sequences that pass the length filter, counted from the first one read
        (or from `first_sequence`), including those in the ledger.
    first_sequence : int
        Sequences at the beginning that are skipped without changing the dictionaries.
    block_characters : int
        Approximate text of one task; exceeded only by a single larger part. For a corpus, which is
        read faster, several times as much (`giaann_dask.encoding.sources`).
    block_sequences : int, optional
        Maximum sequences of a corpus that one task reads.
    joined : int
        Blocks of text that later blocks are joined from, for fewer tasks.
    words : bool
        Whether blocks must contain the words and origins of their tokens; training needs neither.

    Raises
    ------
    OptionError
        If a number is out of range.
    """

    max_sequences: int | None = None
    first_sequence: int = 0
    block_characters: int = 262_144
    block_sequences: int | None = None
    joined: int = 1
    words: bool = True

    def __post_init__(self) -> None:
        require_at_least(1, self, "max_sequences")
        require_at_least(0, self, "first_sequence")


@dataclass(frozen=True, eq=False)
class BlockStatistics:
    """Counts of an encoded block.

    Attributes
    ----------
    by_status : tuple of int
        Sequences by status, in the order of `STATUS_NAMES`.
    tokens : int
        Merged tokens of all sequences.
    trained_tokens : int
        Those of the sequences that are divided into columns.
    last_trained : int
        Index in the block of the last such sequence; -1 for none.
    """

    by_status: tuple[int, ...]
    tokens: int
    trained_tokens: int
    last_trained: int


@dataclass(frozen=True, eq=False, kw_only=True)
class MergedBlock:
    """Block that has been merged into the dictionaries.

    Attributes
    ----------
    mapping : BlockMapping
        Identifiers of its symbols; empty for a range whose corpus identifiers are reused.
    growth : tuple of (ndarray, ndarray)
        Concepts and features before each of its sequences, and after the last; int32. Kept instead of the
        summary, whose strings would take much memory until the block is committed.
    ledger : tuple of LedgerUpdate
        What to record in the ledger once the block is counted.
    """

    mapping: BlockMapping
    growth: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
    ledger: tuple[LedgerUpdate, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Concepts and features after the block."""
        return self.sizes_after(self.mapping.sequences - 1)

    def sizes_after(self, sequence: int) -> tuple[int, int]:
        """Return the sizes of the dictionaries after a sequence of the block."""
        concepts, features = self.growth
        return int(concepts[sequence + 1]), int(features[sequence + 1])


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamedBlock(MergedBlock):
    """Block that is being encoded on the cluster.

    Attributes
    ----------
    encoded, statistics : Future
        An `EncodedBlock` and its `BlockStatistics`.
    characters : int
        Size of its text.
    read : int
        Characters of the inputs up to its end, including skipped text.
    surfaces : tuple of str
        Words of its nouns, in the order of their numbers; empty without `StreamOptions.words`.
    """

    encoded: Future
    statistics: Future
    characters: int
    read: int = 0
    surfaces: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockHere(MergedBlock):
    """Block that was encoded in this process.

    Attributes
    ----------
    encoded : EncodedBlock
        The block.
    statistics : BlockStatistics
        Its counts.
    """

    encoded: EncodedBlock
    statistics: BlockStatistics


@dataclass(frozen=True, eq=False)
class _Submitted:
    """Group in flight: its block and summary, and if identifiers are reused its range of a corpus and statistics."""

    group: UnitGroup
    block: Future
    summary: Future
    reused: CorpusRange | None = None
    statistics: Future | None = None


class EncodingStream:
    """Iterate over the encoded blocks of inputs and extend a vocabulary with them.

    Parameters
    ----------
    client : Client
        Client of the cluster.
    vocabulary : Vocabulary
        Dictionaries to extend; changed while iterating.
    sources : SourceOptions
        Options of reading and tagging.
    options : StreamOptions
        Limits and block sizes.
    ledger : Ledger, optional
        Parts to skip; not changed here. With one, parts that occur again in the inputs are skipped, too.

    Attributes
    ----------
    numbers : iterator of int
        Number of the next document of text that is read.
    """

    def __init__(
        self,
        client: Client,
        vocabulary: Vocabulary,
        sources: SourceOptions,
        options: StreamOptions,
        ledger: Ledger | None = None,
    ) -> None:
        # A prompt needs the options of this module alone, and not the cluster.
        from giaann_dask.cluster.devices import declare_roles

        self._client = client
        self._submitter = TaskSubmitter(client)
        roles = declare_roles(client)
        self._submitter.anywhere = roles.anywhere()
        # Compute workers without a block yet. Dask alone would give blocks to the worker that has the lexicon, until it
        # has known for some time how long they take.
        self._idle = deque(roles.compute if len(roles.compute) > 1 and not self._submitter.anywhere else ())
        self._vocabulary = vocabulary
        self._sources = sources
        self._options = options
        self._limits = GroupLimits(characters=options.block_characters, sequences=options.block_sequences)
        self._ledger, self._passed = ledger, set[bytes]()
        more = options.words or sources.filter.drop_short or sources.filter.parts_of_speech
        encodes = more or options.first_sequence or vocabulary.delimiter_since is not None
        self._reuse = CorpusReuse(None if encodes else vocabulary, sources.specification.branches)
        self._lexicon = submit_lexicon(self._submitter, sources)
        self._reading = WorkerReading(client, sources.reading)
        self._counted = self._known_parts = self._in_flight = 0
        self.repeated = 0
        self._to_skip = options.first_sequence
        self.numbers = count()
        self._sentences: tuple[int, int] = (-1, 0)

    @property
    def counted(self) -> int:
        """Sequences counted towards the limit so far, including those in the ledger."""
        return self._counted

    def blocks(self, inputs: Sequence[Source]) -> Iterator[StreamedBlock]:
        """Yield the blocks of the inputs, in order.

        Parameters
        ----------
        inputs : sequence of str or MemoryInput
            Files, folders, globs, datasets or corpora.

        Raises
        ------
        GiaannError
            If an input cannot be used.
        """
        pending: deque[_Submitted] = deque()
        for group in self._groups(inputs):
            # The number of workers may change.
            self._in_flight = self._blocks_in_flight()
            pending.append(self._submit(group))
            # While sequences are skipped, the next group depends on how many remain to be skipped.
            while len(pending) >= self._in_flight or (pending and self._to_skip):
                yield from self._merge(pending.popleft())
            if self._at_limit():
                break
        while pending and not self._at_limit():
            yield from self._merge(pending.popleft())

    def _blocks_in_flight(self) -> int:
        return 2 + 2 * max(1, int(sum(query_scheduler(self._client, "ncores").values())))

    def _at_limit(self) -> bool:
        limit = self._options.max_sequences
        return limit is not None and self._counted >= limit

    def _groups(self, inputs: Sequence[Source]) -> Iterator[UnitGroup]:
        """Yield groups of the units that are not complete in the ledger."""
        group, read, groups, limits = UnitGroup(), 0, 0, self._limits
        for unit in self._units(inputs):
            read += unit.weight
            if self._is_repeated(unit):
                continue
            entry = self._entry_of(unit)
            self._counted += entry.sequences
            if entry.complete:
                self._known_parts += 1
                if self._at_limit():
                    break
                continue
            skip = entry.sequences
            if not group.accepts(unit, skip, limits):
                yield group
                group, groups = UnitGroup(), groups + 1
                if groups >= _TIMES_IN_FLIGHT * self._in_flight:
                    limits = replace(limits, joined=self._options.joined)
            group.append(unit, skip, read)
            if self._at_limit():
                break
        if self.repeated:
            _LOG.warning("texts left out that occur again in the inputs: %s (count_repeats counts them)", self.repeated)
        if self._known_parts:
            _LOG.info("skipped %s parts of text that are in the network already", f"{self._known_parts:,}")
        if group.units:
            yield group

    def _is_repeated(self, unit: Unit) -> bool:
        """Return whether a unit has been read before, which counts it once."""
        if self._ledger is None:
            return False
        before = len(self._passed)
        self._passed.add(unit.identity)
        found = len(self._passed) == before
        self.repeated += found
        return found

    def _entry_of(self, unit: Unit) -> LedgerEntry:
        return LedgerEntry(unit.identity, 0, False) if self._ledger is None else self._ledger.find(unit.identity)

    def _units(self, inputs: Sequence[Source]) -> Iterator[Unit]:
        """Yield the units of the inputs; if reading is stopped, only the complete ones.

        An incomplete unit would have another identity, so its text would be counted again with the complete one.
        """
        try:
            yield from read_units(inputs, self._sources, self.numbers)
        except ReadingStopped:
            _LOG.info("stopped waiting for more text")

    def _submit(self, group: UnitGroup) -> _Submitted:
        if self._to_skip:
            group.skips[0] = self._to_skip
        reused = self._reuse.match(group.units, group.skips)
        submitter = self._submitter
        with submitter.together():
            if reused is not None:
                read = submitter.submit(task_key("read", *astuple(reused)), read_encoded_range, reused)
                growth = submitter.submit(task_key("summarise", read.key), summarise_reused, read)
                return _Submitted(group, read, growth, reused, self._count(read))
            where = directed(self._idle.popleft() if self._idle else "")
            what = group.units, group.skips, self._sources, self._lexicon, self._reading
            tagged = submit_tag(submitter, *what, **where)
            summary = submitter.submit(task_key("summarise", tagged.key), summarise, tagged, **where)
            return _Submitted(group, tagged, summary)

    def _count(self, encoded: Future) -> Future:
        return self._submitter.submit(task_key("count_block", encoded.key), count_block, encoded)

    def _merge(self, submitted: _Submitted) -> Iterator[StreamedBlock]:
        """Merge a block into the dictionaries and submit its encoding."""
        if submitted.reused is not None:
            yield self._merge_reused(submitted, submitted.reused)
            return
        group, tagged = submitted.group, submitted.block
        summary: BlockSummary = result(submitted.summary)
        if self._to_skip:
            self._to_skip -= min(self._to_skip, summary.part_sequences[0])
            if self._to_skip and len(summary.part_sequences) > 1:
                # The first part has fewer sequences than are to be skipped: continue within the group.
                yield from self._merge(self._submit(group.without_first()))
                return
        earlier, remaining = self._sizes(), self._remaining(len(summary.status))
        mapping = self._vocabulary.extend(summary, remaining)
        mapping = replace(mapping, first_sentence=self._sentences_before(summary))
        self._counted += mapping.sequences
        specification = self._sources.specification
        key = task_key("encode", tagged.key, mapping, specification)
        with self._submitter.together():
            encoded = self._submitter.submit(key, encode_block, tagged, mapping, specification)
            statistics = self._count(encoded)
        yield StreamedBlock(
            encoded=encoded,
            statistics=statistics,
            mapping=mapping,
            growth=summary.growth(mapping, earlier),
            ledger=group.ledger_updates(summary.part_sequences, mapping.sequences, self._sources),
            characters=group.weight,
            read=group.read,
            surfaces=summary.surfaces if self._options.words else (),
        )

    def _merge_reused(self, submitted: _Submitted, reused: CorpusRange) -> StreamedBlock:
        """Extend the dictionaries by a range of a corpus with the same identifiers."""
        summary: ReusedSummary = result(submitted.summary)
        earlier, count = self._sizes(), min(self._remaining(len(summary)), len(summary))
        self._reuse.extend(self._vocabulary, summary, count)
        self._counted += count
        encoded, statistics = submitted.block, submitted.statistics
        if count < len(summary) or statistics is None:
            key = task_key("cut", encoded.key, count)
            encoded = self._submitter.submit(key, first_sequences, encoded, count)
            statistics = self._count(encoded)
        none = np.zeros(0, np.int32)
        ranges = [unit.content for unit in submitted.group.units if isinstance(unit.content, CorpusRange)]
        parts = tuple(each.stop - each.start for each in ranges)
        return StreamedBlock(
            encoded=encoded,
            statistics=statistics,
            mapping=BlockMapping(none, none, none.astype(np.bool_), none.astype(np.int64), reused.start, count),
            growth=summary.growth(earlier),
            ledger=submitted.group.ledger_updates(parts, count, self._sources),
            characters=submitted.group.weight,
            read=submitted.group.read,
        )

    def _sizes(self) -> tuple[int, int]:
        return len(self._vocabulary.concepts), len(self._vocabulary.features)

    def _remaining(self, sequences: int) -> int:
        """Return the number of sequences up to the limit, or that of the block if there is no limit."""
        limit = self._options.max_sequences
        return sequences if limit is None else limit - self._counted

    def _sentences_before(self, summary: BlockSummary) -> int:
        """Return the number of sentences of the block's first document in earlier blocks."""
        if not summary.document_sentences:
            return 0
        first, last = summary.document_sentences[0], summary.document_sentences[-1]
        before = self._sentences[1] if self._sentences[0] == first[0] else 0
        self._sentences = (last[0], last[1] + (before if first[0] == last[0] else 0))
        return before


def encode_here(group: UnitGroup, vocabulary: Vocabulary, sources: SourceOptions) -> BlockHere:
    """Encode parts of text in this process, without a cluster, and extend a vocabulary with them.

    Parameters
    ----------
    group : UnitGroup
        Parts, of which nothing was counted before.
    vocabulary : Vocabulary
        Dictionaries to extend; changed.
    sources : SourceOptions
        Options of reading and tagging.
    """
    parts, skips = join_records([unit.content for unit in group.units if isinstance(unit.content, Part)], group.skips)
    lexicon = sources.tokenizer or sources.ever_pos
    tagged = tag_contents(parts, skips, sources.tagger, lexicon, sources.filter)
    summary, earlier = summarise(tagged), (len(vocabulary.concepts), len(vocabulary.features))
    mapping = vocabulary.extend(summary)
    encoded = encode_block(tagged, mapping, sources.specification)
    return BlockHere(
        mapping=mapping,
        growth=summary.growth(mapping, earlier),
        ledger=group.ledger_updates(summary.part_sequences, mapping.sequences, sources),
        encoded=encoded,
        statistics=count_block(encoded),
    )


def count_block(block: EncodedBlock) -> BlockStatistics:
    """Count the sequences and tokens of an encoded block (a task)."""
    trained = block.status == CANDIDATE
    where = np.flatnonzero(trained)
    return BlockStatistics(
        tuple(np.bincount(block.status, minlength=len(STATUS_NAMES)).tolist()),
        int(block.offsets[-1]),
        int(np.diff(block.offsets)[trained].sum()),
        int(where[-1]) if len(where) else -1,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ReusedSummary:
    """Sizes of a corpus's dictionaries along a range of its sequences.

    Attributes
    ----------
    concepts, features : ndarray
        Minimum size of the dictionary for the sequences of the range before each sequence
        boundary; int64, shape ``(sequences + 1,)``.
    """

    concepts: npt.NDArray[np.int64]
    features: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.concepts) - 1

    def growth(self, earlier: tuple[int, int]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the sizes of the dictionaries at the sequence boundaries, given the sizes before the range; int32."""
        concepts, features = np.maximum(self.concepts, earlier[0]), np.maximum(self.features, earlier[1])
        return concepts.astype(np.int32), features.astype(np.int32)


class CorpusReuse:
    """Check group by group whether a network would assign the same identifiers as a corpus.

    It does so as long as the network contains the beginning of that corpus and nothing else.

    Parameters
    ----------
    vocabulary : Vocabulary or None
        The network's dictionaries before the first group; None disables reuse.
    branches : int
        Dendritic branches of the network's neurons; a corpus stores branch indices, too.
    """

    def __init__(self, vocabulary: Vocabulary | None, branches: int) -> None:
        self._next = None if vocabulary is None else vocabulary.sequences
        self._branches = branches
        self._path = ""
        # Dictionaries of the network before the first range, of the corpus from then on.
        self._vocabulary = vocabulary or Vocabulary()
        self._since = np.zeros(0, np.int64)

    def match(self, units: Sequence[Unit], skips: Sequence[int]) -> CorpusRange | None:
        """Return the range of the corpus that a group of units covers, or None if the group must be encoded.

        Must be called once for every group, in order, from the first one that is not in the network.
        """
        first, last = units[0].content, units[-1].content
        expected, self._next = self._next, None
        if not isinstance(first, CorpusRange) or not isinstance(last, CorpusRange):
            return None
        start = first.start + skips[0]
        if start != expected or not self._continues(first.path):
            return None
        self._next = last.stop
        return replace(first, start=start, stop=last.stop)

    def _continues(self, path: str) -> bool:
        """Return whether ranges of a corpus can be reused; open the corpus at its first range."""
        if self._path:
            return path == self._path
        corpus = EncodedCorpus(path)
        if corpus.attributes.get("branches") != self._branches:
            return False
        whole = corpus.vocabulary()
        # The network contains all preceding sequences of the corpus, so it lacks none of their words.
        if not self._vocabulary.is_prefix_of(whole):
            return False
        self._path, self._vocabulary = path, whole
        self._since = np.array(self._vocabulary.probable_since, np.int64)
        return True

    def extend(self, vocabulary: Vocabulary, summary: ReusedSummary, sequences: int) -> None:
        """Extend dictionaries by the first sequences of a range, as encoding these would."""
        sizes = int(summary.concepts[sequences]), int(summary.features[sequences])
        first = vocabulary.sequences
        flagged = np.flatnonzero((self._since >= first) & (self._since < first + sequences))
        vocabulary.extend_to(self._vocabulary, sizes, flagged.tolist(), sequences)


def read_encoded_range(place: CorpusRange) -> EncodedBlock:
    """Read a range of a corpus with the corpus's identifiers, without words and origins (a task)."""
    return open_corpus(place).numbers(place.start, place.stop)


def summarise_reused(block: EncodedBlock) -> ReusedSummary:
    """Return the sizes of the corpus's dictionaries along a range (a task)."""
    # The columns contain all concepts, because each column is the concept of a noun of its sequence.
    return ReusedSummary(_sizes(block.column, block.offsets), _sizes(block.feature, block.offsets))


def first_sequences(block: EncodedBlock, sequences: int) -> EncodedBlock:
    """Return the first sequences of a block of `read_encoded_range` (a task)."""
    tokens = int(block.offsets[sequences])
    token = {name: getattr(block, name)[:tokens] for name in ("column", "feature", "branch", "occurrence")}
    return replace(block, offsets=block.offsets[: sequences + 1], status=block.status[:sequences], **token)


def _sizes(numbers: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the largest identifier before each sequence boundary, plus one."""
    return np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(numbers).astype(np.int64) + 1])[offsets]
