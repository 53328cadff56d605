"""One sequence, step by step, computing only what can win.

Covers: evaluation and generation with the same answers as `giaann_dask.inference.session`, from the
entries of those neurons that can be predicted or are a source: what ends at them is pulled from the
rows of the sources, instead of every row being pushed into one state.
Does not cover: the order of the sub-steps (`steps`), how chosen neurons are replayed (`pulled`), or
the counts of all entries, which a trace of the pushed path knows.

Neurons whose turn is known to come (all, where a sentence's own tokens are fed) are followed from
the first step on. Where predictions are fed, the neurons that can be predicted are known only when
their source is; then the history of the sequence so far is replayed for them.

This is the plain form, in NumPy; `giaann_dask.inference.replaying` does the same for many sequences in
compiled code, which is what `open_session` opens on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from giaann_dask.errors import OptionError
from giaann_dask.inference.activation import Pulse
from giaann_dask.inference.candidates import Candidates, TokenTimes, weigh_entries
from giaann_dask.inference.options import InferenceOptions
from giaann_dask.inference.pulled import Change, Integers, PulledNeurons
from giaann_dask.inference.replay_session import ReplaySession
from giaann_dask.inference.rows import RowSource
from giaann_dask.inference.sequence import Contribution, FlagTable, StepResult
from giaann_dask.inference.session import Session
from giaann_dask.inference.steps import Stepper
from giaann_dask.network.keys import SEGMENT_SHIFT
from giaann_dask.spec import BRANCH_BITS, NEURON_BITS, Specification

_NEURON_MASK = (1 << NEURON_BITS) - 1


@dataclass(eq=False)
class PulledState:
    """What a sequence has done so far, and the neurons that are followed; changed in place.

    Attributes
    ----------
    neurons : PulledNeurons
        The neurons that are followed now.
    history : list of callable
        All changes since the first step, for neurons that are followed later.
    targets : dict
        Target keys of the rows that were asked for, int64, by source.
    """

    neurons: PulledNeurons
    history: list[Change] = field(default_factory=list)
    targets: dict[int, Integers] = field(default_factory=dict)

    def change(self, change: Change) -> None:
        """Change the neurons that are followed, and remember it for others."""
        self.history.append(change)
        change(self.neurons)


class PullSession(Stepper[PulledState, Integers]):
    """Advances one sequence at a time and computes only the neurons that can win.

    The parameters are those of `Session`, and so is every value of every result. Traces have no
    state.

    Parameters
    ----------
    specification : Specification
        Of the network.
    rows : RowSource
        Outgoing connections by neuron key.
    flags : FlagTable
        Stored delimiter flags of every feature that the rows or the sequences name.
    options : InferenceOptions, optional
        Rules of inference.
    device : torch.device, optional
        Only the CPU: a step has too few entries for any other device.

    Raises
    ------
    OptionError
        If the device is not the CPU.

    Examples
    --------
    >>> from giaann_dask.inference.rows import RunRows
    >>> from giaann_dask.inference.sequence import PreparedSequence
    >>> from giaann_dask.network.run import Run
    >>> flags = FlagTable(np.zeros(1, bool), np.full(1, -1))
    >>> session = PullSession(Specification(), RunRows([Run.empty()], lambda neuron: 0), flags)
    >>> prompt = PreparedSequence(neuron=np.array([0]), noun=np.array([True]), number=0)
    >>> session.generate(prompt, 3).stop
    'no connections'
    """

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        options: InferenceOptions | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(specification, rows, flags, options=options, device=device)
        if self.device.type != "cpu":
            raise OptionError(f"device is {self.device}", "cpu", "take Session for other devices")
        self._pushed = Session(specification, rows, flags, options=self.options, device=self.device)
        self._last = self._layout.last_segment << SEGMENT_SHIFT

    def explain(self, steps: tuple[StepResult, ...], index: int) -> tuple[Contribution, ...]:
        """Return the connections that raised what a step predicted (see `Session.explain`)."""
        return self._pushed.explain(steps, index)

    def _begin(self, known: Integers, first: int) -> PulledState:
        state = PulledState(self._follow(known[:0]))
        predicting = [self._connected(state, self._targets(state, source)) for source in set(known[first:].tolist())]
        state.neurons = self._follow(np.unique(np.concatenate([known, *predicting])))
        return state

    def _burst(self, state: PulledState, neuron: int) -> PulledState:
        state.change(partial(PulledNeurons.burst, neuron=neuron))
        return state

    def _activity(self, state: PulledState, neuron: int) -> int:
        neurons, place = state.neurons, state.neurons.place(neuron)
        if place is None:
            neurons, place = self._replayed(state, np.array([neuron])), 0
        return neurons.activity(place)

    def _targets(self, state: PulledState, source: int) -> Integers:
        if source not in state.targets:
            row = self.rows.row(source)
            state.targets[source] = np.zeros(0, np.int64) if row is None else row.target
        return state.targets[source]

    def _connected(self, state: PulledState, target: Integers) -> Integers:
        neuron = (target[target.searchsorted(self._last) :] >> BRANCH_BITS) & _NEURON_MASK
        return neuron[np.flatnonzero(np.diff(neuron, prepend=-1))]

    def _propagate(self, state: PulledState, target: Integers, pulse: Pulse) -> PulledState:
        state.change(partial(PulledNeurons.propagate, target=target, pulse=pulse))
        return state

    def _deactivate(self, state: PulledState, neuron: int) -> PulledState:
        state.change(partial(PulledNeurons.deactivate, neuron=neuron))
        return state

    def _score(self, state: PulledState, connected: Integers, times: TokenTimes) -> Candidates | None:
        place = state.neurons.places(connected)
        if place is None:
            state.neurons = self._replayed(state, connected)
            place = np.arange(len(connected))
        place = place[state.neurons.found[-1, place].any(1)]
        if not len(place):
            return None
        neuron, entries = torch.from_numpy(state.neurons.neuron[place]), state.neurons.entries(place)
        return weigh_entries(neuron, entries, times, layout=self._layout, options=self.options)

    def _follow(self, neuron: Integers) -> PulledNeurons:
        """Return neurons before the first step."""
        return PulledNeurons(neuron, self._layout, self.options)

    def _replayed(self, state: PulledState, neuron: Integers) -> PulledNeurons:
        """Return neurons as they are now."""
        neurons = self._follow(neuron)
        for change in state.history:
            change(neurons)
        return neurons


def open_session(
    specification: Specification,
    rows: RowSource,
    flags: FlagTable,
    *,
    options: InferenceOptions | None = None,
    device: torch.device | None = None,
) -> ReplaySession | Session:
    """Return the session that predicts fastest; both give the same answers.

    Parameters
    ----------
    specification, rows, flags, options, device
        As for `Session`. On the CPU what can win is replayed in compiled code; on other devices whole
        rows are pushed.
    """
    on_cpu = device is None or device.type == "cpu"
    kind = ReplaySession if on_cpu else Session
    return kind(specification, rows, flags, options=options, device=device)
