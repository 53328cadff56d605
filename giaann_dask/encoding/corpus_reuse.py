"""Reuse the identifiers of an encoded corpus instead of tagging and encoding it again.

That is possible as long as the network contains exactly the beginning of that corpus: then the network's dictionaries
equal those of the corpus as of the same sequence. Only the arrays that training uses are read.

Does not cover: corpora that follow other text, which are encoded again (`sources`, `stream`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from giaann_dask.encoding.sources import CorpusRange, Unit, open_corpus
from giaann_dask.store.corpus import EncodedCorpus
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.vocabulary import Vocabulary


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
