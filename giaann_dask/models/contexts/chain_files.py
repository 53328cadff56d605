"""Lay the chain of contexts down in files, with the words that each context is made of.

A context is stored as a hash. But every context of the chain is a shorter one and the word that followed it, so all of
them are found from the words of a network, one length after another. In memory are the words, blocks of bounded size,
and pages of the files as far as the system keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import EmptyInputError, StoreDamagedError
from giaann_dask.events import Observer
from giaann_dask.keys import Integers, source_key, unpack_target
from giaann_dask.models.contexts.context_rows import Rows
from giaann_dask.models.contexts.continuation_counts import EMPTY_CONTEXT
from giaann_dask.models.contexts.kinds import CHAIN
from giaann_dask.models.words.stream import BOUNDARY, NONE, find_ascending
from giaann_dask.rows.stored import StoredRows
from giaann_dask.runs.run import Run
from giaann_dask.storage import RESTORE
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import CONVERTED
from giaann_dask.store.ordered_connections import ordered_connections

# An entry is the number of its row and, in the lower bits, the place of its word.
_ROW_SHIFT = 32
_WORD = (1 << _ROW_SHIFT) - 1
_CONTRADICTION = "the counts of a network contradict each other"


class ChainLink:
    """Rows of one kind of context of the chain, in files.

    Parameters
    ----------
    folder : Path
        Where the files are.
    kind : int
        Words of a context.

    Attributes
    ----------
    keys, pointer : ndarray
        Source key of each row, ascending, and its entries, as in `Rows`.
    entry : ndarray
        Row and word of each entry, ascending; int64.
    counts : ndarray
        Count of each entry; int64. `Chain` replaces it by how many longer contexts the word followed, if any.
    context : ndarray
        Places of the words of each row, the last one first; `NONE` is the beginning of a sentence. int32, shape
        ``(rows, kind)``.
    longer : ndarray
        Row of the context of each entry's words of the next link, `NONE` where there is none; int64.
    shorter : ndarray
        Entry of the same word in the link before, after the context without its first word; int64.
    """

    keys: Integers
    pointer: Integers
    entry: Integers
    counts: Integers
    context: npt.NDArray[np.int32]
    longer: Integers
    shorter: Integers

    def __init__(self, folder: Path, kind: int) -> None:
        self.kind, self._folder = kind, folder
        self._files = {name: self._path(name).open("wb") for name in ("keys", "pointer", "entry", "counts")}
        self._rows, self._entries, self._last = 0, 0, NONE

    def append(self, source: Integers, word: Integers, count: Integers) -> None:
        """Append entries, ascending by source and word, behind those appended before."""
        fresh = np.diff(source, prepend=self._last) != 0
        first = np.flatnonzero(fresh)
        entry = (self._rows - 1 + np.cumsum(fresh)) << _ROW_SHIFT | word
        columns = {"keys": source[first], "pointer": first + self._entries, "entry": entry, "counts": count}
        for name, values in columns.items():
            self._files[name].write(np.ascontiguousarray(values, np.int64).data)
        self._rows, self._entries = self._rows + len(first), self._entries + len(source)
        self._last = int(source[-1])

    def close(self) -> None:
        """Map what was appended."""
        self._files["pointer"].write(np.array([self._entries], np.int64).data)
        for file in self._files.values():
            file.close()
        self.keys, self.pointer = self._map("keys", self._rows), self._map("pointer", self._rows + 1)
        self.entry, self.counts = self._map("entry", self._entries), self._map("counts", self._entries)
        self.context = self.array("context", np.int32, self._rows * self.kind).reshape(-1, self.kind)
        self.longer, self.shorter = (self.array(name, np.int64, self._entries) for name in ("longer", "shorter"))

    def __len__(self) -> int:
        """Return the number of entries."""
        return self._entries

    def array(self, name: str, dtype: npt.DTypeLike, length: int) -> npt.NDArray[Any]:
        """Return a new array of zeros in a file."""
        with self._path(name).open("wb") as file:
            file.truncate(length * np.dtype(dtype).itemsize)
        return self._map(name, length, dtype)

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield rows in blocks of bounded size, and their entries; a row is never divided."""
        bounds = np.searchsorted(self.pointer, np.arange(0, self._entries, CONVERTED))
        for begin, end in pairwise([*np.unique(bounds).tolist(), self._rows]):
            yield slice(begin, end), slice(int(self.pointer[begin]), int(self.pointer[end]))

    def words(self, entries: slice) -> Integers:
        """Return the places of the words of entries."""
        return self.entry[entries] & _WORD

    def rows(self, rows: slice, entries: slice) -> Rows:
        """Return a block of rows as arrays in memory."""
        pointer = self.pointer[rows.start : rows.stop + 1] - entries.start
        return Rows(self.keys[rows], pointer, self.words(entries).astype(np.int32), self.counts[entries])

    def find(self, keys: Integers) -> Integers:
        """Return the rows of contexts by key, `NONE` where there is none."""
        return find_ascending(self.keys, keys)

    def find_entries(self, row: Integers, word: Integers) -> Integers:
        """Return the entries of words in rows.

        Raises
        ------
        StoreDamagedError
            If one is missing.
        """
        found = find_ascending(self.entry, row << _ROW_SHIFT | word)
        if (found == NONE).any() or (row == NONE).any():
            raise StoreDamagedError(_CONTRADICTION, "each word after a context also after its last words", RESTORE)
        return found

    def _path(self, name: str) -> Path:
        return self._folder / f"{self.kind}-{name}"

    def _map(self, name: str, length: int, dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        # No file of length 0 can be mapped.
        return (
            np.memmap(self._path(name), dtype, "r+", shape=(length,)).view(np.ndarray) if length else np.zeros(0, dtype)
        )


class Chain:
    """The contexts of 1 to `CHAIN` words of a commit, in files.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    folder : Path
        An empty folder, which has to stay.
    observer : callable
        Notified of every run read.

    Attributes
    ----------
    word_keys, word_counts : ndarray
        Keys of the words that were counted, ascending, and how often each occurs; int64.
    links : list of ChainLink
        The contexts by length.

    Raises
    ------
    EmptyInputError
        If nothing was counted.
    StoreDamagedError
        If counts contradict each other.
    """

    def __init__(self, reader: CommitReader, folder: Path, observer: Observer) -> None:
        row = StoredRows(reader, whole=False).row(EMPTY_CONTEXT)
        if row is None:
            raise EmptyInputError("no word was counted", "counts of some text", "train it on a text first")
        kind, keys, _ = unpack_target(row.target)
        self.word_keys, self.word_counts = keys[kind == 0], row.strength[kind == 0].astype(np.int64)
        self.links = [ChainLink(folder, kind) for kind in range(1, CHAIN + 1)]
        with ordered_connections(reader, folder, observer) as connections:
            for block in connections.blocks(CONVERTED):
                self._append(block)
        for link in self.links:
            link.close()
        self._name_contexts()
        for shorter, own in pairwise(self.links):
            self._connect(shorter, own)
        self.preceding = self._count_preceding()

    def contexts_of(self, places: npt.NDArray[np.integer[Any]]) -> Integers:
        """Return the rows of contexts of one word by the places of words; see `ChainLink.context`."""
        return self.links[0].find(source_key(1, [self._keys(places)]))

    def _append(self, block: Run) -> None:
        """Append the entries of the chain of a block."""
        kind, neuron, _ = unpack_target(block.target)
        source = np.repeat(block.source, np.diff(block.pointer))
        for link in self.links:
            chosen = np.flatnonzero(kind == link.kind)
            if not len(chosen):
                continue
            word = find_ascending(self.word_keys, neuron[chosen])
            if (word == NONE).any():
                raise StoreDamagedError(_CONTRADICTION, "a count of each word", RESTORE)
            link.append(source[chosen], word, block.strength[chosen])

    def _keys(self, places: npt.NDArray[np.integer[Any]]) -> Integers:
        return np.where(places == NONE, BOUNDARY, self.word_keys[places])

    def _name_contexts(self) -> None:
        """Find the words of every context."""
        places = np.append(np.arange(len(self.word_keys)), NONE)
        row = self.contexts_of(places)
        self.links[0].context[row[row != NONE], 0] = places[row != NONE]
        named = [int((row != NONE).sum())]
        for own, longer in pairwise(self.links):
            named.append(0)
            for _, entries in own.blocks():
                before = own.context[own.entry[entries] >> _ROW_SHIFT]
                context = np.column_stack([own.words(entries).astype(np.int32), before])
                row = longer.find(source_key(longer.kind, [self._keys(part) for part in context.T]))
                own.longer[entries] = row
                longer.context[row[row != NONE]] = context[row != NONE]
                named[-1] += int((row != NONE).sum())
        if named != [len(link.keys) for link in self.links]:
            raise StoreDamagedError(_CONTRADICTION, "each context among the words after shorter ones", RESTORE)

    def _connect(self, shorter: ChainLink, own: ChainLink) -> None:
        """Find each entry of a link in the link before, and count there after how many contexts each word came."""
        followed = shorter.array("followed", np.int64, len(shorter))
        for rows, entries in own.blocks():
            context = own.context[rows, : shorter.kind]
            row = shorter.find(source_key(shorter.kind, [self._keys(part) for part in context.T]))
            found = shorter.find_entries(row[(own.entry[entries] >> _ROW_SHIFT) - rows.start], own.words(entries))
            own.shorter[entries] = found
            np.add.at(followed, found, 1)
        for _, entries in shorter.blocks():
            # Contexts that reach the beginning of a sentence have no longer ones and keep their counts.
            shorter.counts[entries] = np.where(followed[entries] > 0, followed[entries], shorter.counts[entries])

    def _count_preceding(self) -> Integers:
        """Return after how many distinct words each word came, or how often it occurs where no context is left."""
        link, found = self.links[0], np.zeros(len(self.word_keys), np.int64)
        for _, entries in link.blocks():
            link.shorter[entries] = link.words(entries)
            found += np.bincount(link.words(entries), minlength=len(found))
        return found if found.any() else self.word_counts
