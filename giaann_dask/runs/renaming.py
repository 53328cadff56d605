"""Map the identifiers of one network's dictionaries to those of another, and rename the neurons of runs.

Networks that were trained apart number concept columns and features differently. In models of words keys are
hashes of words, which are the same in all networks. The arrays of a packed run are decoded as narrow as they are
stored, and its rows taken from them in the order of their new sources, some that fit a processor's caches at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import StoreDamagedError
from giaann_dask.keys import BRANCH_MASK, COLUMN_MASK, FEATURE_MASK, SEGMENT_SHIFT, Integers, pack_neuron, unpack_neuron
from giaann_dask.lazy import compiled, jit_inner
from giaann_dask.lazy import numba_types as nb
from giaann_dask.runs.packed_arrays import require_intact
from giaann_dask.runs.packing import TARGET_ARRAYS, BlockReader, PackedRun, decode_targets, target_key
from giaann_dask.runs.run import BLOCK, Run, join_ranges, pointer_of, readable
from giaann_dask.runs.target_sets import TargetBlock, TargetSets
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS, Specification
from giaann_dask.text.vocabulary import NEVER, Vocabulary

Kept: TypeAlias = npt.NDArray[np.bool_]
ABSENT = -1
# Statuses of a neuron: its name is in no dictionary, or left out.
_BEYOND, _UNTRAINED = 1, 2
# Targets that are sorted by insertion, which is faster for few.
_SHORT = 32


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class Renaming:
    """New identifiers of the concepts and features of a network.

    Attributes
    ----------
    concepts, features : ndarray
        New identifier of each, or -1 for one that is left out; int64.
    """

    concepts: Integers
    features: Integers

    @property
    def is_identity(self) -> bool:
        """Whether every identifier stays as it is."""
        return all(np.array_equal(ids, np.arange(len(ids))) for ids in (self.concepts, self.features))

    @property
    def kept(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Masks of the concepts and of the features that have a new identifier; bool."""
        return self.concepts != ABSENT, self.features != ABSENT

    def order(self) -> tuple[list[int], list[int]]:
        """Return the concepts and the features that are not left out in the order of their new identifiers."""
        concepts, features = (
            np.argsort(ids, kind="stable")[np.count_nonzero(ids == ABSENT) :].tolist()
            for ids in (self.concepts, self.features)
        )
        return concepts, features

    def up_to(self, concept: int, feature: int) -> Renaming:
        """Return the new identifiers of the concepts and features up to these."""
        return Renaming(self.concepts[: concept + 1], self.features[: feature + 1])

    def neurons(self, neuron: npt.ArrayLike) -> Integers:
        """Return new neuron keys.

        Raises
        ------
        StoreDamagedError
            If a neuron belongs to a name that is left out.
        """
        column, feature = unpack_neuron(neuron)
        if len(column) and (column.max() >= len(self.concepts) or feature.max() >= len(self.features)):
            _require_named(_BEYOND)
        columns, features = self.concepts[column], self.features[feature]
        if (columns == ABSENT).any() or (features == ABSENT).any():
            _require_named(_UNTRAINED)
        return pack_neuron(columns, features)


def append_names(whole: Vocabulary, other: Vocabulary) -> Renaming:
    """Append the names and flags of one vocabulary to another, as if its text had been read after the other's.

    Parameters
    ----------
    whole : Vocabulary
        Changed. Its flags and those of the other depend on the word alone, or are not used.
    other : Vocabulary
        Of words.

    Returns
    -------
    Renaming
        Identifiers of the other's names in the whole.

    Raises
    ------
    StrengthOverflowError
        If both have more names than dictionaries can have.

    Examples
    --------
    >>> whole = Vocabulary(["dog"], ["", "the"], [False, False], [-1, -1], 2)
    >>> other = Vocabulary(["cat", "dog"], ["", "of", "the"], [False, True, False], [-1, -1, -1], 3)
    >>> renaming = append_names(whole, other)
    >>> whole.concepts, whole.features, whole.sequences, renaming.concepts.tolist(), renaming.features.tolist()
    (['dog', 'cat'], ['', 'the', 'of'], 5, [1, 0], [0, 2, 1])
    """
    concepts = [whole.add_concept(lemma) for lemma in other.concepts]
    features = [0]
    for feature, word in enumerate(other.features[1:], 1):
        identifier = whole.add_feature(word, other.delimiter[feature])
        features.append(identifier)
        since = other.probable_since[feature]
        if since != NEVER and whole.probable_since[identifier] == NEVER:
            whole.probable_since[identifier] = whole.sequences + since
    whole.sequences += other.sequences
    whole.check_size()
    return Renaming(np.array(concepts, np.int64), np.array(features, np.int64))


