"""Sum sorted keys, one integer for each pair and segment, to a table of connections.

Increments of equal connections are summed and identifiers local to the batch become target keys, in one compiled pass
on the CPU or as torch operations on a device; both give the same integers. `connections` makes and sorts the keys.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np

from giaann_dask.device import torch, upload
from giaann_dask.keys import Integers
from giaann_dask.lazy import compiled
from giaann_dask.spec import BRANCH_BITS, NEURON_BITS

_KEYS = nb.types.Array(nb.int64, 1, "C", readonly=True)
_OUT = nb.types.Array(nb.int64, 1, "C")


class KeyLayout(NamedTuple):
    """Bit positions of (source, segment, target, branch, distance) in a key, lowest last.

    Attributes
    ----------
    neuron_bits, segment_bits, branch_bits, distance_bits : int
        Widths; source and target have `neuron_bits` each. The distance is the index of an increment:
        where increments differ by class, the class is its upper bits.
    """

    neuron_bits: int
    segment_bits: int
    branch_bits: int
    distance_bits: int

    @property
    def branch_shift(self) -> int:
        """Position of the branch."""
        return self.distance_bits

    @property
    def target_shift(self) -> int:
        """Position of the target neuron."""
        return self.branch_shift + self.branch_bits

    @property
    def segment_shift(self) -> int:
        """Position of the segment."""
        return self.target_shift + self.neuron_bits

    @property
    def source_shift(self) -> int:
        """Position of the source neuron."""
        return self.segment_shift + self.segment_bits

    @property
    def bits(self) -> int:
        """Width of a key."""
        return self.source_shift + self.neuron_bits


class Connections(NamedTuple):
    """Aggregated connections of a batch, by batch-local source.

    Attributes
    ----------
    source : ndarray
        Batch-local number of each row's source, ascending; int64, shape ``(rows,)``.
    pointer : ndarray
        Where each row begins; int64, shape ``(rows + 1,)``.
    target, strength : ndarray
        Target keys and strength units; int64, shape ``(connections,)``.
    """

    source: Integers
    pointer: Integers
    target: Integers
    strength: Integers


def sum_connections(keys: Integers, neurons: Integers, increments: Integers, layout: KeyLayout) -> Connections:
    """Sum the increments of equal connections.

    Parameters
    ----------
    keys : ndarray of int64
        Sorted keys.
    neurons : ndarray of int64
        Neuron key of each batch-local target number.
    increments : ndarray of int64
        Strength units by distance (and class).
    layout : KeyLayout
        Bit positions of the keys.

    Returns
    -------
    Connections
    """
    rows, count = _count(keys, layout.source_shift, layout.distance_bits)
    source, pointer = np.empty(rows, np.int64), np.empty(rows + 1, np.int64)
    target, strength = np.empty(count, np.int64), np.empty(count, np.int64)
    pointer[rows] = count
    bits = np.array(layout[:4], np.int64)
    _fill(keys, neurons, increments, bits, source, pointer, target, strength)
    return Connections(source, pointer, target, strength)


def sum_on_device(keys: torch.Tensor, neurons: Integers, increments: Integers, layout: KeyLayout) -> Connections:
    """Sum the increments of equal connections where the keys are, and bring back the sums only.

    Parameters and result are those of `sum_connections`; the keys are a sorted tensor on any device.
    """
    if len(keys) == 0:
        none = np.zeros(0, np.int64)
        return Connections(none, np.zeros(1, np.int64), none, none)
    connection, counts = torch.unique_consecutive(keys >> layout.distance_bits, return_counts=True)
    weights = upload(torch.from_numpy(increments), keys.device)[keys & ((1 << layout.distance_bits) - 1)]
    ends = torch.cumsum(counts, 0)
    totals = torch.cumsum(weights, 0)[ends - 1]
    strength = torch.diff(totals, prepend=totals.new_zeros(1))
    shift = layout.distance_bits
    source, rows = torch.unique_consecutive(connection >> (layout.source_shift - shift), return_counts=True)
    local = (connection >> (layout.target_shift - shift)) & ((1 << layout.neuron_bits) - 1)
    segment = (connection >> (layout.segment_shift - shift)) & ((1 << layout.segment_bits) - 1)
    neuron = upload(torch.from_numpy(neurons), keys.device)[local]
    branch = connection & ((1 << layout.branch_bits) - 1)
    target = (((segment << NEURON_BITS) | neuron) << BRANCH_BITS) | branch
    pointer = torch.cumsum(torch.cat([rows.new_zeros(1), rows]), 0)
    return Connections(*(part.cpu().numpy() for part in (source, pointer, target, strength)))


@compiled(nb.types.UniTuple(nb.int64, 2)(_KEYS, nb.int64, nb.int64))
def _count(keys, source_shift, distance_bits):  # type: ignore[no-untyped-def]
    """Count rows and connections of sorted keys."""
    rows = connections = 0
    previous = np.int64(-1)
    for key in keys:
        connection = key >> distance_bits
        if connection != previous >> distance_bits or previous < 0:
            connections += 1
            if previous < 0 or key >> source_shift != previous >> source_shift:
                rows += 1
        previous = key
    return rows, connections


@compiled(nb.void(_KEYS, _KEYS, _KEYS, _KEYS, _OUT, _OUT, _OUT, _OUT))
def _fill(keys, neurons, increments, bits, source, pointer, target, strength):  # type: ignore[no-untyped-def]
    """Write rows and connections of sorted keys into arrays of the counted sizes."""
    neuron_bits, segment_bits, branch_bits, distance_bits = bits[0], bits[1], bits[2], bits[3]
    local_shift = branch_bits
    segment_shift = local_shift + neuron_bits
    source_shift = segment_shift + segment_bits
    branch_mask = (np.int64(1) << branch_bits) - 1
    local_mask = (np.int64(1) << neuron_bits) - 1
    segment_mask = (np.int64(1) << segment_bits) - 1
    distance_mask = (np.int64(1) << distance_bits) - 1
    row = at = np.int64(-1)
    previous = np.int64(-1)
    for key in keys:
        connection = key >> distance_bits
        if connection != previous:
            at += 1
            if previous < 0 or connection >> source_shift != previous >> source_shift:
                row += 1
                source[row] = connection >> source_shift
                pointer[row] = at
            neuron = neurons[(connection >> local_shift) & local_mask]
            segment = (connection >> segment_shift) & segment_mask
            target[at] = (((segment << NEURON_BITS) | neuron) << BRANCH_BITS) | (connection & branch_mask)
            strength[at] = 0
            previous = connection
        strength[at] += increments[key & distance_mask]
