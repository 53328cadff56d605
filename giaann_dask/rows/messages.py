"""Define the messages between those who request rows and the workers that hold them.

`rows.remote` makes requests, `rows.service` answers them.
"""

from __future__ import annotations

from dataclasses import dataclass

from giaann_dask.keys import Integers
from giaann_dask.runs.run import Run

NAME = "giaann-rows"
OPERATION = "giaann_rows"


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


@dataclass(frozen=True, slots=True, eq=False)
class RowRequest:
    """Some neurons of one run.

    Attributes
    ----------
    key : str
        Task whose result is the run, which the worker asked holds.
    neurons : ndarray
        Neuron keys, strictly ascending, int64.
    """

    key: str
    neurons: Integers


@dataclass(frozen=True, slots=True, eq=False)
class RowResponse:
    """The requested rows, up to the limit of the size of an answer.

    Attributes
    ----------
    answered : int
        How many of the neurons were looked up, from the first.
    rows : Run
        The rows of those that have any in this run, without strengths (an empty array) if these are not wanted.
    """

    answered: int
    rows: Run
