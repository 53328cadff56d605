"""Export a network of profile ``contexts`` as an n-gram model in the ARPA format, which decoders read.

The model is the 5-gram with modified Kneser-Ney smoothing of `contexts.scores`: the chain of contexts of
`contexts.tables` without further evidence. An n-gram that was counted has its interpolated probability, so that backing
off gives every other one the probability that the chain gives it. ``<unk>`` has what all unknown words have together.
The end of a sentence is no word of the model, so ``</s>`` has the probability 0, by convention -99, as ``<s>`` has.

A context is stored as a hash. But every context of the chain is a shorter one and the word that followed it, so all of
them are found from the words of a network, one length after another. The chain lies in files. In memory are the words,
blocks of bounded size, and pages of the files as far as the system keeps them.
"""

from __future__ import annotations

import gzip
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import RESTORE, EmptyInputError, StoreDamagedError
from giaann_dask.events import Observer, StageAdvanced
from giaann_dask.keys import Integers, source_key, unpack_target
from giaann_dask.models.contexts.context_rows import Rows
from giaann_dask.models.contexts.kinds import CHAIN, SMALL_COUNTS
from giaann_dask.models.contexts.tables import chain_shares, discounts_of, names_by_key, rank_words, small_counts
from giaann_dask.models.words.stream import BOUNDARY, EVERYWHERE, NONE, find_ascending
from giaann_dask.rows.stored import StoredRows
from giaann_dask.runs.run import Run
from giaann_dask.storage import replacing, writing
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import CONVERTED, Compression
from giaann_dask.store.ordered_connections import ordered_connections

ENDINGS = (".arpa", ".arpa.gz")
BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
_NEVER = "-99"
# What separates the fields of a line, for one reader or another.
_SEPARATOR = re.compile(r"[\s\0]")
Floats = npt.NDArray[np.float64]
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
        row = StoredRows(reader, whole=False).row(EVERYWHERE)
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


def write_arpa(reader: CommitReader, path: Path, observer: Observer, compression: Compression) -> None:
    """Write the 5-gram of a commit to a file; see `giaann_dask.models.base.ExportFormat`.

    Words and blocks of bounded size are in memory. Meanwhile about 60 bytes for each n-gram are on the disk beside the
    file, and what `ordered_connections` takes.

    Raises
    ------
    EmptyInputError
        If nothing was counted.
    StoreFullError
        If the disk is full.
    """
    with (
        writing(str(path)),
        replacing(path) as partial,
        tempfile.TemporaryDirectory(dir=partial.parent) as folder,
    ):
        chain = Chain(reader, Path(folder), observer)
        model = _NgramModel(chain, reader.saved_vocabulary().features[1:])
        with _opened(partial, path.name.endswith(".gz"), compression) as file:
            written, total = 0, sum(model.lengths)
            for lines, count in model.text():
                file.write(lines.encode("utf-8", "surrogatepass"))
                written += count
                observer(StageAdvanced("write", written, total, "n-grams"))


@contextmanager
def _opened(path: Path, zipped: bool, compression: Compression) -> Iterator[IO[bytes]]:
    """Open a file whose bytes depend on nothing but what is written."""
    with path.open("wb") as file:
        if not zipped:
            yield file
            return
        level = 0 if compression == "none" else 6
        with gzip.GzipFile("", "wb", level, file, mtime=0) as packed:
            yield cast("IO[bytes]", packed)


