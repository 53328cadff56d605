"""Collect what a session generates after a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from giaann_dask.models.columns.state.activation import Candidates
from giaann_dask.models.columns.state.session import (
    Choice,
    Observer,
    PreparedSequence,
    SequenceSession,
    StepResult,
    StopReason,
)


@dataclass(frozen=True, eq=False)
class Generation:
    """A prompt and its generated tokens.

    Attributes
    ----------
    prompt : PreparedSequence
        The tokens given.
    steps : tuple of StepResult
        The prompt's steps and the generated ones, in order.
    candidates : tuple of Candidates or None
        Per step; None for the prompt's and for a step without candidates.
    stop : {"no connections", "no candidates", "rejected"} or None
        Why fewer tokens than asked for were generated; None when all were.
    """

    prompt: PreparedSequence
    steps: tuple[StepResult, ...]
    candidates: tuple[Candidates | None, ...]
    stop: StopReason | None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Neuron keys of the generated tokens."""
        predicted = (step.predicted for step in self.steps[len(self.prompt) :])
        return tuple(neuron for neuron in predicted if neuron is not None)


def generate(
    session: SequenceSession[Any, Any],
    prompt: PreparedSequence,
    tokens: int,
    *,
    observer: Observer | None = None,
    choose: Choice | None = None,
) -> Generation:
    """Return the steps of a session's stream, calling an observer with each."""
    steps: list[StepResult] = []
    candidates: list[Candidates | None] = []
    for trace in session.stream(prompt, tokens, choose):
        steps.append(trace.result)
        candidates.append(trace.candidates)
        if observer is not None:
            observer(trace)
    return Generation(prompt, tuple(steps), tuple(candidates), steps[-1].end)
