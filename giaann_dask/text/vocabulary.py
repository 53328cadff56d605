"""Maintain the dictionaries of concepts and features with their stored delimiter flags.

Implements rule 3 of the contract as an ordered merge of blocks, so that blocks can be prepared in parallel.
Dictionaries only grow, in order of first appearance in the text. The delimiter flag of a feature is that of its first
occurrence, with canonical flags that of its word; its probable flag is stored as the number of the sequence that first
set it, so the state after any earlier sequence can be reconstructed. With subwords, the dictionary of features is
complete from the beginning, and delimiter flags are stored by sequence numbers, too.

Does not cover: applying the flags to sentences (`segmentation`) and storing them
(`giaann_dask.store.commits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import StrengthOverflowError
from giaann_dask.spec import MAXIMUM_CONCEPTS, MAXIMUM_FEATURES
from giaann_dask.text.blocks import DELIMITER, NOUN, PROBABLE, TaggedBlock
from giaann_dask.text.names import Names

PRIME_CONCEPT_FEATURE = "variablePrimeConceptFeatureNeuron"
NEVER = -1


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class BlockSummary:
    """Symbol tables and flags of a block, without tokens: the input of the ordered merge.

    Attributes
    ----------
    concepts, features, surfaces : tuple of str
        The block's symbol tables.
    delimiter : ndarray
        Whether the first occurrence of each feature is a delimiter; bool.
    probable : ndarray
        First sequence of the block with each feature as a probable delimiter, else -1; int64.
    status : ndarray
        Status of every counted sequence; uint8.
    concept_high, feature_high : ndarray
        Number of symbols in use after each sequence; int64, shape ``(sequences + 1,)``.
    part_sequences : tuple of int
        Counted sequences of each part.
    document_sentences : tuple of (int, int)
        Sentences of each document of the block.
    delimiter_since : ndarray, optional
        First sequence of the block with each feature as a delimiter, else -1; int64. None if `delimiter`
        is used.
    """

    concepts: tuple[str, ...]
    features: tuple[str, ...]
    surfaces: tuple[str, ...]
    delimiter: npt.NDArray[np.bool_]
    probable: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]
    concept_high: npt.NDArray[np.int64]
    feature_high: npt.NDArray[np.int64]
    part_sequences: tuple[int, ...]
    document_sentences: tuple[tuple[int, int], ...]
    delimiter_since: npt.NDArray[np.int64] | None = None

    def growth(
        self, mapping: BlockMapping, earlier: tuple[int, int]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the sizes of the dictionaries at the block's sequence boundaries.

        Parameters
        ----------
        mapping : BlockMapping
            Identifiers of the block's symbols.
        earlier : tuple of (int, int)
            Concepts and features before the block.

        Returns
        -------
        tuple of (ndarray, ndarray)
            Concepts and features at the boundaries of the counted sequences; int32, shape ``(sequences + 1,)``.
        """
        return (
            _sizes_when(self.concept_high[: mapping.sequences + 1], mapping.concepts, earlier[0]),
            _sizes_when(self.feature_high[: mapping.sequences + 1], mapping.features, earlier[1]),
        )


def summarise(block: TaggedBlock) -> BlockSummary:
    """Reduce a block to its symbol tables and flags.

    Parameters
    ----------
    block : TaggedBlock
        Symbols are numbered in order of first appearance.

    Returns
    -------
    BlockSummary
        Its size is proportional to the number of distinct words, not of tokens.
    """
    noun = (block.flags & NOUN) != 0
    delimiter = np.zeros(len(block.features), np.bool_)
    others = np.flatnonzero(~noun)
    if len(others):
        first_symbol, first = np.unique(block.symbol[others], return_index=True)
        delimiter[first_symbol] = (block.flags[others[first]] & DELIMITER) != 0
    return BlockSummary(
        concepts=block.concepts,
        features=block.features,
        surfaces=block.surfaces,
        delimiter=delimiter,
        probable=_first_flagged(block, PROBABLE),
        status=block.status,
        concept_high=_symbols_in_use(block, noun),
        feature_high=_symbols_in_use(block, ~noun),
        part_sequences=block.part_sequences,
        document_sentences=block.document_sentences,
        delimiter_since=_first_flagged(block, DELIMITER) if block.own_flags else None,
    )


