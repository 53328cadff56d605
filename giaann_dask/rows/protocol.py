"""Define the options of requests for rows, and the messages between those who make them and the workers that hold rows.

`rows.remote` makes requests, `rows.service` answers them. Messages are plain values, which Dask encodes in a hundredth
of the time that it takes for objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from giaann_dask.errors import require_one_of, require_option
from giaann_dask.keys import Integers
from giaann_dask.keywords import names_keywords
from giaann_dask.runs.run import Run

NAME = "giaann-rows"
OPERATION = "giaann_rows"
# Bytes that each request of a message has at least of its answer, which a connection with its row fits into.
LEAST_BYTES = 64
Mode = Literal["auto", "replicated", "remote"]
# Plain values and the buffers of arrays.
Message: TypeAlias = tuple[Any, ...]


@names_keywords
@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Options of the access of inference tasks to rows.

    Parameters
    ----------
    mode : {"auto", "replicated", "remote"}
        Where workers find rows. ``"replicated"``: every worker gets all regions. ``"remote"``: workers request the rows
        they need from the owners of the regions. ``"auto"``: regions are replicated if all workers are in this process,
        which copies nothing, or if together they take no more than `replicated_share` of the memory of the smallest
        worker; a task that continues a single prompt reads its rows from the store instead.
    replicated_share : float
        Share of the smallest worker's memory limit that replicated regions may take with ``"auto"``, above 0 to 1.
    cache_bytes : int
        Bytes of rows that a process caches; 0 disables the cache.
    answer_bytes : int
        Bytes of rows that a worker sends in one message, 64 or more; the rest, for example of a giant row, is requested
        by further messages.
    timeout_s : float
        Timeout of a row request in seconds. It should exceed the time to replace a hung worker (2 minutes by default)
        and to read a region.
    request_s : float
        Seconds after which a request to an owner that does not respond is repeated.

    Raises
    ------
    OptionError
        If a value is out of range.

    Examples
    --------
    >>> RowOptions(mode="remote", cache_bytes=256 << 20).mode
    'remote'
    """

    mode: Mode = "auto"
    replicated_share: float = 0.25
    cache_bytes: int = 128 << 20
    answer_bytes: int = 32 << 20
    timeout_s: float = 600.0
    request_s: float = 30.0

    def __post_init__(self) -> None:
        require_one_of("mode", self.mode, get_args(Mode))
        require_option(0 < self.replicated_share <= 1, "replicated_share", self.replicated_share, "above 0 to 1")
        require_option(self.cache_bytes >= 0, "cache_bytes", self.cache_bytes, "0 or more")
        require_option(self.answer_bytes >= LEAST_BYTES, "answer_bytes", self.answer_bytes, f"{LEAST_BYTES} or more")
        for name in ("timeout_s", "request_s"):
            require_option(getattr(self, name) > 0, name, getattr(self, name), "more than 0")


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
