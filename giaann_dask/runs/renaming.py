"""Map the identifiers of one network's dictionaries to those of another, and rename the neurons of runs.

Networks that were trained apart number concept columns and features differently. In profile ``best`` keys are hashes
of words, which are the same in all networks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numba as nb
import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import StoreDamagedError
from giaann_dask.keys import Integers, pack_neuron, pack_target, unpack_neuron, unpack_target
from giaann_dask.lazy import compiled
from giaann_dask.runs.run import Run
from giaann_dask.text.vocabulary import NEVER, Vocabulary

ABSENT = -1


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

    def neurons(self, neuron: npt.ArrayLike) -> Integers:
        """Return new neuron keys.

        Raises
        ------
        StoreDamagedError
            If a neuron belongs to a name that is left out.
        """
        column, feature = unpack_neuron(neuron)
        if len(column) and (column.max() >= len(self.concepts) or feature.max() >= len(self.features)):
            raise StoreDamagedError("a network has a neuron beyond its dictionaries", "neurons of named columns")
        columns, features = self.concepts[column], self.features[feature]
        if (columns == ABSENT).any() or (features == ABSENT).any():
            raise StoreDamagedError("a network has connections of a neuron without own strength", "trained neurons")
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


def close_gaps(concepts: npt.NDArray[np.bool_], features: npt.NDArray[np.bool_]) -> Renaming:
    """Return new identifiers, in the same order, of the concepts and features that are kept.

    Parameters
    ----------
    concepts, features : ndarray
        Which are kept; bool.

    Examples
    --------
    >>> close_gaps(np.array([True, False, True]), np.array([True])).concepts.tolist()
    [0, -1, 1]
    """
    return Renaming(*(np.where(kept, np.cumsum(kept) - 1, ABSENT).astype(np.int64) for kept in (concepts, features)))


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
    return _rename(run, renaming, run.target)


def rename_run(run: Run, renaming: Renaming) -> Run:
    """Return connections with renamed neurons, in the order of their new keys.

    Examples
    --------
    >>> swap = Renaming(np.array([1, 0]), np.array([0]))
    >>> target = pack_target(0, pack_neuron([1, 0], 0), 0)
    >>> renamed = rename_run(Run(pack_neuron([0, 1], 0), np.array([0, 1, 2]), target, np.array([5, 7])), swap)
    >>> unpack_neuron(renamed.source)[0].tolist(), renamed.strength.tolist()
    ([0, 1], [7, 5])
    """
    segment, neuron, branch = unpack_target(run.target)
    return _rename(run, renaming, pack_target(segment, renaming.neurons(neuron), branch))


@compiled(nb.void(*(nb.int64[::1],) * 4))
def _order_rows(begins, counts, key, order):  # type: ignore[no-untyped-def]
    """Write the places of the keys of rows, one row after the other, each sorted by key."""
    filled = 0
    for row in range(len(begins)):
        begin, end = begins[row], begins[row] + counts[row]
        ordered = True
        for at in range(begin + 1, end):
            if key[at - 1] > key[at]:
                ordered = False
                break
        if ordered:
            for at in range(begin, end):
                order[filled + at - begin] = at
        else:
            order[filled : filled + end - begin] = begin + np.argsort(key[begin:end])
        filled += end - begin


def _rename(run: Run, renaming: Renaming, target: Integers) -> Run:
    """Return a run with renamed source neurons and other targets, sorted."""
    source = renaming.neurons(run.source)
    rows = np.argsort(source)
    lengths = np.diff(run.pointer)[rows]
    pointer = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    order = np.empty(len(target), np.int64)
    _order_rows(run.pointer[:-1][rows], lengths, target, order)
    return Run(source[rows], pointer, target[order], run.strength[order])