def find_names(vocabulary: Vocabulary, whole: Vocabulary) -> Renaming:
    """Return the identifiers of a vocabulary's names in another one, -1 for those that it lacks.

    Examples
    --------
    >>> find_names(Vocabulary(["cat", "dog"]), Vocabulary(["dog"])).concepts.tolist()
    [-1, 0]
    """
    concepts = [whole.concept(lemma) for lemma in vocabulary.concepts]
    features = [0, *(whole.feature(word) for word in vocabulary.features[1:])]
    return Renaming(*(np.array([ABSENT if i is None else i for i in ids], np.int64) for ids in (concepts, features)))


def key_renaming(specification: Specification, vocabulary: Vocabulary, whole: Vocabulary) -> Renaming | None:
    """Return how keys of a network change in another one; None where they are hashes of words, which are the same."""
    return find_names(vocabulary, whole) if specification.traits.columns else None


def close_gaps(concepts: Kept, features: Kept, *, first: tuple[Kept, Kept] | None = None) -> Renaming:
    """Return new identifiers of the concepts and features that are kept.

    Parameters
    ----------
    concepts, features : ndarray
        Which are kept; bool.
    first : tuple of ndarray, optional
        Which of the concepts and of the features come before the others; bool. Otherwise the order stays.

    Examples
    --------
    >>> close_gaps(np.array([True, False, True]), np.array([True])).concepts.tolist()
    [0, -1, 1]
    >>> every, last = np.array([True, True]), np.array([False, True])
    >>> close_gaps(every, every, first=(last, every)).concepts.tolist()
    [1, 0]
    """
    return Renaming(*map(_numbers, (concepts, features), first or (concepts, features)))


def _numbers(kept: Kept, first: Kept) -> Integers:
    """Return consecutive numbers of what is kept, and -1 for the others."""
    order = np.concatenate([np.flatnonzero(kept & first), np.flatnonzero(kept & ~first)])
    found = np.full(len(kept), ABSENT, np.int64)
    found[order] = np.arange(len(order))
    return found


def rank_names(vocabulary: Vocabulary, neurons: Iterable[Integers]) -> Renaming:
    """Return identifiers in the order of the names, of those names alone that neurons have.

    Parameters
    ----------
    vocabulary : Vocabulary
        Dictionaries.
    neurons : iterable of ndarray
        Keys of the trained neurons.

    Examples
    --------
    >>> renaming = rank_names(Vocabulary(["dog", "bird", "cat"], ["", "the", "of"]), [pack_neuron([0, 2], [0, 1])])
    >>> renaming.concepts.tolist(), renaming.features.tolist()
    ([1, -1, 0], [0, 1, -1])
    """
    has_concept = np.zeros(len(vocabulary.concepts), np.bool_)
    has_feature = np.zeros(len(vocabulary.features), np.bool_)
    has_feature[0] = True
    for keys in neurons:
        column, feature = unpack_neuron(keys)
        has_concept[column] = has_feature[feature] = True
    concepts = np.full(len(has_concept), ABSENT, np.int64)
    features = np.full(len(has_feature), ABSENT, np.int64)
    # The prime concept feature, whose name no word has, comes first.
    for ids, used, names in (
        (concepts, has_concept, vocabulary.concepts),
        (features, has_feature, ["", *vocabulary.features[1:]]),
    ):
        order = sorted(np.flatnonzero(used).tolist(), key=names.__getitem__)
        ids[order] = np.arange(len(order))
    return Renaming(concepts, features)


def rename_sources(run: Run, renaming: Renaming) -> Run:
    """Return the neurons' own strengths with renamed neurons; their targets are segments and branches alone."""
    source, rows, lengths = _renamed_rows(run, renaming)
    order = join_ranges(run.pointer[:-1][rows], lengths)
    return Run(source, pointer_of(lengths), run.target[order], run.strength[order])


def rename_run(run: Run, renaming: Renaming) -> Run:
    """Return connections with renamed neurons, in the order of their new keys.

    Raises
    ------
    StoreDamagedError
        If a neuron belongs to a name that is left out, or to none.

    Examples
    --------
    >>> from giaann_dask.keys import pack_target
    >>> swap = Renaming(np.array([1, 0]), np.array([0]))
    >>> target = pack_target(0, pack_neuron([1, 0], 0), 0)
    >>> renamed = rename_run(Run(pack_neuron([0, 1], 0), np.array([0, 1, 2]), target, np.array([5, 7])), swap)
    >>> unpack_neuron(renamed.source)[0].tolist(), renamed.strength.tolist()
    ([0, 1], [7, 5])
    """
    source, rows, lengths = _renamed_rows(run, renaming)
    target, order = rename_targets(run.pointer[:-1][rows], lengths, run.target, renaming)
    return Run(source, pointer_of(lengths), target, run.strength[order])


