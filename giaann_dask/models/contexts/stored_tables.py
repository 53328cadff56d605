"""Make the tables of the contexts of some tokens from the rows of a commit, read when they are requested.

Smoothing counts a word after a context once for each longer context that it followed, and no row of counts tells that:
the longer contexts of a row are spread over all regions. But what a word was counted after a context beyond that are
its *repeats*: ``count - 1`` for each longer context. These add up over regions, and most are 0. So the counts of each
region give repeats of shorter contexts (`region_repeats`), each region adds up those of its own contexts
(`join_repeats`), and a commit stores them. Both take some rows at a time, and keep what they find packed. A context
that reaches the beginning of its sentence has no longer ones, so no repeats, and keeps its counts.

A row of counts and a row of repeats give what `giaann_dask.models.contexts.tables` gives for a context from all rows at
once, bit by bit. So the first answer of a network costs its words, the source keys of its runs, and the chunks that its
contexts lie in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import EmptyInputError, StoreDamagedError
from giaann_dask.keys import NEURON_MASK, SEGMENT_SHIFT, Integers, unpack_target
from giaann_dask.lazy import jit
from giaann_dask.models.contexts.context_rows import Rows
from giaann_dask.models.contexts.kernel import Evidence
from giaann_dask.models.contexts.kinds import CHAIN, SMALL_COUNTS, context_sources
from giaann_dask.models.contexts.tables import WordTables, discounts_of, evidence_of_tokens, names_by_key, rank_words
from giaann_dask.models.words.counting import EXTENDS
from giaann_dask.models.words.stream import EVERYWHERE, NONE, TokenStream, find_ascending
from giaann_dask.rows.source import RowSource
from giaann_dask.rows.stored import StoredRows
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packed_rows import RowReader, row_bounds
from giaann_dask.runs.packing import PackedRun, pack, pack_blocks
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run, divide_rows, narrow_strength, select_rows
from giaann_dask.spec import BRANCH_BITS
from giaann_dask.storage import reading
from giaann_dask.store.commits import CommitReader

# Counts that are decoded, and repeats that wait to be packed, at a time, about.
TOGETHER = 1 << 18
# Contexts that are read at a time: reading waits for the store, and decoding releases the GIL.
_THREADS = 8


class RegionRepeats(NamedTuple):
    """Repeats and small counts of one region, or of regions that have rows in common.

    Attributes
    ----------
    repeats : dict of int to tuple of PackedRun
        Repeats that its contexts cause, by the region of the shorter context; targets as in the counts.
    often : tuple of PackedRun
        Its own counts of two and more that longer contexts may divide: those of the chain but for the longest.
    small : ndarray
        How many counts of 1 to `SMALL_COUNTS` each kind of the chain has that is not in `often`; int64, shape
        ``(CHAIN, SMALL_COUNTS)``.
    """

    repeats: dict[int, tuple[PackedRun, ...]]
    often: tuple[PackedRun, ...]
    small: Integers


def region_repeats(regions: Sequence[Callable[[], Iterable[Run]]], placement: Placement) -> RegionRepeats:
    """Return the repeats that the counts of a region cause, or those of regions that have rows in common.

    Parameters
    ----------
    regions : sequence of callable
        Each returns the counts of a region in blocks of rows; called twice where there are several.
    placement : Placement
        Assigns contexts to regions.
    """
    extended = _first_extended(regions, placement) if len(regions) > 1 else {}
    small = np.zeros((CHAIN, SMALL_COUNTS), np.int64)
    found = _PackedParts()
    often: list[PackedRun] = []
    collect: Any = _collect
    for blocks in regions:
        own = _PackedParts()
        for block in blocks():
            # Where other regions have parts of a row, one of these may say which context it extends.
            known = np.full(len(block.source), NONE, np.int64)
            if extended:
                rows = np.flatnonzero(np.isin(block.source, list(extended)))
                known[rows] = [extended[source] for source in block.source[rows].tolist()]
            strength = block.strength.astype(np.int64)
            more, repeated, kept = collect(block.source, block.pointer, block.target, strength, known)
            small += more
            repeats = _sum_pairs(*repeated)
            found.add(divide_rows(repeats, placement.groups_of(repeats.source)))
            own.add({0: _to_run(*kept)})
        often += own.packed().get(0, ())
    return RegionRepeats(found.packed(), tuple(often), small)


def _first_extended(regions: Sequence[Callable[[], Iterable[Run]]], placement: Placement) -> dict[int, int]:
    """Return the first shorter context that each context extends whose row is divided among regions."""
    divided = np.array(sorted(placement.divided()), np.int64)
    found: dict[int, int] = {}
    for blocks in regions:
        for block in blocks():
            row = select_rows(block, np.flatnonzero(np.isin(block.source, divided)))
            segment, shorter, _ = unpack_target(row.target)
            source = np.repeat(row.source, np.diff(row.pointer))
            extends = segment == EXTENDS
            for key, context in zip(source[extends].tolist(), shorter[extends].tolist(), strict=True):
                found[key] = min(found.get(key, context), context)
    return found


class _PackedParts:
    """Runs that are packed as soon as they have enough connections, by a number."""

    def __init__(self) -> None:
        self._runs: defaultdict[int, list[Run]] = defaultdict(list)
        self._packed: defaultdict[int, list[PackedRun]] = defaultdict(list)
        self._held = 0

    def add(self, runs: Mapping[int, Run]) -> None:
        """Add runs by number."""
        for number, run in runs.items():
            if len(run):
                self._runs[number].append(run)
                self._held += len(run)
        if self._held >= TOGETHER:
            self._pack()

    def packed(self) -> dict[int, tuple[PackedRun, ...]]:
        """Return the packed runs of each number; those of one number add up."""
        self._pack()
        return {number: tuple(runs) for number, runs in self._packed.items()}

    def _pack(self) -> None:
        for number, runs in self._runs.items():
            self._packed[number].append(pack(merge_runs(runs)))
        self._runs.clear()
        self._held = 0


def join_repeats(region: int, parts: Sequence[RegionRepeats], own: RegionRepeats) -> tuple[PackedRun, Integers] | None:
    """Add up the repeats of the contexts of a region.

    Parameters
    ----------
    region : int
        Which.
    parts : sequence of RegionRepeats
        Of all regions.
    own : RegionRepeats
        Of this region.

    Returns
    -------
    repeats : PackedRun
        Repeats of its contexts; strengths are positive.
    small : ndarray
        How many words have 1 to `SMALL_COUNTS` continuations, by kind of the chain, as `RegionRepeats.small`.

    None where a word has more repeats than counts, as two contexts have one key by chance, or counts were forged.
    """
    repeats = [RowReader(run.read) for part in parts for run in part.repeats.get(region, ())]
    often = [RowReader(run.read) for run in own.often]
    small = own.small.copy()
    joined = pack_blocks(_joined_blocks(repeats, often, small))
    return None if int(small.min()) < 0 else (joined, small)


def _joined_blocks(repeats: Sequence[RowReader], often: Sequence[RowReader], small: Integers) -> Iterator[Run]:
    """Yield the sums of repeats in blocks of rows, and add to small counts; these become negative for None."""
    yield Run.empty()
    for low, high in row_bounds([*repeats, *often], TOGETHER):
        counts, more = (_merged(readers, low, high) for readers in (often, repeats))
        counts = replace(counts, strength=counts.strength.astype(np.int64))
        gone = replace(more, strength=-more.strength.astype(np.int64))
        left = merge_runs([counts, gone]) if len(gone) else counts
        kind, found = left.target >> SEGMENT_SHIFT, left.strength
        if int(found[kind > 0].min(initial=1)) < 1:
            small[:] = -1
            return
        for length in range(CHAIN):
            of_kind = found[(kind == length + 1) & (found <= SMALL_COUNTS)].astype(np.int64)
            small[length] += np.bincount(np.maximum(of_kind, 0), minlength=SMALL_COUNTS + 1)[1:]
        yield more


def _merged(readers: Sequence[RowReader], low: int, high: int) -> Run:
    """Return the sums of some rows of runs, of which some connections are decoded at a time besides the sums."""
    parts, decoded = [Run.empty()], 0
    for reader in readers:
        parts.append(reader.between(low, high))
        decoded += len(parts[-1])
        if decoded >= TOGETHER:
            parts, decoded = [merge_runs(parts)], 0
    return merge_runs(parts)


class ContinuationTables:
    """Rules by which a commit stores the repeats of its contexts; see `DerivedTables`."""

    def collect(self, regions: Sequence[Callable[[], Iterable[Run]]], placement: Placement) -> RegionRepeats:
        """See `region_repeats`."""
        return region_repeats(regions, placement)

    def join(self, region: int, parts: Sequence[Any], own: Any) -> tuple[PackedRun, Integers] | None:
        """See `join_repeats`."""
        return join_repeats(region, parts, own)


@jit
def _collect(source, pointer, target, strength, known):  # type: ignore[no-untyped-def]
    """Return small counts, the repeats of shorter contexts, and the row's own counts that may be divided."""
    small = np.zeros((CHAIN, SMALL_COUNTS), np.int64)
    repeated = own = 0
    for entry in range(len(target)):
        kind = target[entry] >> SEGMENT_SHIFT
        if 1 <= kind <= CHAIN and strength[entry] > 1:
            repeated += 1
            own += kind < CHAIN
    shorter, words, more = (np.empty(repeated, np.int64), np.empty(repeated, np.int64), np.empty(repeated, np.int64))
    owner, targets, often = np.empty(own, np.int64), np.empty(own, np.int64), np.empty(own, np.int64)
    repeated = own = 0
    for row in range(len(source)):
        extended = np.int64(known[row])
        for entry in range(pointer[row + 1] - 1, pointer[row] - 1, -1):
            if known[row] >= 0 or target[entry] >> SEGMENT_SHIFT != EXTENDS:
                break
            # The first of several, as where rows are counted at once.
            extended = (target[entry] >> BRANCH_BITS) & NEURON_MASK
        for entry in range(pointer[row], pointer[row + 1]):
            kind, count = target[entry] >> SEGMENT_SHIFT, strength[entry]
            if not 1 <= kind <= CHAIN:
                continue
            if count == 1 or (kind == CHAIN and count <= SMALL_COUNTS):
                small[kind - 1, count - 1] += 1
            if count == 1:
                continue
            if kind == 1 or extended >= 0:
                shorter[repeated] = EVERYWHERE if kind == 1 else extended
                words[repeated] = target[entry] - (np.int64(1) << SEGMENT_SHIFT)
                more[repeated] = count - 1
                repeated += 1
            if kind < CHAIN:
                owner[own], targets[own], often[own] = source[row], target[entry], count
                own += 1
    return small, (shorter[:repeated], words[:repeated], more[:repeated]), (owner, targets, often)


