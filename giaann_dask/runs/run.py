"""Define a run: the immutable, sorted, aggregated connections of some source neurons.

This is the decoded table, with its checks, its size and the lookup of the row of one source neuron. `packing` has the
compressed form, and `merging` merges runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import StrengthOverflowError
from giaann_dask.lazy import compiled, runs_plainly
from giaann_dask.lazy import numba_types as nb

_Item = TypeVar("_Item")

# Connections that NumPy copies in a microsecond, about.
_PER_US = 30
BLOCK = 1 << 16
"""Connections, or targets, that are worked at a time: with their sums they fit into a second-level cache."""


class Row(NamedTuple):
    """The outgoing connections of one source neuron.

    Attributes
    ----------
    target : ndarray
        Target keys (see `giaann_dask.keys`), ascending, int64, shape ``(connections,)``.
    strength : ndarray
        Strength units, int32 or int64, shape ``(connections,)``.
    """

    target: npt.NDArray[np.int64]
    strength: npt.NDArray[np.signedinteger]


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Connections sorted by source neuron, then by target key; every pair at most once.

    Attributes
    ----------
    source : ndarray
        Source neuron keys, strictly ascending, int64, shape ``(rows,)``.
    pointer : ndarray
        Row r has the connections ``pointer[r]:pointer[r + 1]``; int64, shape ``(rows + 1,)``.
    target : ndarray
        Target keys, strictly ascending within a row, int64, shape ``(connections,)``.
    strength : ndarray
        Strength units, positive, shape ``(connections,)``; int32 where all fit, else int64.
    """

    source: npt.NDArray[np.int64]
    pointer: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    strength: npt.NDArray[np.signedinteger]

    @classmethod
    def empty(cls) -> Run:
        """Return a run without connections."""
        none = np.zeros(0, np.int64)
        return cls(none, np.zeros(1, np.int64), none, np.zeros(0, np.int32))

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self.target)

    @property
    def rows(self) -> int:
        """Number of source neurons."""
        return len(self.source)

    @property
    def nbytes(self) -> int:
        """Bytes of the four arrays."""
        return self.source.nbytes + self.pointer.nbytes + self.target.nbytes + self.strength.nbytes

    def row(self, neuron: int) -> Row | None:
        """Return the row of a source neuron, as views, or None when it has no connections.

        Examples
        --------
        >>> Run.empty().row(5) is None
        True
        """
        at = int(np.searchsorted(self.source, neuron))
        if at == len(self.source) or int(self.source[at]) != neuron:
            return None
        begin, end = int(self.pointer[at]), int(self.pointer[at + 1])
        return Row(self.target[begin:end], self.strength[begin:end])


@dataclass(frozen=True)
class RunSize:
    """Size of a run, or of several runs of a region together.

    Attributes
    ----------
    neurons, connections : int
        Distinct neurons and connections.
    nbytes : int
        Bytes in memory; 0 where they are not needed.
    index_bytes : int
        Those of the postings among them.
    """

    neurons: int
    connections: int
    nbytes: int = 0
    index_bytes: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing was added; in profile ``contexts`` neurons have no strengths of their own."""
        return not self.neurons and not self.connections and not self.index_bytes

    def without(self, lost: RunSize) -> RunSize:
        """Return the numbers that are left without some neurons and connections."""
        return RunSize(self.neurons - lost.neurons, self.connections - lost.connections)

    @property
    def decoded_bytes(self) -> int:
        """Estimated bytes of the decoded form, which compaction needs."""
        return 12 * self.connections + 64 * self.neurons


class _AnyTable(Protocol):
    """A table in some form."""

    @property
    def nbytes(self) -> int:
        """Its bytes."""

    def __len__(self) -> int:
        """Return the number of its entries."""


_Connections = TypeVar("_Connections", bound=_AnyTable, covariant=True)
_Table = TypeVar("_Table", bound=_AnyTable, covariant=True)


class RegionTables(NamedTuple, Generic[_Connections, _Table]):
    """Tables of a run of one region: its connections, the strengths of its neurons, and where these occur.

    Attributes
    ----------
    connections : Run, PackedRun or PairTable
        Connections of the region's source neurons.
    neurons : Run or PackedRun
        Strengths of the region's neurons themselves, in whole counts: a row per neuron, whose
        target keys name a segment and a branch and no neuron.
    postings : Run, PackedRun or None
        Where the region's neurons occur (see `giaann_dask.runs.postings`), of networks with this index.
    """

    connections: _Connections
    neurons: _Table
    postings: _Table | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return self.connections.nbytes + self.neurons.nbytes + self.index_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of the postings; 0 where there are none."""
        return self.postings.nbytes if self.postings is not None and len(self.postings) else 0


class RegionRun(RegionTables[Run, Run]):
    """Decoded tables of a run of one region."""

    __slots__ = ()


