"""Merge the rows of sources with those of their auxiliary neurons.

Covers: rows that have the connections of a neuron and, weighted, those of its auxiliary source
neurons, as a source of rows in front of another one.
Does not cover: which auxiliary neurons a feature has (`giaann_dask.text.attachments`) and the steps
(`giaann_dask.inference.v2.session`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from giaann_dask.inference.rows.source import RowSource
from giaann_dask.keys import FEATURE_MASK, pack_neuron
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.run import Row, Run
from giaann_dask.spec import FEATURE_BITS
from giaann_dask.text.attachments import Attachments

# Connections of auxiliary neurons that a process keeps, about; 16 bytes each.
_KEPT = 1 << 22


class AuxiliaryRows:
    """Rows with what auxiliary neurons add to them.

    Parameters
    ----------
    rows : RowSource
        Connections of the network, with their strengths.
    attachments : Attachments
        Auxiliary neurons of its features; they sum up neurons of the source's own column.
    """

    def __init__(self, rows: RowSource, attachments: Attachments) -> None:
        self._rows, self._attachments = rows, attachments
        self._sums: OrderedDict[tuple[int, int], Row] = OrderedDict()
        self._kept = 0

    def row(self, neuron: int) -> Row | None:
        """Return a row as `RowSource.row` does; what is added is rounded to units of strength."""
        column, feature = neuron >> FEATURE_BITS, neuron & FEATURE_MASK
        own, groups = self._rows.row(neuron), self._attachments.groups_of(feature)
        if not groups:
            return own
        runs = [] if own is None else [_as_run(own)]
        for group in groups:
            total = self._sum(column, group)
            units = np.rint(total.strength * self._attachments.weight[group]).astype(np.int64)
            # What is less than half a unit is nothing.
            runs.append(_as_run(Row(total.target[units > 0], units[units > 0])))
        return merge_runs(runs).row(0)

    def prefetch(self, neurons: Iterable[int]) -> None:
        """Ask for rows ahead of need where that can be done; those of members are not among them."""
        prefetch = getattr(self._rows, "prefetch", None)
        if prefetch is not None:
            prefetch(neurons)

    def _sum(self, column: int, group: int) -> Row:
        """Return the sum of the rows of an auxiliary neuron's members in a column."""
        known = self._sums.get((column, group))
        if known is not None:
            self._sums.move_to_end((column, group))
            return known
        members: list[int] = pack_neuron(column, self._attachments.members_of(group)).tolist()
        self.prefetch(members)
        many = getattr(self._rows, "rows", None)
        found = many(members) if callable(many) else {member: self._rows.row(member) for member in members}
        total = merge_runs([_as_run(row) for row in found.values() if row is not None]).row(0)
        total = Row(np.zeros(0, np.int64), np.zeros(0, np.int64)) if total is None else total
        self._sums[column, group] = total
        self._kept += len(total.target)
        while self._kept > _KEPT and len(self._sums) > 1:
            self._kept -= len(self._sums.popitem(last=False)[1].target)
        return total


def _as_run(row: Row) -> Run:
    """Return a row as a run of one source."""
    if not len(row.target):
        return Run.empty()
    return Run(np.zeros(1, np.int64), np.array([0, len(row.target)], np.int64), row.target, row.strength)
