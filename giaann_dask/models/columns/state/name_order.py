"""Order neurons by their names, which decides between equally active ones.

A network with canonical flags is the same whatever the order of its text, but its columns and features are numbered as
they appeared. So the first of equally active neurons is the one that is first by name: by that of its concept, then by
that of its feature, a concept's own neuron before others. That is the (column, feature) order of the network's export.
Other networks have no order of names; there the first is the one in (column, feature) order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import FEATURE_MASK, Integers
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.spec import FEATURE_BITS
from giaann_dask.text.vocabulary import Vocabulary


class NameTable(NamedTuple):
    """Names as compiled code reads them: UTF-8 bytes, the end of each name, and how many are concepts, the first ones.

    Without names the order is that of neuron keys.
    """

    text: npt.NDArray[np.uint8]
    end: Integers
    concepts: int


@dataclass(frozen=True, eq=False)
class NameOrder:
    """Order of the neurons of a network.

    Attributes
    ----------
    text : ndarray
        UTF-8 bytes of the names of all concepts, then of all features; uint8. Their bytes are in the order of their
        characters.
    end : ndarray
        End of each name in `text`, int64; none where neurons are in the order of their keys.
    concepts : int
        How many of the names are those of concepts.
    """

    text: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    end: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    concepts: int = 0

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> NameOrder:
        """Return the order by the names of a vocabulary.

        Examples
        --------
        >>> order = NameOrder.of(Vocabulary(["dog", "cat"], ["", "the", "of"]))
        >>> neuron = np.array([0 << 25, 1 << 25 | 1, 1 << 25 | 2])
        >>> order.best(neuron, np.float32([2, 2, 2]), 3).tolist(), NameOrder().first(neuron, np.float32([1, 2, 2]))
        ([2, 1, 0], 1)
        """
        (concepts, ends), (features, more) = vocabulary.concepts.packed(), vocabulary.features.packed()
        text = np.concatenate([concepts, features])
        return cls(text, np.concatenate([ends, more + len(concepts)]), len(vocabulary.concepts))

    @cached_property
    def table(self) -> NameTable:
        """The names for compiled code, which has other types for read-only arrays, such as those of other processes."""
        return NameTable(np.require(self.text, requirements="W"), np.require(self.end, requirements="W"), self.concepts)

    @cached_property
    def ranks(self) -> tuple[Integers, Integers]:
        """Ranks of the concepts by their names, and of the features, a concept's own neuron first.

        One element each where neurons are in the order of their keys, which no rank decides then.
        """
        found = []
        for begin, count in ((0, self.concepts), (self.concepts, len(self.end) - self.concepts)):
            names = [self._name(begin + number) for number in range(count)]
            rank = np.zeros(max(count, 1), np.int64)
            rank[sorted(range(count), key=names.__getitem__)] = np.arange(count)
            found.append(rank)
        found[1][0] = -1
        return found[0], found[1]

    def first(self, neuron: Integers, value: npt.NDArray[np.floating]) -> int:
        """Return the place of the first neuron of those with the largest value; the parameters are those of `best`."""
        return int(self.best(neuron, value, 1)[0])

    def best(self, neuron: Integers, value: npt.NDArray[np.floating], count: int) -> Integers:
        """Return the places of the neurons with the largest values.

        Parameters
        ----------
        neuron : ndarray
            Neuron keys, int64.
        value : ndarray
            Their values, float32 or float64, one or more.
        count : int
            How many at most.

        Returns
        -------
        ndarray
            Largest value first, equal ones in the order of neurons; int64, shape ``(min(count, neurons),)``.
        """
        found: Any = best_places(neuron, value, min(count, len(neuron)), self.table)
        return np.asarray(found)

    def key(self, neuron: int) -> tuple[Any, ...]:
        """Return what sorts one neuron among others, where few are sorted."""
        column, feature = neuron >> FEATURE_BITS, neuron & FEATURE_MASK
        if not len(self.end):
            return column, feature
        return self._name(column), feature > 0, self._name(self.concepts + feature)

    def _name(self, number: int) -> bytes:
        begin = int(self.end[number - 1]) if number else 0
        return self.text[begin : int(self.end[number])].tobytes()


@jit_inner
def _is_before(one: int, other: int, names: NameTable) -> bool:
    """Return whether a name is before another by its bytes, by their numbers in the table."""
    at, end = names.end[one - 1] if one else 0, names.end[one]
    its, its_end = names.end[other - 1] if other else 0, names.end[other]
    while at < end and its < its_end and names.text[at] == names.text[its]:
        at, its = at + 1, its + 1
    if at == end or its == its_end:
        return bool(at == end and its < its_end)
    return bool(names.text[at] < names.text[its])


@jit_inner
def precedes(one: int, other: int, names: NameTable) -> bool:
    """Return whether a neuron is before another one in the order of a network."""
    column, feature = one >> FEATURE_BITS, one & FEATURE_MASK
    its_column, its_feature = other >> FEATURE_BITS, other & FEATURE_MASK
    named = len(names.end) - names.concepts
    # A damaged store may have neurons that no name belongs to.
    if max(column, its_column) >= names.concepts or max(feature, its_feature) >= named:
        return bool(one < other)
    if column != its_column:
        return bool(_is_before(column, its_column, names))
    if feature == 0 or its_feature == 0:
        return bool(feature < its_feature)
    return bool(_is_before(names.concepts + feature, names.concepts + its_feature, names))


@jit
def best_places(neuron: Integers, value: npt.NDArray[np.floating], count: int, names: NameTable) -> Integers:
    """Return the places of the neurons with the largest values; see `NameOrder.best`."""
    places = np.empty(count, np.int64)
    kept = 0
    for place in range(len(neuron)):
        at = kept
        while at > 0 and (
            value[place] > value[places[at - 1]]
            or (value[place] == value[places[at - 1]] and precedes(neuron[place], neuron[places[at - 1]], names))
        ):
            at -= 1
        if at == count:
            continue
        kept = min(kept + 1, count)
        for later in range(kept - 1, at, -1):
            places[later] = places[later - 1]
        places[at] = place
    return places[:kept]
