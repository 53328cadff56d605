"""Number the distinct targets of a large table, if these are hashes, so that each connection has a short number.

A hash of 51 bits takes 51 bits wherever it stands, and the words of a network of words stand in many rows: so each is
stored once, in the order of how often it occurs, and connections have its place there. `giaann_dask.runs.packing`
stores both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.lazy import compiled
from giaann_dask.lazy import numba_types as nb
from giaann_dask.spec import MAXIMUM_CONCEPTS, NEURON_BITS

# Smaller tables have their targets as they are: two more arrays take more bytes and requests than they save.
LEAST_TARGETS = 1 << 16
# Columns as large as this are parts of hashes.
HASHED = MAXIMUM_CONCEPTS // 2
# Lowest bits of a number, which have an array of their own: two narrow arrays are compressed better than a wide one.
LOW_BITS = 16
_LOW = (1 << LOW_BITS) - 1
# Greatest count that is sorted as one number with a name.
_OFTEN = (1 << (63 - NEURON_BITS)) - 1
# The fewest slots of the hash table.
_SLOTS = 1 << 16

Columns = Sequence[npt.NDArray[Any]]


class NumberedTargets(NamedTuple):
    """Targets by number.

    Attributes
    ----------
    high, low : list of ndarray
        The number of each target without its lowest 16 bits, and these; unsigned, piece after piece.
    names : ndarray
        The targets by number: the most frequent ones first, equal ones ascending; int64.
    """

    high: list[npt.NDArray[Any]]
    low: list[npt.NDArray[Any]]
    names: Integers


def number_targets(columns: Columns, features: Columns) -> NumberedTargets | None:
    """Give a number to each target neuron of a table, or return None where that does not save bytes.

    Parameters
    ----------
    columns, features : sequence of ndarray
        Of each target, piece after piece; unsigned integers.
    """
    targets = sum(map(len, columns))
    if targets < LEAST_TARGETS or max(int(piece.max(initial=0)) for piece in columns) < HASHED:
        return None
    table, numbers = _Numbering(), []
    for column, feature in zip(columns, features, strict=True):
        numbers.append(table.number(pack_neuron(column, feature)))
        if table.used > targets // 2:
            return None
    names, counts = table.names[: table.used], table.counts[: table.used]
    order = _order_of(names, counts)
    place = np.empty(len(order), np.uint32)
    place[order] = np.arange(len(order), dtype=np.uint32)
    kind = np.min_scalar_type(len(order) >> LOW_BITS)
    high, low = [], []
    for piece in numbers:
        placed = place[piece]
        high.append((placed >> LOW_BITS).astype(kind))
        low.append((placed & _LOW).astype(np.uint16))
    return NumberedTargets(high, low, names[order])


def _order_of(names: Integers, counts: Integers) -> Integers:
    """Return the order of names, the most frequent ones first, equal ones ascending.

    Most counts fit one number together with a name, and sorting by one number takes a third of the time.
    """
    order = np.argsort(((_OFTEN - np.minimum(counts, _OFTEN)) << NEURON_BITS) | names)
    often = order[: np.count_nonzero(counts >= _OFTEN)]
    order[: len(often)] = often[np.lexsort((names[often], -counts[often]))]
    return order


class _Numbering:
    """Numbers of keys in the order in which they come, with how often each came."""

    def __init__(self) -> None:
        self.used = 0
        self.names, self.counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._slots = np.zeros(0, np.int32)

    def number(self, keys: Integers) -> npt.NDArray[np.int32]:
        """Return the number of each key; new ones are added."""
        self._reserve(self.used + len(keys))
        numbers = np.empty(len(keys), np.int32)
        self.used = _number(keys, self._slots, self.names, self.counts, numbers, self.used)
        return numbers

    def _reserve(self, most: int) -> None:
        """Grow the arrays and the hash table to hold so many names."""
        if most > len(self.names):
            more = np.zeros(max(len(self.names), most - len(self.names)), np.int64)
            self.names, self.counts = (np.concatenate([each, more]) for each in (self.names, self.counts))
        if 2 * most > len(self._slots):
            self._slots = np.full(max(_SLOTS, 1 << (2 * most - 1).bit_length()), -1, np.int32)
            names, counts = self.names[: self.used].copy(), self.counts[: self.used].copy()
            _number(names, self._slots, self.names, self.counts, np.empty(self.used, np.int32), 0)
            self.counts[: self.used] = counts


@compiled(nb.int64(nb.int64[::1], nb.int32[::1], nb.int64[::1], nb.int64[::1], nb.int32[::1], nb.int64))
def _number(
    keys: Integers,
    slots: npt.NDArray[np.int32],
    names: Integers,
    counts: Integers,
    numbers: npt.NDArray[np.int32],
    used: int,
) -> int:
    """Find the number of each key, which is a hash already, and count it; return how many names there are then."""
    last = len(slots) - 1
    for at in range(len(keys)):
        key = keys[at]
        slot = (key ^ (key >> 25)) & last
        while slots[slot] >= 0 and names[slots[slot]] != key:
            slot = (slot + 1) & last
        if slots[slot] < 0:
            slots[slot], names[used], counts[used] = used, key, 0
            used += 1
        numbers[at] = slots[slot]
        counts[slots[slot]] += 1
    return used
