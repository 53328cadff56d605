"""One sequence, step by step, with whole rows pushed into one state: the plain reference path.

Covers: evaluation of a given sentence and generation after a prompt with a state that knows every
entry, and the explanation of a generated token by the connections that raised it.
Does not cover: the order of the sub-steps (`steps`), the values that go in and come out
(`sequence`), the same answers from fewer entries
(`v1.pull_session`), the sentence's preparation (section 7;
`giaann_dask.text`), whether a prediction counts as a match and accuracy (`evaluation.evaluation`), or many
prompts at once.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from giaann_dask.inference.rows.source import as_tensor
from giaann_dask.inference.state.activation import (
    ActivationState,
    Pulse,
    burst,
    deactivate,
    propagate,
    source_activity,
)
from giaann_dask.inference.state.candidates import Candidates, TokenTimes, score_candidates
from giaann_dask.inference.state.sequence import Contribution, StepResult
from giaann_dask.inference.v1.stepper import Stepper
from giaann_dask.keys import unpack_target


class Session(Stepper[ActivationState]):
    """Advances one sequence at a time over a network that does not change.

    A session holds no state of a sequence: every method is a function of its arguments, so one
    session may serve any number of sequences.

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
        Where the state lives.

    Examples
    --------
    >>> from giaann_dask.inference.rows.source import RunRows
    >>> from giaann_dask.inference.state.sequence import FlagTable, PreparedSequence
    >>> from giaann_dask.runs.run import Run
    >>> from giaann_dask.spec import Specification
    >>> flags = FlagTable(np.zeros(1, bool), np.full(1, -1))
    >>> session = Session(Specification(), RunRows([Run.empty()], lambda neuron: 0), flags)
    >>> prompt = PreparedSequence(neuron=np.array([0]), noun=np.array([True]), number=0)
    >>> session.generate(prompt, 3).stop
    'no connections'
    """

    @torch.inference_mode()
    def explain(self, steps: tuple[StepResult, ...], index: int) -> tuple[Contribution, ...]:
        """Return the connections that raised what a step predicted, as far as they still counted.

        The history of one neuron does not depend on any other target, so it is replayed with the
        steps of the session, on this neuron's own entries only.

        Parameters
        ----------
        steps : tuple of StepResult
            Of a `SequenceResult` or a `Generation` of this session.
        index : int
            Index of the step to explain.

        Returns
        -------
        tuple of Contribution
            In the order of the steps; empty when the step predicted nothing. A connection that
            reached an entry already at its largest value raised nothing and is left out, and so
            is one to a branch that was deactivated later.
        """
        neuron = steps[index].predicted
        if neuron is None:
            return ()
        state = ActivationState.empty(self.device)
        found: list[Contribution] = []
        for step in steps[: index + 1]:
            if step.index == 0:
                state = burst(state, step.source, self._layout) if step.source == neuron else state
            else:
                raised, state = self._replay(state, neuron, step)
                found.extend(raised)
            if step.source == neuron:
                state = deactivate(state, neuron, self._layout)
                found = [item for item in found if self._counts(state, neuron, item)]
            if step.seed and step.next == neuron:
                state = burst(state, neuron, self._layout)
        return tuple(found)

    def _replay(
        self, state: ActivationState, neuron: int, step: StepResult
    ) -> tuple[list[Contribution], ActivationState]:
        """Push the part of a step's row that ends at one neuron; return what it raised."""
        row = self.rows.row(step.source)
        if row is None or not len(row.target):
            return [], state
        entries = self._layout.entries(neuron).reshape(-1).sort().values.cpu().numpy()
        at = np.searchsorted(row.target, entries)
        at = at[row.target[np.minimum(at, len(row.target) - 1)] == entries]
        target = as_tensor(row.target[at], self.device)
        after = propagate(
            state, target, self._pulse(step.activity or 0, step), layout=self._layout, options=self.options
        )
        rise = (after.values(*after.find(target)) - state.values(*state.find(target))).tolist()
        segment, _, branch = unpack_target(row.target[at])
        strength = self.specification.strengths(row.strength[at])
        columns = zip(segment.tolist(), branch.tolist(), strength.tolist(), rise, strict=True)
        return [Contribution(step.index, step.source, *item) for item in columns if item[-1] > 0], after

    def _counts(self, state: ActivationState, neuron: int, item: Contribution) -> bool:
        """Return whether the entry that a contribution raised still has a value."""
        key = self._layout.entries(neuron)[item.segment, item.branch].reshape(1)
        return bool(state.values(*state.find(key)) > 0)

    def _begin(self) -> ActivationState:
        return ActivationState.empty(self.device)

    def _burst(self, state: ActivationState, neuron: int) -> ActivationState:
        return burst(state, neuron, self._layout)

    def _activity(self, state: ActivationState, neuron: int) -> int:
        return source_activity(state, neuron, self._layout)

    def _propagate(self, state: ActivationState, target: Tensor, pulse: Pulse) -> ActivationState:
        return propagate(state, target, pulse, layout=self._layout, options=self.options)

    def _deactivate(self, state: ActivationState, neuron: int) -> ActivationState:
        return deactivate(state, neuron, self._layout)

    def _score(self, state: ActivationState, connected: Tensor, times: TokenTimes) -> Candidates | None:
        return score_candidates(state, connected, times, layout=self._layout, options=self.options)

    def _shown(self, state: ActivationState) -> ActivationState:
        return state
