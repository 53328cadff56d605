"""Define the tables that compiled steps of many sequences read and write, and hold the rows that these address.

The tables are the rules as integers, rows by their addresses, and all steps of the sequences of a batch, one row for
each; `v1.pull_batch` fills them in. The rows of distinct neurons are fetched together from any source of rows, and
those that no sequence needs any more are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import SEGMENT_SHIFT, Integers
from giaann_dask.models.columns.state.activation import drives_of
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.name_order import NameOrder, NameTable
from giaann_dask.rows.source import RowSource, require_layout
from giaann_dask.runs.run import Row, join_ranges
from giaann_dask.spec import Specification

Floats: TypeAlias = npt.NDArray[np.float32]
Small: TypeAlias = npt.NDArray[np.int32]
Bytes: TypeAlias = npt.NDArray[np.int8]
NONE = -1
INTERNAL = 2
GOES_ON, NO_CONNECTIONS, NO_CANDIDATES, REJECTED = range(4)


class KernelRules(NamedTuple):
    """Values of a specification and of options that the kernels read, as integers.

    Attributes
    ----------
    segments, columns, branches : int
        All segments, the column segments among them, and branches.
    timing : int
        0 none, 1 biased, 2 exact.
    boolean_from : int
        First segment whose entries are 0 or 1; `segments` for none.
    sequential : bool
        Whether an entry needs the one before it.
    drives : ndarray
        Drive by activity, float32, shape ``(branches + 1,)``.
    names : NameTable
        Names that order the neurons.
    """

    segments: int
    columns: int
    branches: int
    timing: int
    boolean_from: int
    sequential: bool
    drives: Floats
    names: NameTable

    @classmethod
    def of(cls, specification: Specification, options: InferenceOptions) -> KernelRules:
        """Return the rules of a network and of options."""
        segments, columns = specification.segments, specification.column_segments
        return cls(
            segments,
            columns,
            specification.branches,
            ("none", "biased", "exact").index(options.timing),
            options.boolean_from(columns, segments),
            options.sequential,
            np.array(drives_of(specification.branches), np.float32),
            NameOrder().table,
        )


class RowTable(NamedTuple):
    """Addresses of rows in memory, by a row's index in the table.

    Attributes
    ----------
    address : ndarray
        Of the first target key, int64, shape ``(rows,)``; who fills it in keeps the arrays.
    bounds : ndarray
        Where each segment begins, and the end, int64, shape ``(rows, segments + 1)``.
    """

    address: Integers
    bounds: Integers


class Slots(NamedTuple):
    """All steps of the sequences of a batch, a line for each; step w predicts token w.

    Attributes
    ----------
    source : ndarray
        Source neuron of step w, int64, shape ``(slots, steps + 1)``.
    row : ndarray
        Its row's place in the table, `NONE` without connections; int64, the same shape.
    mode : ndarray
        Its mode, 0 none, 1 delimiter, 2 internal; int8, the same shape.
    activity : ndarray
        Its active branches, negative before they are known; int8, the same shape.
    nouns : ndarray
        Concepts among tokens 0 to w, int32, shape ``(slots, steps)``, as all that follow.
    drive : ndarray
        What the source of step w sent, float32.
    burst : ndarray
        Neuron burst at the end of step w, or `NONE`; int64.
    predicted, stop : ndarray
        Neuron predicted or `NONE`, int64, and why none was, int8.
    candidates, ties, value : ndarray
        How many candidates, how many with the largest value, and this value; int32, int32, float32.
    done : ndarray
        Steps done, int64, shape ``(slots,)``, as both that follow.
    seeds, given : ndarray
        Steps of the seed phase, and tokens that are known.
    feeds : ndarray
        Whether predictions are fed, bool, shape ``(slots,)``.
    bursts : ndarray
        Whether given sources are burst after the seed, too, as those of a prompt are; bool, the same shape.
    """

    source: Integers
    row: Integers
    mode: Bytes
    activity: Bytes
    nouns: Small
    drive: Floats
    burst: Integers
    predicted: Integers
    stop: Bytes
    candidates: Small
    ties: Small
    value: Floats
    done: Integers
    seeds: Integers
    given: Integers
    feeds: npt.NDArray[np.bool_]
    bursts: npt.NDArray[np.bool_]


def step_pairs(slot: Integers, begin: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Return slot and step of every step from `begin` to before `end` of some slots."""
    counts = np.maximum(end - begin, 0)
    return np.repeat(slot, counts), join_ranges(begin, counts)


