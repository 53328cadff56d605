"""Make the tables of the contexts of some tokens from the rows of a commit, read when they are requested.

What depends on all counts is stored with the commit (`giaann_dask.models.contexts.continuation_counts`): a row of
counts and a row of repeats give what `giaann_dask.models.contexts.tables` gives for a context, bit by bit. So the first
answer of a network costs its words, the source keys of its runs, and the chunks that its contexts lie in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import EmptyInputError, StoreDamagedError
from giaann_dask.keys import Integers, unpack_target
from giaann_dask.models.contexts.context_rows import Rows
from giaann_dask.models.contexts.continuation_counts import EMPTY_CONTEXT
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS, context_sources
from giaann_dask.models.contexts.tables import PooledTables, RowArrays, discounts_of, rank_words, row_arrays
from giaann_dask.models.words.stream import NONE, TokenStream
from giaann_dask.rows.source import RowSource
from giaann_dask.rows.stored import StoredRows
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.storage import reading
from giaann_dask.store.commits import CommitReader

# Contexts that are read at a time: reading waits for the store, and decoding releases the GIL.
_THREADS = 8


class _Context(NamedTuple):
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
    words : PooledTables
        Tables with all words and without rows.

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
        target, count = self._row(EMPTY_CONTEXT, 0)
        if not len(target):
            raise EmptyInputError("no word was counted", "counts of some text", "train it on a text first")
        _, keys, _ = unpack_target(target)
        self._ranked = rank_words(keys, count, reader.saved_vocabulary().features[1:])
        preceding = np.empty_like(count)
        preceding[self._ranked.order] = self._continuations(EMPTY_CONTEXT, target, count)
        self.words = self._ranked.tables(preceding, RowArrays.empty())

    def of(self, stream: TokenStream, begin: int = 0, end: int | None = None) -> PooledTables:
        """Return the tables of the contexts before the tokens of a span of a stream; all tokens by default."""
        return replace(self.words, **self._arrays(stream, begin, end)._asdict())

    def of_tokens(self, stream: TokenStream, begin: int = 0, end: int | None = None) -> tuple[PooledTables, Integers]:
        """See `giaann_dask.models.contexts.tables.RowTables.of_tokens`."""
        tables = self.of(stream, begin, end)
        return tables, tables.find_rows(stream, begin, end)

    def release_beyond(self, nbytes: int) -> None:
        """Let decoded frames of rows go where they take more bytes; what is needed of them again is read again."""
        if isinstance(self._counts, StoredRows):
            self._counts.release_beyond(nbytes)
        if sum(rows.kept_bytes for rows in list(self._repeats.values())) > nbytes:
            for region, rows in list(self._repeats.items()):
                with self._locks[region]:
                    rows.release()

    def _arrays(self, stream: TokenStream, begin: int, end: int | None) -> RowArrays:
        found = self._read(stream, begin, end)
        contexts = (self._rows(found.get(kind, {})) for kind in range(1, len(CONTEXTS)))
        return row_arrays(contexts, self._ranked.share, self._discounts)

    def _read(self, stream: TokenStream, begin: int, end: int | None) -> dict[int, dict[int, _Context]]:
        """Return the contexts before the tokens of a span of a stream, by kind and by key in order."""
        contexts = []
        for kind in sorted(self._kinds):
            sources = context_sources(stream, kind, begin, end)
            contexts += [(kind, key) for key in np.unique(sources[sources != NONE]).tolist()]
        found: dict[int, dict[int, _Context]] = {kind: {} for kind in self._kinds}
        self._counts.prefetch(dict.fromkeys(key for _, key in contexts))
        with ThreadPoolExecutor(_THREADS) as pool:
            for (kind, key), context in zip(contexts, pool.map(self._context, contexts), strict=True):
                if len(context.target):
                    found[kind][key] = context
        return found

    def _context(self, context: tuple[int, int]) -> _Context:
        kind, key = context
        target, count = self._row(key, kind)
        continued = bool(len(target)) and kind < CHAIN
        return _Context(target, count, self._continuations(key, target, count) if continued else count)

    def _rows(self, contexts: Mapping[int, _Context]) -> tuple[Rows, Integers]:
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
