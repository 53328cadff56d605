"""Keep the state of one sequence under the dynamics of profile ``v2``.

Each of the two dynamics has one class, which owns the memory of the compiled steps
(`giaann_dask.inference.v2.dynamics`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from giaann_dask.device import torch
from giaann_dask.inference.state.activation import StateEntries
from giaann_dask.inference.v2 import dynamics
from giaann_dask.inference.v2.options import LegacyOptions, LifOptions
from giaann_dask.inference.v2.tables import FREE, NEVER, Clock, EntryTable, Floats, LegacyRules, LifRules, SegmentLayout
from giaann_dask.keys import NEURON_MASK, SEGMENT_SHIFT, Integers, pack_target
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS

# Slots of a new table, a power of two.
_FIRST_SLOTS = 1 << 11
_FIRST_STEPS = 1 << 8
# Slots of the table before that are looked at for each neuron of a step; a table twice as large needs two.
_MOVED_SLOTS = 4
# Beyond it the weight of an entry has long been 0 in float32.
_LONGEST_TIME = 1 << 12

_NO_TARGETS: Integers = np.zeros(0, np.int64)


class SequenceState(ABC):
    """Entries of one sequence, changed in place by its steps.

    Parameters
    ----------
    layout : SegmentLayout
        Of the network.
    branches : int
        For how many branches entries are kept apart.
    """

    def __init__(self, layout: SegmentLayout, branches: int) -> None:
        self._layout, self._branches = layout, branches
        self._table = self._empty(_FIRST_SLOTS)
        # The table before it, where neurons are still to be moved from, and the number of slots that were looked at.
        self._before: EntryTable | None = None
        self._moved = 0

    @abstractmethod
    def can_send(self, target: Integers) -> bool:
        """Return whether a source with these target keys can lead to a prediction at all."""

    @abstractmethod
    def advance(self, source: int, row: tuple[Integers, Floats], clock: Clock) -> tuple[int, Integers, Floats]:
        """Send along a source's row; return the gate and the candidates.

        Parameters
        ----------
        source : int
            Neuron key.
        row : tuple of ndarray
            Its target keys, ascending, and their strengths, float32.
        clock : Clock
            Of the token to be predicted; not the first one.

        Returns
        -------
        gate : int
            1 if the source is active enough to send, else 0.
        neuron, score : ndarray
            Candidates, ascending, and their values; int64 and float32.
        """

    @abstractmethod
    def settle(self, source: int, following: int, clock: Clock) -> None:
        """End a step, of which `following` is the next source."""

    @abstractmethod
    def entries(self) -> StateEntries:
        """Return a copy of the entries as they are after the last step, sorted."""

    @property
    def neurons(self) -> int:
        """Number of neurons with entries."""
        return int(self._table.used[0]) + (0 if self._before is None else int(self._before.used[0]))

    def _reserve(self, target: Integers, *neurons: int) -> None:
        """Make sure that some neurons, and those of a row's target keys, have slots or find them, and half are free.

        A larger table takes over the slots of the one before it a few at a time, so that no step waits for all of them.
        """
        needed = 2 * (self.neurons + len(target) + len(neurons))
        if needed > len(self._table.neuron):
            self._move(None)
            self._before, self._moved = self._table, 0
            self._table = self._empty(1 << (needed - 1).bit_length())
        if self._before is not None:
            asked = np.concatenate([np.array(neurons, np.int64), (target >> BRANCH_BITS) & NEURON_MASK])
            dynamics.move_neurons(self._before, self._table, asked)
            self._move(_MOVED_SLOTS * len(asked))

    def _move(self, slots: int | None) -> None:
        """Move the neurons of some more slots of the table before, of all by default."""
        if self._before is not None:
            count = len(self._before.neuron)
            begin, self._moved = self._moved, count if slots is None else min(self._moved + slots, count)
            dynamics.move(self._before, self._table, begin, self._moved)
            if self._moved == count:
                self._before = None

    def _empty(self, slots: int) -> EntryTable:
        shape = (slots, self._branches, self._layout.segments)
        flags = (1, 1, 1) if self._layout.soma else shape
        return EntryTable(
            neuron=np.full(slots, FREE, np.int64),
            stamp=np.zeros(slots, np.int64),
            value=np.zeros(shape, np.float32),
            there=np.zeros(flags, np.bool_),
            time=np.full(flags, NEVER, np.int32),
            used=np.zeros(1, np.int64),
        )

    def _sorted(self, there: np.ndarray, time: np.ndarray) -> StateEntries:
        flat = np.flatnonzero(there)
        slot, place = np.divmod(flat, self._branches * self._layout.segments)
        branch, segment = np.divmod(place, self._layout.segments)
        key = pack_target(segment, self._table.neuron[slot], branch)
        order = np.argsort(key)
        taken = flat[order]
        columns = (key[order], self._table.value.reshape(-1)[taken], time.reshape(-1)[taken])
        return StateEntries(*(torch.from_numpy(column) for column in columns))


class LifState(SequenceState):
    """Entries under leaky integrate-and-fire (contract, section 7).

    Parameters
    ----------
    layout : SegmentLayout
        Of the network, with a soma.
    options : LifOptions
        Constants.
    """

    def __init__(self, layout: SegmentLayout, options: LifOptions) -> None:
        # Connections of all branches add up at their segment: the soma is one.
        super().__init__(layout, 1)
        one = np.float32(1)
        self._rules = LifRules(
            columns=layout.columns,
            threshold=np.float32(options.threshold),
            keep_soma=one - np.float32(options.soma_decay),
            keep_column=one - np.float32(options.column_decay),
            burst=np.float32(options.burst),
            strengths=options.strengths,
            squash=options.squash,
            clear_source=options.clear_source,
        )
        self._advanced = np.zeros(_FIRST_STEPS, np.bool_)
        self._moment = 1

    def can_send(self, target: Integers) -> bool:
        """Return whether a source has any connection."""
        return len(target) > 0

    def advance(self, source: int, row: tuple[Integers, Floats], clock: Clock) -> tuple[int, Integers, Floats]:
        """See `SequenceState.advance`."""
        self._reserve(row[0], source)
        self._moment = 2 * clock.token
        gate, neuron, score = dynamics.lif_advance(self._table, source, row, clock.token, self._advanced, self._rules)
        return int(gate), neuron, score

    def settle(self, source: int, following: int, clock: Clock) -> None:
        """Let columns move on where the next source is in another one, and burst it."""
        if clock.token == len(self._advanced):
            self._advanced = np.concatenate([self._advanced, np.zeros_like(self._advanced)])
        self._advanced[clock.token] = source >> FEATURE_BITS != following >> FEATURE_BITS
        self._reserve(_NO_TARGETS, following)
        self._moment = 2 * clock.token + 1
        dynamics.lif_settle(self._table, following, clock.token, self._advanced, self._rules)

    def entries(self) -> StateEntries:
        """Return the positive entries."""
        self._move(None)
        dynamics.lif_catch_up_all(self._table, self._moment, self._advanced, self._rules)
        positive = self._table.value > 0
        return self._sorted(positive, np.broadcast_to(np.int32(NEVER), positive.shape))


class LegacyState(SequenceState):
    """Entries without a soma (contract, section 8).

    Parameters
    ----------
    layout : SegmentLayout
        Of the network, without a soma.
    options : LegacyOptions
        Constants.
    """

    def __init__(self, layout: SegmentLayout, options: LegacyOptions) -> None:
        super().__init__(layout, layout.branches)
        self._rules = LegacyRules(
            columns=layout.columns,
            decay=np.float32(options.decay),
            scale=np.float32(options.scale),
            burst=np.float32(options.burst),
            exact=options.timing == "exact",
            strengths=options.strengths,
            boolean=options.boolean,
            burst_all=options.burst_all,
        )
        # The power in float32, of the float32 factor.
        distances = np.arange(_LONGEST_TIME if options.timing == "biased" else 1, dtype=np.float64)
        self._powers = (np.float64(np.float32(options.penalty)) ** distances).astype(np.float32)
        self._moment = 1

    def can_send(self, target: Integers) -> bool:
        """Return whether a source has a connection to the segment of adjacent tokens."""
        return len(target) > 0 and int(target[-1] >> SEGMENT_SHIFT) == self._layout.last

    def advance(self, source: int, row: tuple[Integers, Floats], clock: Clock) -> tuple[int, Integers, Floats]:
        """See `SequenceState.advance`."""
        self._reserve(row[0], source)
        gate = dynamics.legacy_advance(self._table, source, row, clock, self._rules)
        self._moment = 2 * clock.token + 1
        begin = int(np.searchsorted(row[0], self._layout.last << SEGMENT_SHIFT))
        connected = np.unique((row[0][begin:] >> BRANCH_BITS) & NEURON_MASK)
        neuron, score = dynamics.legacy_scores(self._table, connected, clock, self._rules, self._powers)
        return int(gate), neuron, score

    def settle(self, source: int, following: int, clock: Clock) -> None:
        """Burst the next source; before the first step the source itself was burst, and silenced."""
        self._reserve(_NO_TARGETS, source, following)
        self._moment = 2 * clock.token + 1
        if clock.token == 0:
            dynamics.legacy_burst(self._table, source, self._moment, self._rules)
            dynamics.legacy_clear(self._table, source, self._moment, self._rules)
        dynamics.legacy_burst(self._table, following, self._moment, self._rules)

    def entries(self) -> StateEntries:
        """Return all entries, those of value 0 too."""
        self._move(None)
        dynamics.legacy_catch_up_all(self._table, self._moment, self._rules)
        return self._sorted(self._table.there, self._table.time)


def new_state(layout: SegmentLayout, dynamics: LifOptions | LegacyOptions) -> SequenceState:
    """Return the state before the first step.

    Raises
    ------
    OptionError
        If the dynamics are not those that the network was trained for.
    """
    layout.require_soma(isinstance(dynamics, LifOptions))
    if isinstance(dynamics, LifOptions):
        return LifState(layout, dynamics)
    return LegacyState(layout, dynamics)
