"""Define the protocol of a batch of sequences, its options, and the values that enter and leave it.

Implementations: `giaann_dask.models.columns.v1.pull_batch` and `giaann_dask.models.columns.session_batch`;
`giaann_dask.models.columns.rules` opens the one of a network's profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.models.columns.state.candidates import Candidates
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.sequence import FlagTable, PreparedSequence, StepResult, StepTrace


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
    """

    sequence: PreparedSequence
    flags: FlagTable
    tokens: int | None = None


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
    """

    number: int
    steps: range
    finished: bool
    results: Sequence[StepResult]
    pointer: Integers
    neuron: Integers
    value: npt.NDArray[np.float32]
    order: NameOrder = field(default_factory=NameOrder)

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
