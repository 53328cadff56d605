"""Regions: which source neurons belong together, and the growing list of a region's runs.

Covers: placement of neurons in regions, and the logarithmic method by which a region's runs are
compacted: a round adds one run of rank 0, and two runs of the same rank become one of the next,
so each connection is rewritten a logarithmic number of times and the task graph is known without
knowing any size. Does not cover: the adding itself (`merging`) and which worker holds a region
(`giaann_dask.training`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from giaann_dask.network.keys import unpack_neuron
from giaann_dask.spec import Specification

Handle = TypeVar("Handle")

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Placement:
    """Deals source neurons to regions by a hash of their concept column.

    Attributes
    ----------
    regions : int
        Number of regions.

    Examples
    --------
    >>> Placement(4).regions_of(np.array([0, 1, 2])).tolist()
    [0, 0, 0]
    """

    regions: int

    @classmethod
    def of(cls, specification: Specification) -> Placement:
        """Return the placement that a specification names."""
        return cls(specification.regions)

    def regions_of(self, neuron: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the region of each neuron key; a column is never divided.

        Parameters
        ----------
        neuron : array_like of int64
            Neuron keys.

        Returns
        -------
        ndarray of int64
            Numbers from 0 to ``regions - 1``. The high bits of a multiplicative hash, which spread
            consecutive columns evenly.
        """
        column, _ = unpack_neuron(neuron)
        mixed = (column.astype(np.uint64) * _MULTIPLIER) >> np.uint64(32)
        return ((mixed * np.uint64(self.regions)) >> np.uint64(32)).astype(np.int64)

    def region_of(self, neuron: int) -> int:
        """Return the region of one neuron key."""
        return int(self.regions_of(np.array([neuron]))[0])


@dataclass(frozen=True)
class RankedRun(Generic[Handle]):
    """A run of a region, by whatever stands for it (a value, a future, a stored identity).

    Attributes
    ----------
    rank : int
        The run holds about ``2 ** rank`` rounds.
    handle : Handle
        What stands for the run.
    """

    rank: int
    handle: Handle


@dataclass(frozen=True)
class Compaction(Generic[Handle]):
    """What adding a run to a region asks for.

    Attributes
    ----------
    kept : tuple of RankedRun
        Runs that stay as they are, of falling rank.
    merged : tuple of Handle
        Runs to be added up into one, oldest first; a single one needs no work.
    rank : int
        Rank of the result.
    """

    kept: tuple[RankedRun[Handle], ...]
    merged: tuple[Handle, ...]
    rank: int


def plan_compaction(runs: tuple[RankedRun[Handle], ...], added: Handle) -> Compaction[Handle]:
    """Plan how a region takes one more run, as a binary counter takes one more bit.

    Parameters
    ----------
    runs : tuple of RankedRun
        The region's runs, of falling rank.
    added : Handle
        The new run, of rank 0.

    Returns
    -------
    Compaction

    Examples
    --------
    >>> plan = plan_compaction((RankedRun(2, "a"), RankedRun(1, "b"), RankedRun(0, "c")), "d")
    >>> plan.kept, plan.merged, plan.rank
    ((), ('a', 'b', 'c', 'd'), 3)
    """
    kept, rank = list(runs), 0
    merged = [added]
    while kept and kept[-1].rank <= rank:
        top = kept.pop()
        merged.insert(0, top.handle)
        rank = max(rank, top.rank) + 1
    return Compaction(tuple(kept), tuple(merged), rank)
