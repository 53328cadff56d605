"""Sum sorted keys, one integer for each pair and segment, to a table of connections, where the keys are.

Increments of equal connections are summed and identifiers local to the batch become target keys, as torch operations.
`connections` makes and sorts the keys; the CPU has another way (`pairs`) to the same integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from giaann_dask.device import torch, upload
from giaann_dask.keys import Integers
from giaann_dask.spec import BRANCH_BITS, NEURON_BITS


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


def sum_on_device(keys: torch.Tensor, neurons: Integers, increments: Integers, layout: KeyLayout) -> Connections:
    """Sum the increments of equal connections where the keys are, and bring back the sums only.

    Parameters
    ----------
    keys : torch.Tensor
        Sorted keys, int64, on any device.
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
