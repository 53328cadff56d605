"""Rename the neurons of packed connections and divide these by region, in blocks of rows.

The arrays of a run are decoded as narrow as they are stored. Rows are taken from them in the order of their new
sources, some that fit a processor's caches at a time, and are renamed, ordered and packed again there. `renaming` has
the new identifiers, and renames decoded runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.runs.packed_arrays import has_gaps, require_intact
from giaann_dask.runs.packing import TARGET_ARRAYS, PackedRun, decode_arrays, decode_targets
from giaann_dask.runs.renaming import Renaming, rename_targets
from giaann_dask.runs.run import join_ranges
from giaann_dask.runs.target_sets import TargetBlock, TargetSets

# Targets that are renamed in one go: with their copies they fit into a processor's second-level cache.
_BLOCK = 1 << 16


def rename_parts(
    packed: PackedRun, renaming: Renaming | None, regions_of: Callable[[Integers], Integers]
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
    given = _Rows(packed)
    source = given.source if renaming is None else renaming.neurons(given.source)
    region = regions_of(source)
    rows = np.lexsort((source, region))
    found, begins = np.unique(region[rows], return_index=True)
    for number, own in zip(found.tolist(), np.split(rows, begins[1:]), strict=False):
        yield number, _renamed_blocks(given, own, source, renaming)


def _renamed_blocks(given: _Rows, rows: Integers, source: Integers, renaming: Renaming | None) -> Iterator[TargetBlock]:
    """Yield some rows of a run with new sources, in blocks."""
    ends, begin = np.cumsum(given.row_targets[rows]), 0
    while begin < len(rows):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + _BLOCK, "right")), begin + 1)
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


class _Rows:
    """Rows of a packed run, which can be taken in any order."""

    def __init__(self, packed: PackedRun) -> None:
        self._arrays, header = decode_arrays(packed)
        self._bits, self._gaps = header["strength_bits"], has_gaps(header)
        self.source = pack_neuron(self._arrays["source_column"], self._arrays["source_feature"])
        self.row_targets = self._arrays["row_targets"].astype(np.int64)
        segments = self._arrays["target_segments"]
        intact = int(self.row_targets.max(initial=0)) <= len(segments) == int(self.row_targets.sum())
        intact = intact and int(segments.min(initial=1)) > 0
        changes = np.concatenate([np.zeros(1, np.int64), np.cumsum(_further(segments))])
        require_intact(
            intact and changes[-1] == len(self._arrays["strength_change"]), "the rows of a run contradict each other"
        )
        ends = np.cumsum(self.row_targets)
        self._begins = ends - self.row_targets
        self._changes = changes[self._begins], changes[ends]

    def take(self, rows: Integers) -> TargetBlock:
        """Return some rows, in the order given."""
        row_targets = self.row_targets[rows]
        items = join_ranges(self._begins[rows], row_targets)
        *fields, segments, strength = (self._arrays[name][items] for name in (*TARGET_ARRAYS, "strength"))
        begins, ends = (edges[rows] for edges in self._changes)
        change = self._arrays["strength_change"][join_ranges(begins, ends - begins)]
        sets = decode_targets(row_targets, fields, (segments, strength, change), gaps=self._gaps)
        return TargetBlock(self.source[rows], sets, self._bits)


def _further(segments: npt.NDArray[np.unsignedinteger]) -> Integers:
    """Return the number of changes of each target, int64."""
    further: Integers = np.bitwise_count(segments).astype(np.int64) - 1
    return further
