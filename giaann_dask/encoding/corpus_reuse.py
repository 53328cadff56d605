"""A corpus as it is numbered already: ranges of it that need not be tagged and encoded again.

Covers: when what a network has seen and what it reads next are the beginning of an encoded corpus,
whose dictionaries the network would only repeat; and reading such ranges with no more than training
needs. Does not cover: corpora that continue other text, which are read as text is (`sources`,
`stream`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from giaann_dask.encoding.sources import CorpusRange, Unit, open_corpus, written_ns
from giaann_dask.text.corpus import EncodedCorpus
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class ReusedSummary:
    """How a range of a corpus makes its dictionaries grow.

    Attributes
    ----------
    concepts, features : ndarray
        Size that the dictionary needs for all sequences of the range up to each of its sequence
        boundaries; int64, shape ``(sequences + 1,)``.
    """

    concepts: npt.NDArray[np.int64]
    features: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.concepts) - 1

    def growth(self, earlier: tuple[int, int]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the sizes of dictionaries of some earlier sizes at the sequence boundaries; int32."""
        concepts, features = np.maximum(self.concepts, earlier[0]), np.maximum(self.features, earlier[1])
        return concepts.astype(np.int32), features.astype(np.int32)


class CorpusNumbering:
    """Follows, group by group, whether the numbers of a corpus are those that a network would give.

    They are as long as the network has seen the beginning of that corpus and nothing else.

    Parameters
    ----------
    vocabulary : Vocabulary or None
        The network's dictionaries before the first group; None where blocks may not be read this way at all.
    branches : int
        Dendritic branches of the network's neurons; a corpus holds numbers of branches, too.

    Attributes
    ----------
    written : int
        When the corpus was written, in nanoseconds; part of the keys of tasks that read it.
    """

    def __init__(self, vocabulary: Vocabulary | None, branches: int) -> None:
        self._next = None if vocabulary is None else vocabulary.sequences
        self._branches = branches
        self._path, self.written = "", 0
        # Before the first range those of the network, from then on those of the corpus.
        self._vocabulary = vocabulary or Vocabulary()
        self._since = np.zeros(0, np.int64)

    def take(self, units: Sequence[Unit], skips: Sequence[int]) -> CorpusRange | None:
        """Return the range that a group of units is of the corpus, or None if it has to be encoded.

        To be called once for every group, in order, beginning with the first one that is not in the network.
        """
        first, last = units[0].content, units[-1].content
        expected, self._next = self._next, None
        if not isinstance(first, CorpusRange) or not isinstance(last, CorpusRange):
            return None
        start = first.start + skips[0]
        if start != expected or not self._continues(first.path):
            return None
        self._next = last.stop
        return CorpusRange(first.path, start, last.stop)

    def _continues(self, path: str) -> bool:
        """Return whether ranges of a corpus may follow; open it at its first range."""
        if self._path:
            return path == self._path
        corpus = EncodedCorpus(path)
        if corpus.attributes.get("branches") != self._branches:
            return False
        whole = corpus.vocabulary()
        # All of the corpus that comes before is in the network, so none of its words is missing there.
        if not self._vocabulary.begins(whole):
            return False
        self._path, self._vocabulary, self.written = path, whole, written_ns(path)
        self._since = np.array(self._vocabulary.probable_since, np.int64)
        return True

    def extend(self, vocabulary: Vocabulary, summary: ReusedSummary, sequences: int) -> None:
        """Let dictionaries grow by the first sequences of a range, as encoding them would."""
        sizes = int(summary.concepts[sequences]), int(summary.features[sequences])
        first = vocabulary.sequences
        flagged = np.flatnonzero((self._since >= first) & (self._since < first + sequences))
        vocabulary.continue_as(self._vocabulary, sizes, flagged.tolist(), sequences)


def read_corpus_numbering(path: str, start: int, stop: int) -> EncodedBlock:
    """Read a range of a corpus in the corpus's own numbers, without words and origins, as a task."""
    return open_corpus(path).numbers(start, stop)


def summarise_reused(block: EncodedBlock) -> ReusedSummary:
    """Return how a range makes its corpus's dictionaries grow, as a task."""
    # Columns show which concepts there are, because each is the concept of a noun of its sequence.
    return ReusedSummary(_sizes(block.column, block.offsets), _sizes(block.feature, block.offsets))


def first_sequences(block: EncodedBlock, sequences: int) -> EncodedBlock:
    """Return the first sequences of a block that was read by `read_corpus_numbering`, as a task."""
    tokens = int(block.offsets[sequences])
    token = {name: getattr(block, name)[:tokens] for name in ("column", "feature", "branch", "occurrence")}
    return dataclasses.replace(block, offsets=block.offsets[: sequences + 1], status=block.status[:sequences], **token)


def _sizes(numbers: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each boundary the largest number before it, plus one."""
    return np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(numbers).astype(np.int64) + 1])[offsets]