def _sum_pairs(source: Integers, target: Integers, count: Integers) -> Run:
    """Return the sums of counts of pairs in any order."""
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    begin = np.flatnonzero(_differs(source) | _differs(target))
    return _to_run(source[begin], target[begin], np.add.reduceat(count[order], begin) if len(begin) else count)


def _to_run(source: Integers, target: Integers, count: Integers) -> Run:
    """Return the counts of distinct pairs, which ascend."""
    rows = np.append(np.flatnonzero(_differs(source)), len(source))
    return Run(source[rows[:-1]], rows, target, narrow_strength(count))


def _differs(values: Integers) -> npt.NDArray[np.bool_]:
    """Return which values differ from the one before; the first one does."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


class _StoredContext(NamedTuple):
    """Targets of a context, ascending, with their counts, and after how many longer contexts each was counted."""

    target: Integers
    counts: Integers
    continuations: Integers


class StoredTables:
    """Tables of a commit of profile ``contexts`` that has stored repeats, row by row.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    kinds : sequence of int
        Places in `CONTEXTS` of the kinds of contexts that are read besides the chain.
    counts : RowSource, optional
        Its rows; read from the store by default.

    Attributes
    ----------
    words : WordTables
        The words.

    Raises
    ------
    EmptyInputError
        If nothing was counted.
    StoreDamagedError
        If what is needed cannot be read, here and in `of`.
    """

    def __init__(self, reader: CommitReader, kinds: Sequence[int], counts: RowSource | None = None) -> None:
        stored = reader.repeats()
        assert stored is not None, "the commit has no stored repeats"
        self._reader, self._placement = reader, reader.placement()
        self._kinds = {*range(1, CHAIN + 1), *kinds}
        # Contexts lie anywhere: some tokens would have all regions decoded.
        self._counts = StoredRows(reader, whole=False) if counts is None else counts
        self._repeats: dict[int, RowReader] = {}
        # Of each region; contexts are read in several threads.
        self._locks: defaultdict[int, Lock] = defaultdict(Lock)
        self._discounts = [discounts_of(small) for small in stored.small]
        target, count = self._row(EVERYWHERE, 0)
        if not len(target):
            raise EmptyInputError("no word was counted", "counts of some text", "train it on a text first")
        _, keys, _ = unpack_target(target)
        ranked = rank_words(keys, count, names_by_key(reader.saved_vocabulary().features[1:]))
        preceding = np.empty_like(count)
        preceding[ranked.order] = self._continuations(EVERYWHERE, target, count)
        self.words: WordTables = ranked.tables(preceding)

    def of_tokens(self, stream: TokenStream, begin: int, end: int) -> tuple[Evidence, Integers]:
        """See `giaann_dask.models.contexts.tables.RowTables.of_tokens`."""
        contexts = self._read(stream, begin, end)

        def rows_of(kind: int, wanted: Integers) -> tuple[Rows, Integers, Integers]:
            rows, longer = self._rows(contexts.get(kind, {}))
            return rows, longer, find_ascending(rows.keys, wanted)

        rules = self.words.share, self._discounts, np.zeros((0, 0), np.float32)
        return evidence_of_tokens(rows_of, self._kinds, (stream, begin, end), *rules)

    @property
    def kept_bytes(self) -> int:
        """Bytes of decoded frames of repeats."""
        return sum(rows.kept_bytes for rows in list(self._repeats.values()))

    def release_beyond(self, nbytes: int) -> None:
        """Let decoded frames of rows go where they take more bytes; what is needed of them again is read again."""
        if isinstance(self._counts, StoredRows):
            self._counts.release_beyond(nbytes)
        if self.kept_bytes > nbytes:
            for region, rows in list(self._repeats.items()):
                with self._locks[region]:
                    rows.release()

    def _read(self, stream: TokenStream, begin: int, end: int) -> dict[int, dict[int, _StoredContext]]:
        """Return the contexts before the tokens of a span of a stream, by kind and by key in order."""
        contexts = []
        for kind in sorted(self._kinds):
            sources = context_sources(stream, kind, begin, end)
            contexts += [(kind, key) for key in sorted({*sources[sources != NONE].tolist()})]
        found: dict[int, dict[int, _StoredContext]] = {kind: {} for kind in self._kinds}
        self._counts.prefetch(dict.fromkeys(key for _, key in contexts))
        with ThreadPoolExecutor(_THREADS) as pool:
            for (kind, key), context in zip(contexts, pool.map(self._context, contexts), strict=True):
                if len(context.target):
                    found[kind][key] = context
        return found

    def _context(self, context: tuple[int, int]) -> _StoredContext:
        kind, key = context
        target, count = self._row(key, kind)
        continued = bool(len(target)) and kind < CHAIN
        return _StoredContext(target, count, self._continuations(key, target, count) if continued else count)

    def _rows(self, contexts: Mapping[int, _StoredContext]) -> tuple[Rows, Integers]:
        """Return the rows of some contexts of a kind by key, and the continuations of their entries."""
        none = np.zeros(0, np.int64)
        keys, lengths = [], []
        words, counts, followed = [none], [none], [none]
        for key, (target, count, continuations) in contexts.items():
            number = self.words.word_numbers(unpack_target(target)[1])
            if (number == NONE).any():
                raise StoreDamagedError(f"network {self._reader.path} has counts of words that it does not name")
            order = np.argsort(number)
            keys.append(key)
            lengths.append(len(target))
            for column, values in zip((words, counts, followed), (number, count, continuations), strict=True):
                column.append(values[order])
        pointer = np.append(0, np.cumsum(np.array(lengths, np.int64)))
        rows = Rows(np.array(keys, np.int64), pointer, np.concatenate(words).astype(np.int32), np.concatenate(counts))
        return rows, np.concatenate(followed)

    def _row(self, key: int, kind: int) -> tuple[Integers, Integers]:
        """Return the targets of a context, ascending, and their counts."""
        row = self._counts.row(key)
        if row is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        chosen = unpack_target(row.target)[0] == kind
        return row.target[chosen], row.strength[chosen].astype(np.int64)

    def _continuations(self, key: int, target: Integers, count: Integers) -> Integers:
        """Return after how many longer contexts each word of a context was counted, or how often without any."""
        region = int(self._placement.groups_of([key])[0])
        with self._locks[region], reading(f"network {self._reader.path}"):
            if region not in self._repeats:
                self._repeats[region] = self._reader.repeat_rows(region)
            repeats = self._repeats[region].between(key, key + 1)
        of_kind = _of_kind(repeats.target, target)
        at = np.searchsorted(target, repeats.target[of_kind])
        found = count.copy()
        intact = bool(len(at) == 0 or at[-1] < len(target)) and np.array_equal(target[at], repeats.target[of_kind])
        if intact:
            found[at] -= repeats.strength[of_kind]
        if not intact or int(found.min(initial=1)) < 1:
            raise StoreDamagedError(f"the repeats of network {self._reader.path} contradict its counts")
        return found


def _of_kind(repeats: Integers, target: Integers) -> npt.NDArray[np.bool_]:
    """Return which targets are of the kind of others, that of one context."""
    if not len(target):
        return np.zeros(len(repeats), np.bool_)
    chosen: npt.NDArray[np.bool_] = unpack_target(repeats)[0] == unpack_target(target[:1])[0]
    return chosen
