"""One sequence at a time with the steps of batches: what `Session` answers, in less time.

Covers: a batch of one behind the methods of `giaann_dask.inference.v1.push_session.Session`. Does not cover: many
sequences at once (`v1.pull_batch`) and the steps (`v1.kernels`, `v1.tensors`).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from giaann_dask.inference.batch import BatchOptions, Prompt
from giaann_dask.inference.rows.source import RowSource
from giaann_dask.inference.state.options import InferenceOptions
from giaann_dask.inference.state.sequence import (
    Contribution,
    FlagTable,
    Generation,
    Observer,
    PreparedSequence,
    SequenceResult,
    StepResult,
    StepTrace,
)
from giaann_dask.inference.v1.pull_batch import PullBatch
from giaann_dask.inference.v1.push_session import Session
from giaann_dask.spec import Specification


class PullSession:
    """Advances one sequence at a time and computes only the neurons that can win.

    The parameters are those of `Session`, and so is every value of every result. Traces have no state.
    It may serve any number of sequences, from one thread.

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
        Where steps are done as tensors; by default compiled code does them on the CPU.
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
        self.specification, self.rows, self.flags = specification, rows, flags
        self.options = options or InferenceOptions()
        self._device = device
        self._batch = self._one()

    def run_sequence(self, sequence: PreparedSequence, *, observer: Observer | None = None) -> SequenceResult:
        """Predict every token of a sentence after the seed tokens; see `Session.run_sequence`."""
        self._batch.enter(Prompt(sequence=sequence, flags=self.flags))
        steps: list[StepResult] = []
        while len(self._batch):
            for advance in self._batch.step():
                steps.extend(advance.results)
                if observer is not None:
                    for trace in advance.traces:
                        observer(trace)
        return SequenceResult(tuple(steps), steps[-1].end)

    def generate(self, prompt: PreparedSequence, tokens: int, *, observer: Observer | None = None) -> Generation:
        """Predict tokens after a prompt; see `Session.generate`."""
        return Generation.of(prompt, self.stream(prompt, tokens), observer)

    def stream(self, prompt: PreparedSequence, tokens: int) -> Iterator[StepTrace]:
        """Yield the steps of `generate` one by one, those of the prompt included."""
        batch = self._one()
        batch.enter(Prompt(sequence=prompt, flags=self.flags, tokens=tokens))
        while len(batch):
            for advance in batch.step():
                yield from advance.traces

    def explain(self, steps: tuple[StepResult, ...], index: int) -> tuple[Contribution, ...]:
        """Return the connections that raised what a step predicted (see `Session.explain`)."""
        return Session(self.specification, self.rows, self.flags, options=self.options).explain(steps, index)

    def _one(self) -> PullBatch:
        alone = BatchOptions(slots=1)
        return PullBatch(self.specification, self.rows, options=self.options, batch=alone, device=self._device)
