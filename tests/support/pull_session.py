"""Compare batches with sessions: a session of which every sequence is a batch of one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from giaann_dask.models.columns.batch import Prompt
from giaann_dask.models.columns.state.session import (
    Choice,
    Observer,
    PreparedSequence,
    SequenceResult,
    StepResult,
    StepTrace,
)
from giaann_dask.models.columns.v1.pull_batch import PullBatch
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.generation_options import BatchOptions


class PullSession(Session):
    """Advances one sequence at a time as a batch of one, which computes only the neurons that can win.

    The parameters and every value of every result are those of `Session`; traces have no state. It may
    serve any number of sequences, from one thread.
    """

    def run_sequence(
        self, sequence: PreparedSequence, *, observer: Observer | None = None, choose: Choice | None = None
    ) -> SequenceResult:
        """Predict every token of a sentence after the seed tokens; see `SequenceSession.run_sequence`."""
        if choose is not None:
            return super().run_sequence(sequence, observer=observer, choose=choose)
        batch = self._batch
        batch.enter(Prompt(sequence=sequence, flags=self.flags))
        steps: list[StepResult] = []
        while len(batch):
            for found in batch.step():
                steps.extend(found.results)
                if observer is not None:
                    for trace in found.traces:
                        observer(trace)
        return SequenceResult(tuple(steps), steps[-1].end)

    def stream(self, prompt: PreparedSequence, tokens: int, choose: Choice | None = None) -> Iterator[StepTrace]:
        """Yield the steps of `generate` one by one, those of the prompt included."""
        if choose is not None:
            yield from super().stream(prompt, tokens, choose)
            return
        batch = self._new_batch()
        batch.enter(Prompt(sequence=prompt, flags=self.flags, tokens=tokens))
        while len(batch):
            for found in batch.step():
                yield from found.traces

    @cached_property
    def _batch(self) -> PullBatch:
        """Batch of the given sequences, which run to their end one after the other."""
        return self._new_batch()

    def _new_batch(self) -> PullBatch:
        one = BatchOptions(slots=1)
        return PullBatch(self.specification, self.rows, options=self.options, batch=one)