def _first_flagged(block: TaggedBlock, flag: int) -> npt.NDArray[np.int64]:
    """Return the first sequence with a flag for each feature, -1 for none."""
    found = np.full(len(block.features), NEVER, np.int64)
    marked = np.flatnonzero((block.flags & flag) != 0)
    if len(marked):
        symbol, first = np.unique(block.symbol[marked], return_index=True)
        found[symbol] = np.searchsorted(block.offsets, marked[first], side="right") - 1
    return found


def _symbols_in_use(block: TaggedBlock, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the number of symbols of the chosen tokens before each sequence boundary."""
    seen = np.where(chosen, block.symbol, -1).astype(np.int64)
    high = np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(seen) + 1])
    return high[block.offsets]


def _sizes_when(used: npt.NDArray[np.int64], identifiers: npt.NDArray[np.int32], earlier: int) -> npt.NDArray[np.int32]:
    """Return the size of a dictionary after given numbers of a block's symbols."""
    sizes: npt.NDArray[np.int32] = np.full(len(identifiers) + 1, earlier, np.int32)
    np.maximum.accumulate(identifiers + 1, out=sizes[1:])
    return np.maximum(sizes, np.int32(earlier))[used]


@dataclass(frozen=True, slots=True, eq=False)
class BlockMapping:
    """Identifiers of a block's symbols in the network's dictionaries, with the flags that determine its columns.

    Attributes
    ----------
    concepts, features : ndarray
        Identifier of each of the block's symbols; int32.
    delimiter : ndarray
        Stored delimiter flag of each of the block's features; bool.
    probable_since : ndarray
        Number of the sequence from which the probable flag is set, else -1; int64.
    first_sequence : int
        Number of the block's first sequence.
    sequences : int
        Number of the block's counted sequences (the others are beyond a limit).
    first_sentence : int
        Number of sentences of the block's first document in earlier blocks.
    """

    concepts: npt.NDArray[np.int32]
    features: npt.NDArray[np.int32]
    delimiter: npt.NDArray[np.bool_]
    probable_since: npt.NDArray[np.int64]
    first_sequence: int
    sequences: int
    first_sentence: int = 0


class Vocabulary:
    """Dictionaries of a network or corpus, which only grow.

    Parameters
    ----------
    concepts : iterable of str
        Lemmas by column index.
    features : iterable of str, optional
        Words by feature index; index 0 is the prime concept feature.
    delimiter : iterable of bool, optional
        Stored delimiter flag per feature.
    probable_since : iterable of int, optional
        Sequence that set the probable flag per feature, or -1.
    sequences : int
        Number of sequences counted so far.
    delimiter_since : iterable of int, optional
        Sequence that set the delimiter flag per feature, or -1, if flags can be set later than at
        the first occurrence; overrides `delimiter`.

    Examples
    --------
    >>> vocabulary = Vocabulary()
    >>> vocabulary.concepts, vocabulary.features
    ([], ['variablePrimeConceptFeatureNeuron'])
    """

    def __init__(
        self,
        concepts: Iterable[str] = (),
        features: Iterable[str] = (PRIME_CONCEPT_FEATURE,),
        delimiter: Iterable[bool] = (False,),
        probable_since: Iterable[int] = (NEVER,),
        sequences: int = 0,
        delimiter_since: Iterable[int] | None = None,
    ) -> None:
        self.concepts, self.features = (
            names.copy() if isinstance(names, Names) else Names(names) for names in (concepts, features)
        )
        self.delimiter = list(delimiter)
        self.probable_since = list(probable_since)
        self.sequences = sequences
        self.delimiter_since = None if delimiter_since is None else list(delimiter_since)
        if self.delimiter_since is not None:
            self.delimiter = [since != NEVER for since in self.delimiter_since]

    @classmethod
    def of_subwords(cls, names: Sequence[str], column_names: str = "first") -> Vocabulary:
        """Return the dictionaries of a tokenizer, which contain all its subwords from the beginning.

        Parameters
        ----------
        names : sequence of str
            Subwords by identifier.
        column_names : str
            ``"first"`` if columns are subwords, too; otherwise columns are added as they appear.

        Examples
        --------
        >>> vocabulary = Vocabulary.of_subwords(["a", "b"])
        >>> vocabulary.concept("b"), vocabulary.feature("b")
        (1, 2)
        """
        never = [NEVER] * (len(names) + 1)
        concepts = names if column_names == "first" else ()
        return cls(concepts, [PRIME_CONCEPT_FEATURE, *names], (), never, delimiter_since=never)

    def copy(self) -> Vocabulary:
        """Return an independent copy, for expansion in memory."""
        duplicate = Vocabulary.__new__(Vocabulary)
        for name, value in vars(self).items():
            setattr(duplicate, name, value.copy() if isinstance(value, list | Names) else value)
        return duplicate

    def concept(self, lemma: str) -> int | None:
        """Return the column of a lemma, or None."""
        return self.concepts.find(lemma)

    def feature(self, word: str) -> int | None:
        """Return the feature index of a word, or None."""
        # The prime concept feature is no word, whatever its name.
        return self.features.find(word) or None

    def extend(self, block: BlockSummary, sequences: int | None = None) -> BlockMapping:
        """Merge the next block, in the order of the text.

        Parameters
        ----------
        block : BlockSummary
            Block that follows all merged ones.
        sequences : int, optional
            Merge only its first sequences; all by default.

        Returns
        -------
        BlockMapping
            Argument of `giaann_dask.text.segmentation.encode_block`.

        Raises
        ------
        StrengthOverflowError
            If there are more concepts or features than a key can hold.
        """
        count = len(block.status) if sequences is None else min(sequences, len(block.status))
        first = self.sequences
        concept_ids = [self.add_concept(c) for c in block.concepts[: int(block.concept_high[count])]]
        used = int(block.feature_high[count])
        feature_ids = [self.add_feature(word, bool(block.delimiter[i])) for i, word in enumerate(block.features[:used])]
        _set_flags(self.probable_since, block.probable[:used], feature_ids, first, count)
        if self.delimiter_since is not None and block.delimiter_since is not None:
            _set_flags(self.delimiter_since, block.delimiter_since[:used], feature_ids, first, count)
            for identifier in feature_ids:
                self.delimiter[identifier] = self.delimiter_since[identifier] != NEVER
        self.sequences += count
        self.check_size()
        return BlockMapping(
            concepts=np.array(concept_ids, np.int32),
            features=np.array(feature_ids, np.int32),
            delimiter=np.array([self.delimiter[i] for i in feature_ids], np.bool_),
            probable_since=np.array([self.probable_since[i] for i in feature_ids], np.int64),
            first_sequence=first,
            sequences=count,
        )

    def is_prefix_of(self, whole: Vocabulary) -> bool:
        """Return whether these dictionaries and flags equal others as of the same number of sequences.

        Parameters
        ----------
        whole : Vocabulary
            Dictionaries of words. They do not store when a word was added, so the caller must ensure that these
            dictionaries lack no word of the first sequences.

        Examples
        --------
        >>> whole = Vocabulary(["dog", "cat"], ["", "the", "of"], [False, False, True], [-1, -1, 7], 9)
        >>> Vocabulary(["dog"], ["", "the", "of"], [False, False, True], [-1, -1, -1], 7).is_prefix_of(whole)
        True
        >>> Vocabulary(["cat"], ["", "the", "of"], [False, False, True], [-1, -1, -1], 7).is_prefix_of(whole)
        False
        """
        if self.delimiter_since is not None or whole.delimiter_since is not None:
            return False
        features = len(self.features)
        since = [t if t < self.sequences else NEVER for t in whole.probable_since[:features]]
        return (
            self.sequences <= whole.sequences
            and self.concepts == whole.concepts[: len(self.concepts)]
            and self.features == whole.features[:features]
            and self.delimiter == whole.delimiter[:features]
            and self.probable_since == since
        )

    def extend_to(self, whole: Vocabulary, sizes: tuple[int, int], flagged: Iterable[int], sequences: int) -> None:
        """Add the next entries of other dictionaries, of which these are a prefix.

        Parameters
        ----------
        whole : Vocabulary
            Dictionaries of which these are a prefix.
        sizes : tuple of (int, int)
            Concepts and features after the new sequences; sizes below the current ones add nothing.
        flagged : iterable of int
            Features whose probable flags are set by the new sequences.
        sequences : int
            Number of new sequences.
        """
        for lemma in whole.concepts[len(self.concepts) : sizes[0]]:
            self.add_concept(lemma)
        for feature in range(len(self.features), sizes[1]):
            self.add_feature(whole.features[feature], whole.delimiter[feature])
        for feature in flagged:
            self.probable_since[feature] = whole.probable_since[feature]
        self.sequences += sequences

    def truncated(self, concepts: int, features: int, last_sequence: int) -> Vocabulary:
        """Return the dictionaries as of an earlier sequence.

        Parameters
        ----------
        concepts, features : int
            Sizes of the dictionaries after that sequence.
        last_sequence : int
            Number of that sequence; flags that were set later are cleared.
        """
        probable = [t if t <= last_sequence else NEVER for t in self.probable_since[:features]]
        delimiter = None
        if self.delimiter_since is not None:
            delimiter = [t if t <= last_sequence else NEVER for t in self.delimiter_since[:features]]
        return Vocabulary(
            self.concepts.head(concepts),
            self.features.head(features),
            self.delimiter[:features],
            probable,
            self.sequences,
            delimiter,
        )

    def probable(self, last_sequence: int | None = None) -> Sequence[bool]:
        """Return the probable flag of every feature, currently or as of an earlier sequence."""
        limit = self.sequences if last_sequence is None else last_sequence
        return [0 <= t <= limit for t in self.probable_since]

    def add_concept(self, lemma: str) -> int:
        """Return the column of a lemma, which is added if it is new."""
        found = self.concepts.find(lemma)
        return self.concepts.append(lemma) if found is None else found

    def add_feature(self, word: str, delimiter: bool) -> int:
        """Return the feature of a word, which is added with its delimiter flag if it is new."""
        found = self.feature(word)
        if found is None:
            found = self.features.append(word)
            self.delimiter.append(delimiter)
            self.probable_since.append(NEVER)
        return found

    def check_size(self) -> None:
        """Raise a `StrengthOverflowError` where the dictionaries have more names than keys can tell apart."""
        if len(self.concepts) > MAXIMUM_CONCEPTS or len(self.features) > MAXIMUM_FEATURES:
            raise StrengthOverflowError(
                f"a network of {len(self.concepts):,} concepts and {len(self.features):,} features",
                f"at most {MAXIMUM_CONCEPTS:,} and {MAXIMUM_FEATURES:,}",
                "split the text over several networks",
            )


def _set_flags(
    since: list[int], flagged: npt.NDArray[np.int64], identifiers: Sequence[int], first: int, count: int
) -> None:
    """Set flags that are not set yet to the number of the block's sequence with the flag, among the first `count`."""
    for i in np.flatnonzero((flagged >= 0) & (flagged < count)).tolist():
        identifier = identifiers[i]
        if since[identifier] == NEVER:
            since[identifier] = first + int(flagged[i])
