"""Export a network of profile ``contexts`` as an n-gram model in the ARPA format, which decoders read.

The model is the 5-gram with modified Kneser-Ney smoothing of `contexts.ngram`: the chain of contexts of
`contexts.tables` without further evidence. An n-gram that was counted has its interpolated probability, so that backing
off gives every other one the probability that the chain gives it. ``<unk>`` has what all unknown words have together.
The end of a sentence is no word of the model, so ``</s>`` has the probability 0, by convention -99, as ``<s>`` has.
"""

from __future__ import annotations

import gzip
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from giaann_dask.events import Observer, StageAdvanced
from giaann_dask.keys import Integers
from giaann_dask.models.contexts.chain_files import Chain, ChainLink
from giaann_dask.models.contexts.continuation_counts import SMALL_COUNTS
from giaann_dask.models.contexts.scores import LogLinearModel
from giaann_dask.models.contexts.tables import RowArrays, chain_shares, discounts_of, rank_words, small_counts
from giaann_dask.models.words.stream import NONE
from giaann_dask.storage import replacing, writing
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.table_files import Compression

ENDINGS = (".arpa", ".arpa.gz")
BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
_NEVER = "-99"
# What separates the fields of a line, for one reader or another.
_SEPARATOR = re.compile(r"[\s\0]")

Floats = npt.NDArray[np.float64]


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
        ranked = rank_words(chain.word_keys, chain.word_counts, words)
        self._order = np.argsort(ranked.order)
        by_rank = LogLinearModel(ranked.tables(chain.preceding[self._order], RowArrays.empty())).words_with(()).base
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