def rename_targets(
    begins: Integers, lengths: Integers, target: Integers, renaming: Renaming
) -> tuple[Integers, Integers]:
    """Rename the neurons of the targets of rows, and order each row by its new keys.

    Parameters
    ----------
    begins, lengths : ndarray
        Where the targets of each row begin, and how many there are; int64, shape ``(rows,)``.
    target : ndarray
        Target keys, ascending within a row before they are renamed; int64.
    renaming : Renaming
        New identifiers.

    Returns
    -------
    target, order : ndarray
        New keys row after row, and the place that each had among the given ones; int64, shape ``(lengths.sum(),)``.

    Raises
    ------
    StoreDamagedError
        If a neuron belongs to a name that is left out, or to none.
    """
    made, order = np.empty((2, int(lengths.sum())), np.int64)
    given = (begins, lengths, target, renaming.concepts, renaming.features)
    begins, lengths, target, concepts, features = (readable(array, np.int64) for array in given)
    _require_named(_rename_targets(begins, lengths, target, concepts, features, made, order))
    return made, order


def rename_parts(
    packed: PackedRun, renaming: Renaming | None, regions_of: Callable[[Integers], Integers], *, block: int = BLOCK
) -> Iterator[tuple[int, Iterator[TargetBlock]]]:
    """Rename the neurons of connections, and divide them by the region of the source.

    Parameters
    ----------
    packed : PackedRun
        The connections.
    renaming : Renaming or None
        None to divide alone.
    regions_of : callable
        Returns the region of each of an array of source neurons.
    block : int
        Targets that are renamed at a time; a row is never divided.

    Yields
    ------
    region : int
        Each that gets connections, ascending.
    blocks : iterator of TargetBlock
        Its rows in blocks, whose sources ascend.

    Raises
    ------
    StoreDamagedError
        If the run does not decode, or has neurons without names.
    """
    given = _PackedRows(packed)
    source = given.source if renaming is None else renaming.neurons(given.source)
    region = regions_of(source)
    rows = np.lexsort((source, region))
    found, begins = np.unique(region[rows], return_index=True)
    for number, own in zip(found.tolist(), np.split(rows, begins[1:]), strict=False):
        yield number, _renamed_blocks(given, own, source, renaming, block)


def _renamed_blocks(
    given: _PackedRows, rows: Integers, source: Integers, renaming: Renaming | None, size: int
) -> Iterator[TargetBlock]:
    """Yield some rows of a run with new sources, in blocks."""
    ends, begin = np.cumsum(given.row_targets[rows]), 0
    while begin < len(rows):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + size, "right")), begin + 1)
        block = given.take(rows[begin:end])
        sets = block.sets if renaming is None else _rename_sets(block.sets, renaming)
        yield TargetBlock(source[rows[begin:end]], sets, block.bits)
        begin = end


def _rename_sets(sets: TargetSets, renaming: Renaming) -> TargetSets:
    """Return renamed targets, ordered within their rows."""
    begins = np.cumsum(sets.row_targets) - sets.row_targets
    key, order = rename_targets(begins, sets.row_targets, sets.key, renaming)
    further = _further(sets.segments)
    changes = (np.cumsum(further) - further)[order]
    return TargetSets(
        sets.row_targets,
        key,
        sets.segments[order],
        sets.strength[order],
        sets.change[join_ranges(changes, further[order])],
    )


