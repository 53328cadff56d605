"""Replay what a sequence does to one neuron, which does not depend on any other target.

The operations of `giaann_dask.models.columns.state.activation.ActivationState` in the same order and precision, on the
few entries of a neuron. Its arrays take several microseconds for each operation, however few these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from giaann_dask.models.columns.state.activation import Layout, Pulse
from giaann_dask.models.columns.state.inference_options import InferenceOptions

# Segment and branch.
Entry: TypeAlias = tuple[int, int]
_ZERO, _ONE = np.float32(0), np.float32(1)


class NeuronHistory:
    """State of one neuron in a sequence (contract, section 8).

    Parameters
    ----------
    layout : Layout
        Of the network.
    options : InferenceOptions
        Rules of inference.
    """

    def __init__(self, layout: Layout, options: InferenceOptions) -> None:
        self._columns, self._options = layout.column_segments, options
        self._boolean_from = options.boolean_from(layout.column_segments, len(layout.starts))
        self._last = (layout.last_segment, 0)
        self._values: dict[Entry, np.float32] = {}
        self._times: dict[Entry, int] = {}
        # Entries that were burst since the last row.
        self._pending: list[Entry] = []

    def value(self, entry: Entry) -> np.float32:
        """Return the value of an entry, 0 for a missing one."""
        return self._values.get(entry, _ZERO)

    def burst(self) -> None:
        """Add 1 to branch 0 of the last segment."""
        self._values[self._last] = self.value(self._last) + _ONE
        self._pending.append(self._last)

    def deactivate(self) -> None:
        """Set the strongest branch to 0; the lowest of equal ones."""
        sums: dict[int, np.float32] = {}
        for segment, branch in sorted(self._values):
            sums[branch] = sums.get(branch, _ZERO) + self._values[segment, branch]
        strongest = max(sorted(sums), key=lambda branch: sums[branch], default=0)
        self._values |= {entry: _ZERO for entry in self._values if entry[1] == strongest}

    def propagate(self, entries: Sequence[Entry], pulse: Pulse) -> list[float]:
        """Push the part of a row that ends at the neuron; return by how much each entry rises.

        Gating and timing read the state, for all connections at once, as it was before the step.
        """
        before = [self.value(entry) for entry in entries]
        kept, drive = [entry for entry in entries if self._passes(entry, pulse)], np.float32(pulse.drive)
        for entry in kept:
            self._values[entry] = self.value(entry) + drive
            self._times[entry] = pulse.column_time if entry[0] < self._columns else pulse.feature_time
        for entry in (*kept, *self._pending):
            if entry[0] >= self._boolean_from:
                self._values[entry] = _ONE if self._values[entry] > 0 else _ZERO
        self._pending = []
        return [float(self.value(entry) - value) for entry, value in zip(entries, before, strict=True)]

    def _passes(self, entry: Entry, pulse: Pulse) -> bool:
        """Return whether the entry in the segment before allows a connection to an entry."""
        segment, branch = entry
        if segment in (0, self._columns):
            return True
        earlier = (segment - 1, branch)
        if self._options.sequential and not self.value(earlier) > 0:
            return False
        now = pulse.column_time if segment < self._columns else pulse.feature_time
        return self._options.timing != "exact" or self._times.get(earlier, 0) == now - 1