class _NgramModel:
    """Probabilities of all n-grams of a chain, and the text of its ARPA file.

    Parameters
    ----------
    chain : Chain
        The contexts.
    words : sequence of str
        The words of the network.
    """

    def __init__(self, chain: Chain, words: Sequence[str]) -> None:
        self._chain = chain
        ranked = rank_words(chain.word_keys, chain.word_counts, names_by_key(words))
        self._order = np.argsort(ranked.order)
        by_rank = ranked.tables(chain.preceding[self._order]).with_unknown(()).base
        self._unknown = max(1.0 - float(by_rank.sum()), np.finfo(np.float64).tiny)
        self._names = written_names(ranked.words)
        self._names_by_place = [self._names[at] for at in ranked.order.tolist()] + [BEGIN]
        self._by_rank = by_rank
        # Of each link what it leaves to shorter contexts; a word or an entry without a longer context leaves all.
        self._freed: list[Floats] = []
        self._probability: list[Floats] = []
        shorter = by_rank[ranked.order]
        for link in chain.links:
            shorter, freed = _probabilities(link, shorter)
            self._probability.append(shorter)
            self._freed.append(freed)

    @property
    def lengths(self) -> list[int]:
        """Number of n-grams of each length, up to the longest."""
        found = [len(self._names) + 3, *(len(link) for link in self._chain.links)]
        return found[: found.index(0)] if 0 in found else found

    def text(self) -> Iterator[tuple[str, int]]:
        """Yield the lines of the file in blocks, and how many n-grams are in each."""
        counts = "".join(f"ngram {order}={count}\n" for order, count in enumerate(self.lengths, 1))
        yield f"\\data\\\n{counts}\n\\1-grams:\n", 0
        yield self._unigrams()
        for order in range(2, len(self.lengths) + 1):
            yield f"\n\\{order}-grams:\n", 0
            yield from self._ngrams(order - 2)
        yield "\n\\end\\\n", 0

    def _unigrams(self) -> tuple[str, int]:
        places = np.append(self._order, NONE)
        backoff = self._backoffs(self._chain.contexts_of(places), 0)
        chance = [f"{value:.6f}" for value in np.log10(self._by_rank).tolist()]
        lines = [f"{np.log10(self._unknown):.6f}\t{UNKNOWN}", f"{_NEVER}\t{BEGIN}{backoff[-1]}", f"{_NEVER}\t{END}"]
        lines += [f"{value}\t{name}{left}" for value, name, left in zip(chance, self._names, backoff[:-1], strict=True)]
        return "\n".join(lines) + "\n", len(lines)

    def _ngrams(self, at: int) -> Iterator[tuple[str, int]]:
        """Yield the n-grams of the contexts of a link."""
        link, names = self._chain.links[at], self._names_by_place
        last = at == len(self._chain.links) - 1
        for rows, entries in link.blocks():
            before = [" ".join(names[place] for place in context) for context in link.context[rows, ::-1].tolist()]
            chance = np.log10(self._probability[at][entries]).tolist()
            row = (link.rows(rows, entries).row).tolist()
            words = link.words(entries).tolist()
            backoff = [""] * len(row) if last else self._backoffs(link.longer[entries], at + 1)
            lines = [
                f"{value:.6f}\t{before[each]} {names[word]}{left}\n"
                for value, each, word, left in zip(chance, row, words, backoff, strict=True)
            ]
            yield "".join(lines), len(lines)

    def _backoffs(self, row: Integers, at: int) -> list[str]:
        """Return the fields of what contexts leave to shorter ones, by the rows of a link; empty without a row."""
        there = np.flatnonzero(row != NONE)
        found = [""] * len(row)
        for place, value in zip(there.tolist(), np.log10(self._freed[at][row[there]]).tolist(), strict=True):
            found[place] = f"\t{value:.6f}"
        return found


def written_names(words: Sequence[str]) -> list[str]:
    r"""Return words as the file has them, all distinct: without separators, and none that the format reserves.

    Examples
    --------
    >>> written_names(["a", "<s>", "10 000", "10_000"])
    ['a', '\\<s>', '\\10_000', '10_000']
    """
    taken, found = {*words, BEGIN, END, UNKNOWN}, []
    for word in words:
        name = _SEPARATOR.sub("_", word)
        if name != word or name in (BEGIN, END, UNKNOWN):
            while name in taken:
                name = "\\" + name
            taken.add(name)
        found.append(name)
    return found


def _probabilities(link: ChainLink, shorter: Floats) -> tuple[Floats, Floats]:
    """Return the probability of each entry of a link, given those of the link before, and what each row frees."""
    small = np.zeros(SMALL_COUNTS, np.int64)
    for _, entries in link.blocks():
        small += small_counts(link.counts[entries])
    discounts = discounts_of(small)
    chance = link.array("chance", np.float64, len(link))
    freed = link.array("freed", np.float64, len(link.keys))
    for rows, entries in link.blocks():
        block = link.rows(rows, entries)
        shares, left = chain_shares(block, discounts)
        freed[rows] = left
        chance[entries] = shares + left[block.row] * shorter[link.shorter[entries]]
    return chance, freed