def join_ranges(begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers of ranges, one range after the other, such as the places of some rows' connections.

    Examples
    --------
    >>> join_ranges(np.array([7, 2]), np.array([2, 3])).tolist()
    [7, 8, 2, 3, 4]
    """
    ends = np.cumsum(lengths)
    numbers: npt.NDArray[np.int64] = np.repeat(begins - ends + lengths, lengths)
    numbers += np.arange(len(numbers))
    return numbers


def pointer_of(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return where rows of some lengths begin, and where the last one ends.

    Examples
    --------
    >>> pointer_of(np.array([2, 3])).tolist()
    [0, 2, 5]
    """
    pointer = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=pointer[1:])
    return pointer


def row_blocks(
    pointer: npt.NDArray[np.int64], size: int, begin: int = 0, end: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield where blocks of rows begin and end that have about so many entries each, and one row at least.

    Examples
    --------
    >>> [*row_blocks(np.array([0, 2, 3, 9, 9]), 3)]
    [(0, 2), (2, 3), (3, 4)]
    """
    last = len(pointer) - 1 if end is None else end
    while begin < last:
        stop = int(np.searchsorted(pointer, pointer[begin] + size, "right")) - 1
        stop = min(max(stop, begin + 1), last)
        yield begin, stop
        begin = stop


def rows_between(run: Run, begin: int, end: int) -> Run:
    """Return the rows of a run from one place to another, as views but for their pointers.

    Examples
    --------
    >>> run = Run(np.array([5, 7]), np.array([0, 2, 3]), np.array([1, 3, 4]), np.array([1, 1, 1], np.int32))
    >>> rows_between(run, 1, 2).pointer.tolist(), rows_between(run, 1, 2).target.tolist()
    ([0, 1], [4])
    """
    first, last = run.pointer[begin], run.pointer[end]
    pointer = run.pointer[begin : end + 1] - first
    return Run(run.source[begin:end], pointer, run.target[first:last], run.strength[first:last])


def cut_rows(run: Run, size: int) -> Iterator[Run]:
    """Yield the connections of a run in parts of at most so many, as views; rows may be cut.

    Examples
    --------
    >>> run = Run(np.array([5, 7]), np.array([0, 2, 3]), np.array([1, 3, 4]), np.array([1, 1, 1], np.int32))
    >>> [(part.source.tolist(), part.target.tolist()) for part in cut_rows(run, 1)]
    [([5], [1]), ([5], [3]), ([7], [4])]
    """
    for low in range(0, len(run), size):
        high = min(low + size, len(run))
        first, last = (int(row) - 1 for row in np.searchsorted(run.pointer, [low + 1, high]))
        pointer = np.clip(run.pointer[first : last + 2], low, high) - low
        yield Run(run.source[first : last + 1], pointer, run.target[low:high], run.strength[low:high])


def select_connections(run: Run, kept: npt.NDArray[np.bool_]) -> Run:
    """Return some connections of a run, without the rows that have none of them.

    Parameters
    ----------
    run : Run
        Strengths of those that are kept are positive.
    kept : ndarray
        Which are kept; bool, shape ``(connections,)``.

    Examples
    --------
    >>> run = Run(np.array([3, 5]), np.array([0, 1, 3]), np.array([1, 1, 2]), np.array([7, 8, 9]))
    >>> chosen = select_connections(run, np.array([False, False, True]))
    >>> chosen.source.tolist(), chosen.pointer.tolist(), chosen.target.tolist()
    ([5], [0, 1], [2])
    """
    lengths = np.diff(pointer_of(kept)[run.pointer])
    pointer = pointer_of(lengths[lengths > 0])
    return Run(run.source[lengths > 0], pointer, run.target[kept], narrow_strength(run.strength[kept].astype(np.int64)))


def select_rows(run: Run, rows: npt.NDArray[np.int64]) -> Run:
    """Return some rows of a run, given by their places, in their order.

    Examples
    --------
    >>> run = Run(np.array([3, 5]), np.array([0, 1, 3]), np.array([1, 1, 2]), np.ones(3, np.int32))
    >>> select_rows(run, np.array([1])).target.tolist()
    [1, 2]
    """
    begins = run.pointer[rows]
    pointer = pointer_of(run.pointer[rows + 1] - begins)
    if runs_plainly(int(pointer[-1]) // _PER_US):
        at = join_ranges(begins, np.diff(pointer))
        return Run(run.source[rows], pointer, run.target[at], run.strength[at])
    target, strength = np.empty(pointer[-1], np.int64), np.empty(pointer[-1], run.strength.dtype)
    _copy_rows(begins, pointer, (readable(run.target, np.int64), readable(run.strength)), target, strength)
    return Run(run.source[rows], pointer, target, strength)


def _constant(kind: Any) -> Any:
    return nb.types.Array(kind, 1, "C", readonly=True)


@compiled(
    *(
        nb.void(
            nb.int64[::1],
            nb.int64[::1],
            nb.types.Tuple((_constant(nb.int64), _constant(kind))),
            nb.int64[::1],
            kind[::1],
        )
        for kind in (nb.int32, nb.int64)
    )
)
def _copy_rows(
    begins: npt.NDArray[np.int64],
    pointer: npt.NDArray[np.int64],
    connections: tuple[npt.NDArray[np.int64], npt.NDArray[np.signedinteger[Any]]],
    target: npt.NDArray[np.int64],
    strength: npt.NDArray[np.signedinteger[Any]],
) -> None:
    """Copy the connections of rows that begin at some places to where a pointer says."""
    targets, strengths = connections
    for row in range(len(begins)):
        for to in range(pointer[row], pointer[row + 1]):
            at = begins[row] + to - pointer[row]
            target[to], strength[to] = targets[at], strengths[at]


def split_rows(
    source: npt.NDArray[np.int64],
    pointer: npt.NDArray[np.int64],
    pivot: int,
    upper: bool,
    reached: Callable[[slice], npt.NDArray[np.bool_]] | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the part of some rows below a source, or the part from it on.

    Parameters
    ----------
    source, pointer : ndarray
        As those of a run.
    pivot : int
        The source.
    upper : bool
        Which part.
    reached : callable, optional
        Returns which entries of the pivot's own row belong to the upper part, given their places; all by default.

    Returns
    -------
    source, pointer : ndarray
        Of the part, copied, without a row that has no entry in it.
    kept : ndarray
        Which entries are in it; bool, one for each.

    Examples
    --------
    >>> rows = np.array([3, 5]), np.array([0, 1, 3])
    >>> split_rows(*rows, 5, False, lambda row: np.array([False, True]))
    (array([3, 5]), array([0, 1, 2]), array([ True,  True, False]))
    """
    at, after = np.searchsorted(source, [pivot, pivot + (reached is not None)]).tolist()
    row = slice(int(pointer[at]), int(pointer[after]))
    kept = np.zeros(int(pointer[-1]), np.bool_)
    kept[row.stop :] = True
    if reached is not None and at < after:
        kept[row] = reached(row)
    if not upper:
        np.logical_not(kept, out=kept)
    lengths = np.diff(pointer)
    own = np.count_nonzero(kept[row])
    lengths[at:after] = own
    rows = slice(at if own else after, None) if upper else slice(0, after if own else at)
    return source[rows].copy(), pointer_of(lengths[rows]), kept


def divide_rows(run: Run, part: npt.NDArray[np.int64]) -> dict[int, Run]:
    """Return the rows of a run by the part that each belongs to, such as its region.

    Parameters
    ----------
    run : Run
        Which is not changed.
    part : ndarray
        Number of the part of each row, 0 or more; int64, shape ``(rows,)``.

    Returns
    -------
    dict of int to Run
        Parts that have rows, in order.

    Examples
    --------
    >>> run = Run(np.array([3, 5]), np.array([0, 1, 3]), np.array([1, 1, 2]), np.ones(3, np.int32))
    >>> {part: rows.source.tolist() for part, rows in divide_rows(run, np.array([4, 0])).items()}
    {0: [5], 4: [3]}
    """
    sizes = np.bincount(part)
    # Numbers of 16 bits are sorted by their digits, in a tenth of the time.
    order = np.argsort(part.astype(np.uint16) if len(sizes) <= 1 << 16 else part, kind="stable")
    ends = np.cumsum(sizes)
    return {
        each: select_rows(run, order[ends[each] - sizes[each] : ends[each]]) for each in np.flatnonzero(sizes).tolist()
    }


def readable(array: npt.NDArray[Any], dtype: type[np.integer[Any]] | None = None) -> npt.NDArray[Any]:
    """Return a read-only view for compiled code; a copy only where the array is not aligned or of another type."""
    view = np.require(array, dtype, ["C", "A"]).view()
    view.flags.writeable = False
    return view


def narrow_strength(strength: npt.NDArray[np.int64]) -> npt.NDArray[np.signedinteger]:
    """Return strengths as int32 when all of them fit, else unchanged as int64."""
    narrow = np.iinfo(np.int32)
    if len(strength) == 0 or (int(strength.max()) <= narrow.max and int(strength.min()) >= narrow.min):
        return strength.astype(np.int32)
    return strength


def fold_smallest(items: Iterable[_Item], size: Callable[[_Item], int], add: Callable[[_Item, _Item], _Item]) -> _Item:
    """Add up items, at least one, the two smallest first, which rewrites as little as possible.

    Examples
    --------
    >>> fold_smallest(["ccc", "a", "bb"], len, lambda one, other: f"({one}+{other})")
    '(ccc+(a+bb))'
    """
    heap = [(size(item), number, item) for number, item in enumerate(items)]
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        item = add(heapq.heappop(heap)[2], heapq.heappop(heap)[2])
        heapq.heappush(heap, (size(item), number, item))
        number += 1
    return heap[0][2]


def require_fits(fits: bool, cause: str = "adding two runs makes") -> None:
    """Raise a `StrengthOverflowError` where a sum does not fit into 64 bits."""
    if not fits:
        raise StrengthOverflowError(
            f"{cause} a strength of more than 64 bits",
            f"sums up to {np.iinfo(np.int64).max}",
            "train a new network, in Python with fewer strength_bits",
        )
