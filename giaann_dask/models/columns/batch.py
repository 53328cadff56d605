"""Define the protocol of a batch of sequences, and the values that enter and leave it; advance sessions as a batch.

`giaann_dask.models.columns.v1.pull_batch` is the batch of profile ``v1``. Others (`SessionBatch`) have a session for
each sequence, with one fetch of the rows of a step: the steps of `giaann_dask.models.columns.v2.session` and
`giaann_dask.models.columns.beam` cost as much as their rows are long, so that sharing them would gain nothing.
`giaann_dask.models.columns.rules` opens the batch of a network's profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import OptionError, StateTooLargeError
from giaann_dask.keys import Integers
from giaann_dask.models.columns.state.activation import Candidates
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import (
    FlagTable,
    PrefixColumns,
    PreparedSequence,
    SequenceSession,
    StepResult,
    StepTrace,
)
from giaann_dask.models.generation_options import BatchOptions
from giaann_dask.rows.source import RowSource
from giaann_dask.runs.run import pointer_of


@dataclass(frozen=True, eq=False, kw_only=True)
class Prompt:
    """A sequence to advance.

    Attributes
    ----------
    sequence : PreparedSequence
        Its tokens.
    flags : FlagTable
        Stored delimiter flags that hold for it.
    tokens : int or None
        Tokens to generate after those of the sequence; None to predict its own tokens after the seed.
    prefixes : sequence of PrefixColumns
        Columns of the sequence as its concepts come, where its own tokens are predicted from left to right; the
        first are those of `sequence`. Only `PullBatch` follows them.
    pooled : bool
        Whether sources after the prompt are their words in every column, too (`state.session.revise`).
    """

    sequence: PreparedSequence
    flags: FlagTable
    tokens: int | None = None
    prefixes: tuple[PrefixColumns, ...] = ()
    pooled: bool = False

    @classmethod
    def from_left(cls, prefixes: tuple[PrefixColumns, ...]) -> Prompt:
        """Return a sequence whose own tokens are predicted from left to right, given its columns as they come."""
        return cls(sequence=prefixes[0].sequence, flags=prefixes[0].flags, prefixes=prefixes)


@dataclass(frozen=True, eq=False)
class Advance:
    """Result of one step of a batch for one of its sequences.

    Attributes
    ----------
    number : int
        Which of the sequences that entered, counted from 0.
    steps : range
        Steps that were done, the one included at which a sequence ended for lack of a prediction.
    finished : bool
        Whether this was the last of it.
    results : sequence of StepResult
        Their records, which batches with arrays make when they are read.
    pointer, neuron, value : ndarray
        Candidates: those of the i-th step are ``pointer[i]:pointer[i + 1]`` of `neuron` (neuron keys) and of
        `value`; int64, int64, float32.
    order : NameOrder
        Which of equal candidates is the first.
    error : StateTooLargeError or None
        Why the sequence ends without its next step.
    """

    number: int
    steps: range
    finished: bool
    results: Sequence[StepResult]
    pointer: Integers
    neuron: Integers
    value: npt.NDArray[np.float32]
    order: NameOrder = field(default_factory=NameOrder)
    error: StateTooLargeError | None = None

    @property
    def traces(self) -> Iterator[StepTrace]:
        """The steps with their candidates."""
        bounds = self.pointer.tolist()
        for at, result in enumerate(self.results):
            here = slice(bounds[at], bounds[at + 1])
            found = None
            if here.start < here.stop:
                found = Candidates(self.neuron[here], self.value[here], self.order)
            yield StepTrace(result, found)


class Batch(Protocol):
    """Sequences that advance together over a network that does not change; none depends on the others."""

    def __len__(self) -> int:
        """Return the number of sequences in the batch."""
        ...  # pragma: no cover

    @property
    def free_slots(self) -> int:
        """Number of free slots."""
        ...  # pragma: no cover

    def enter(self, prompt: Prompt) -> int:
        """Add a sequence; return its number, counted from 0.

        Raises
        ------
        OptionError
            If all slots are taken.
        """
        ...  # pragma: no cover

    def leave(self, number: int) -> None:
        """Remove a sequence before its end; do nothing if it has left already."""
        ...  # pragma: no cover

    def step(self) -> list[Advance]:
        """Do the next steps of all sequences; those of the prompt together with the first after them."""
        ...  # pragma: no cover


@dataclass(eq=False)
class _ActiveSequence:
    """A sequence in progress: its remaining steps, and their number with those of the prompt."""

    steps: Iterator[StepTrace]
    seeds: int
    end: int
    source: int | None = None
    done: int = 0


class SessionBatch:
    """Advances prompts over a network that does not change, each in a session.

    Parameters
    ----------
    open_session : callable
        Returns a session given the flags of a sequence.
    rows : RowSource
        The sessions' rows; prefetched where it can be.
    batch : BatchOptions, optional
        How many sequences advance together.
    """

    def __init__(
        self,
        open_session: Callable[[FlagTable], SequenceSession[Any, Any]],
        rows: RowSource,
        *,
        batch: BatchOptions | None = None,
    ) -> None:
        self._open_session, self._rows = open_session, rows
        self._slots = (batch or BatchOptions()).slots
        self._active: dict[int, _ActiveSequence] = {}
        self._entered = 0

    def __len__(self) -> int:
        """Return the number of sequences in progress."""
        return len(self._active)

    @property
    def free_slots(self) -> int:
        """Number of free slots."""
        return self._slots - len(self._active)

    def enter(self, prompt: Prompt) -> int:
        """Let a prompt enter; return its number.

        Raises
        ------
        OptionError
            If all slots are taken, or nothing is to be generated after it.
        """
        if not self.free_slots:
            raise OptionError("a sequence enters a full batch", "a free slot", "step until one has finished")
        if prompt.tokens is None:
            raise OptionError("a sequence without tokens to generate", "a prompt", "run sequences with a session")
        session = self._open_session(prompt.flags)
        self._rows.prefetch(prompt.sequence.neuron.tolist())
        length, number = len(prompt.sequence), self._entered
        self._active[number] = _ActiveSequence(
            session.stream(prompt.sequence, prompt.tokens, pooled=prompt.pooled), length, length + prompt.tokens
        )
        self._entered += 1
        return number

    def leave(self, number: int) -> None:
        """Let a sequence leave before its end; nothing happens when it is not there any more."""
        self._active.pop(number, None)

    def step(self) -> list[Advance]:
        """Do the next steps of all sequences: those of the prompt together with the first after them."""
        self._rows.prefetch([active.source for active in self._active.values() if active.source is not None])
        found = []
        for number, active in list(self._active.items()):
            traces, error = _next_steps(active.steps)
            begin, active.done = active.done, active.done + len(traces)
            active.source = traces[-1].result.next if traces else None
            finished = error is not None or active.source is None or active.done == active.end
            found.append(replace(_advance(number, range(begin, active.done), finished, traces), error=error))
            if finished:
                self.leave(number)
        return found


def _next_steps(steps: Iterator[StepTrace]) -> tuple[list[StepTrace], StateTooLargeError | None]:
    """Return the next steps of a sequence, up to the first beyond its prompt, and the error that ends it, if any."""
    traces: list[StepTrace] = []
    try:
        while not traces or traces[-1].result.seed:
            traces.append(next(steps))
    except StateTooLargeError as error:
        return traces, error
    return traces, None


def _advance(number: int, steps: range, finished: bool, traces: list[StepTrace]) -> Advance:
    counts = [0 if trace.candidates is None else len(trace.candidates) for trace in traces]
    parts = [trace.candidates for trace in traces if trace.candidates is not None]
    neuron = [part.neuron for part in parts] or [np.zeros(0, np.int64)]
    value = [part.value for part in parts] or [np.zeros(0, np.float32)]
    return Advance(
        number,
        steps,
        finished,
        tuple(trace.result for trace in traces),
        pointer_of(np.array(counts, np.int64)),
        np.concatenate(neuron),
        np.concatenate(value),
        next((trace.candidates.order for trace in traces if trace.candidates is not None), NameOrder()),
    )