def empty_slots(slots: int, steps: int) -> Slots:
    """Return slots with capacity for some steps each."""
    shape, longer = (slots, steps), (slots, steps + 1)
    return Slots(
        source=np.zeros(longer, np.int64),
        row=np.full(longer, NONE, np.int64),
        mode=np.zeros(longer, np.int8),
        activity=np.zeros(longer, np.int8),
        nouns=np.zeros(shape, np.int32),
        drive=np.zeros(shape, np.float32),
        burst=np.full(shape, NONE, np.int64),
        predicted=np.full(shape, NONE, np.int64),
        stop=np.zeros(shape, np.int8),
        candidates=np.zeros(shape, np.int32),
        ties=np.zeros(shape, np.int32),
        value=np.zeros(shape, np.float32),
        done=np.zeros(slots, np.int64),
        seeds=np.zeros(slots, np.int64),
        given=np.zeros(slots, np.int64),
        feeds=np.zeros(slots, np.bool_),
        bursts=np.zeros(slots, np.bool_),
    )


def empty_rows(rows: int, segments: int) -> RowTable:
    """Return a table with capacity for some rows."""
    return RowTable(np.zeros(rows, np.int64), np.zeros((rows, segments + 1), np.int64))


def widened(slots: Slots, steps: int) -> Slots:
    """Return the slots with capacity for more steps."""
    wide = empty_slots(len(slots.done), steps)
    arrays: zip[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = zip(slots, wide, strict=True)
    for old, new in arrays:
        new[tuple(slice(size) for size in old.shape)] = old
    return wide


class BatchRows:
    """Rows in use, and as many used before as a limit allows.

    Parameters
    ----------
    source : RowSource
        Where rows come from.
    segments, branches : int
        Of the network.
    limit_bytes : int
        Bytes of target keys after which those not in use are let go.

    Attributes
    ----------
    table : RowTable
        Addresses and segments by a row's place.
    wanted, fetched : int
        Rows asked of this, and of them those asked of the source.
    """

    def __init__(self, source: RowSource, segments: int, branches: int, limit_bytes: int) -> None:
        self._source, self._branches = source, branches
        self._limit = self._limit_now = limit_bytes
        # The key after the last segment's may not fit into 64 bits; the one before it does.
        self._starts = np.arange(segments, dtype=np.int64) << SEGMENT_SHIFT
        self._place: dict[int, int] = {}
        self._target: list[Integers] = []
        self._bytes = 0
        self.table = empty_rows(64, segments)
        self.wanted = self.fetched = 0

    def __len__(self) -> int:
        """Return the number of rows held."""
        return len(self._target)

    def target(self, place: int) -> Integers:
        """Return the target keys of a row, ascending, int64."""
        return self._target[place]

    def places(self, neurons: Integers) -> Integers:
        """Return the places of the rows of neurons, `NONE` for those without connections.

        Parameters
        ----------
        neurons : ndarray
            Neuron keys, int64; a neuron may be there more than once.
        """
        named = neurons.tolist()
        missing = [neuron for neuron in dict.fromkeys(named) if neuron not in self._place]
        self.wanted += len(named)
        if missing:
            for neuron, row in self._source.rows(missing).items():
                self._add(neuron, row)
        return np.array([self._place[neuron] for neuron in named], np.int64)

    def ask_ahead(self, neurons: Iterable[int]) -> None:
        """Request the rows of neurons that are not held, without waiting for them."""
        missing = [neuron for neuron in dict.fromkeys(neurons) if neuron not in self._place]
        if missing:
            self._source.prefetch(missing)

    def let_go(self, used: Integers) -> Integers | None:
        """Drop unused rows when there are too many.

        Parameters
        ----------
        used : ndarray
            Places of the rows in use, int64; may name `NONE` and places more than once.

        Returns
        -------
        ndarray or None
            The new place of every row by its old one, or None when all are as they were.
        """
        if self._bytes <= self._limit_now:
            return None
        kept = np.unique(used)
        kept = kept[kept >= 0]
        moved = np.full(len(self._target), NONE, np.int64)
        moved[kept] = np.arange(len(kept))
        self._target = [self._target[place] for place in kept.tolist()]
        self.table.address[: len(kept)] = self.table.address[kept]
        self.table.bounds[: len(kept)] = self.table.bounds[kept]
        self._place = {n: int(moved[p]) for n, p in self._place.items() if p >= 0 and moved[p] >= 0}
        self._bytes = sum(target.nbytes for target in self._target)
        # Those in use may alone pass the limit; then some more are held, so that this stays seldom.
        self._limit_now = max(self._limit, 2 * self._bytes)
        return moved

    def _add(self, neuron: int, row: Row | None) -> None:
        self.fetched += 1
        if row is None or not len(row.target):
            self._place[neuron] = NONE
            return
        target, place = np.ascontiguousarray(row.target, np.int64), len(self._target)
        require_layout(target, len(self._starts), self._branches)
        if place == len(self.table.address):
            address, bounds = self.table
            self.table = RowTable(np.concatenate([address, address]), np.concatenate([bounds, bounds]))
        self._place[neuron] = place
        self._target.append(target)
        self._bytes += target.nbytes
        self.table.address[place] = target.__array_interface__["data"][0]
        self.table.bounds[place, :-1] = target.searchsorted(self._starts)
        self.table.bounds[place, -1] = len(target)
