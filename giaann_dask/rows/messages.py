"""Define the messages between those who request rows and the workers that hold them.

`rows.remote` makes requests, `rows.service` answers them. Messages are plain values, which Dask encodes in a hundredth
of the time that it takes for objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from giaann_dask.keys import Integers
from giaann_dask.runs.run import Run

NAME = "giaann-rows"
OPERATION = "giaann_rows"
# Bytes that each request of a message has at least of its answer, which a connection with its row fits into.
LEAST_BYTES = 64
# Plain values and the buffers of arrays.
Message: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RowProjection:
    """Requested part of rows.

    Attributes
    ----------
    segments : tuple of int or None
        First segment and the one after the last; all by default. Rows are sorted by segment, so this
        is a slice of each.
    strengths : bool
        Whether strengths are wanted; an array of none stands for them otherwise.

    Examples
    --------
    >>> RowProjection(strengths=False).segments is None
    True
    """

    segments: tuple[int, int] | None = None
    strengths: bool = True

    def as_message(self) -> Message:
        """Return it in plain values, of which it is made again."""
        return astuple(self)


@dataclass(frozen=True, slots=True, eq=False)
class RowRequest:
    """Some neurons of one run.

    Attributes
    ----------
    key : str
        Task whose result is the run, which the worker asked holds.
    neurons : ndarray
        Neuron keys, strictly ascending, int64.
    begun : int
        Connections of the first one's row, as far as they are wanted, that earlier responses have had.
    """

    key: str
    neurons: Integers
    begun: int = 0

    def as_message(self) -> Message:
        """Return the request in plain values."""
        return self.key, self.neurons.data, self.begun

    @classmethod
    def of_message(cls, message: Message) -> RowRequest:
        """Return the request of a message."""
        key, neurons, begun = message
        return cls(key, np.frombuffer(neurons, np.int64), begun)

    def after(self, response: RowResponse) -> RowRequest | None:
        """Return the request for what a response leaves, None where that is nothing."""
        rest = self.neurons[response.answered :]
        return RowRequest(self.key, rest, response.begun) if len(rest) else None


@dataclass(frozen=True, slots=True, eq=False)
class RowResponse:
    """The requested rows, up to the limit of the size of an answer.

    Attributes
    ----------
    answered : int
        How many of the neurons were answered completely, from the first.
    rows : Run
        The rows of those that have any in this run, without strengths (an empty array) if these are not wanted. Of the
        first row, what earlier responses have had is missing; of the next neuron's row, there may be the beginning.
    begun : int
        Connections of that row which these responses have had; see `RowRequest.begun`.
    """

    answered: int
    rows: Run
    begun: int = 0

    def as_message(self) -> Message:
        """Return the response in plain values."""
        rows = self.rows
        arrays = rows.source, rows.pointer, rows.target, rows.strength
        return self.answered, self.begun, rows.strength.itemsize, *(array.data for array in arrays)

    @classmethod
    def of_message(cls, message: Message) -> RowResponse:
        """Return the response of a message."""
        answered, begun, itemsize, *buffers, strength = message
        source, pointer, target = (np.frombuffer(buffer, np.int64) for buffer in buffers)
        return cls(answered, Run(source, pointer, target, np.frombuffer(strength, f"i{itemsize}")), begun)


def bounded(requests: Iterable[RowRequest], limit: int) -> list[RowRequest]:
    """Return as many requests as one message asks: one for `LEAST_BYTES` of its limit, and 8 bytes for each neuron.

    Examples
    --------
    >>> import numpy as np
    >>> [len(each.neurons) for each in bounded([RowRequest(key, np.arange(20)) for key in "abcd"], 192)]
    [8, 8, 8]
    """
    chosen = list(islice(requests, max(1, limit // LEAST_BYTES)))
    most = max(1, limit // (8 * len(chosen) or 1))
    return [replace(each, neurons=each.neurons[:most]) for each in chosen]