class _PackedRows:
    """Rows of a packed run, which can be taken in any order."""

    def __init__(self, packed: PackedRun) -> None:
        reader = BlockReader(packed)
        self._bits, self._gaps, self._names = reader.bits, reader.gaps, reader.names
        self.source, self.row_targets = reader.source, reader.row_targets
        self._arrays = {name: reader.rest(name) for name in (*TARGET_ARRAYS, "strength", "strength_change")}
        segments = self._arrays["target_segments"]
        changes = pointer_of(_further(segments))
        intact = int(segments.min(initial=1)) > 0 and changes[-1] == len(self._arrays["strength_change"])
        require_intact(intact, "the segments and strengths of a run contradict each other")
        targets = pointer_of(self.row_targets)
        self._begins = targets[:-1]
        self._changes = changes[self._begins], changes[targets[1:]]

    def take(self, rows: Integers) -> TargetBlock:
        """Return some rows, in the order given."""
        row_targets = self.row_targets[rows]
        items = join_ranges(self._begins[rows], row_targets)
        *fields, segments, strength = (self._arrays[name][items] for name in (*TARGET_ARRAYS, "strength"))
        begins, ends = (edges[rows] for edges in self._changes)
        change = self._arrays["strength_change"][join_ranges(begins, ends - begins)]
        key = target_key(*fields, names=self._names)
        sets = decode_targets(row_targets, key, (segments, strength, change), gaps=self._gaps)
        return TargetBlock(self.source[rows], sets, self._bits)


def _further(segments: npt.NDArray[np.unsignedinteger]) -> Integers:
    """Return the number of changes of each target, int64."""
    further: Integers = np.bitwise_count(segments).astype(np.int64) - 1
    return further


def _renamed_rows(run: Run, renaming: Renaming) -> tuple[Integers, Integers, Integers]:
    """Return the new source neurons of a run, ascending, the row that each had, and the lengths of these."""
    source = renaming.neurons(run.source)
    rows = np.argsort(source)
    return source[rows], rows, np.diff(run.pointer)[rows]


def _require_named(status: int) -> None:
    """Raise the error of a status of `_rename_targets`."""
    if status == _BEYOND:
        raise StoreDamagedError("a network has a neuron beyond its dictionaries", "neurons of named columns")
    if status == _UNTRAINED:
        raise StoreDamagedError("a network has connections of a neuron without own strength", "trained neurons")


@jit_inner
def _insert(made: Any, order: Any, begin: int, end: int) -> None:
    """Sort a few keys, and their places with them."""
    for item in range(begin + 1, end):
        key, place, at = made[item], order[item], item
        while at > begin and made[at - 1] > key:
            made[at], order[at] = made[at - 1], order[at - 1]
            at -= 1
        made[at], order[at] = key, place


@jit_inner
def _merge(made: Any, order: Any, begin: int, middle: int, end: int) -> None:
    """Merge two sorted ranges of keys, and their places with them."""
    if made[middle - 1] < made[middle]:
        return
    keys, places = made[begin:middle].copy(), order[begin:middle].copy()
    low, high, at = 0, middle, begin
    while low < len(keys):
        if high == end or keys[low] < made[high]:
            made[at], order[at] = keys[low], places[low]
            low += 1
        else:
            made[at], order[at] = made[high], order[high]
            high += 1
        at += 1


@jit_inner
def _order(made: Any, order: Any, begin: int, end: int) -> None:
    """Sort keys, which are distinct, and their places with them; most are in order already."""
    for first in range(begin, end, _SHORT):
        _insert(made, order, first, min(first + _SHORT, end))
    width = _SHORT
    while width < end - begin:
        for first in range(begin, end - width, 2 * width):
            _merge(made, order, first, first + width, min(first + 2 * width, end))
        width *= 2


_GIVEN = nb.types.Array(nb.int64, 1, "C", readonly=True)


@compiled(nb.int64(_GIVEN, _GIVEN, _GIVEN, _GIVEN, _GIVEN, nb.int64[::1], nb.int64[::1]))
def _rename_targets(begins: Any, lengths: Any, target: Any, concepts: Any, features: Any, made: Any, order: Any) -> int:
    """Fill in new keys and their places, row after row; return a status."""
    filled = 0
    for row in range(len(begins)):
        # Segments keep their order, so that what has to be sorted is short.
        first, before = filled, np.int64(-1)
        for at in range(begins[row], begins[row] + lengths[row]):
            key = target[at]
            segment, column = key >> SEGMENT_SHIFT, (key >> (BRANCH_BITS + FEATURE_BITS)) & COLUMN_MASK
            feature = (key >> BRANCH_BITS) & FEATURE_MASK
            if column >= len(concepts) or feature >= len(features):
                return _BEYOND
            column, feature = concepts[column], features[feature]
            if column < 0 or feature < 0:
                return _UNTRAINED
            if segment != before:
                _order(made, order, first, filled)
                first, before = filled, segment
            neuron = column << FEATURE_BITS | feature
            made[filled] = segment << SEGMENT_SHIFT | neuron << BRANCH_BITS | (key & BRANCH_MASK)
            order[filled] = at
            filled += 1
        _order(made, order, first, filled)
    return 0
