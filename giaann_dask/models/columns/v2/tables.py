"""Define the data of the compiled steps of profile ``v2``: segments, entries of neurons, constants and times.

`giaann_dask.models.columns.v2.states` allocates the tables, and `giaann_dask.models.columns.v2.dynamics` changes them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import OptionError
from giaann_dask.keys import Integers
from giaann_dask.spec import Specification

Floats = npt.NDArray[np.float32]

# Place of a neuron without entries.
ABSENT = -1
NEVER = -1


class EntryTable(NamedTuple):
    """Entries of the neurons of a sequence, in a row each; further rows are reserved.

    Attributes
    ----------
    neuron : ndarray
        Neuron keys; int64, shape ``(neurons or more,)``.
    stamp : ndarray
        Up to where each row is done; int64, the same shape.
    value : ndarray
        Activation; float32, shape ``(neurons or more, branches, segments)``.
    there : ndarray
        Whether it is an entry; bool, the same shape. Not used with a soma, where only positive values are.
    time : ndarray
        When a connection last reached it, or `NEVER`; int32, the same shape. Not used with a soma.
    """

    neuron: Integers
    stamp: Integers
    value: Floats
    there: npt.NDArray[np.bool_]
    time: npt.NDArray[np.int32]


class LifRules(NamedTuple):
    """Constants of the dynamics with a soma; see `giaann_dask.models.columns.v2.v2_options.LifOptions`."""

    columns: int
    threshold: np.float32
    keep_soma: np.float32
    keep_column: np.float32
    burst: np.float32
    strengths: bool
    squash: bool
    clear_source: bool


class LegacyRules(NamedTuple):
    """Constants of the dynamics without one; see `giaann_dask.models.columns.v2.v2_options.LegacyOptions`."""

    columns: int
    decay: np.float32
    scale: np.float32
    burst: np.float32
    exact: bool
    strengths: bool
    boolean: bool
    burst_all: bool


class Clock(NamedTuple):
    """The times of a step.

    Attributes
    ----------
    token : int
        Index of the token to be predicted.
    column : int
        Number of concept tokens up to and including it; when `open_concept` is set, before it.
    source_column : int
        Number of concept tokens up to and including the source's.
    open_concept : bool
        Whether it is unknown if the token is a concept. Then every candidate is timed as what it is.
    """

    token: int
    column: int
    source_column: int
    open_concept: bool


class SegmentLayout(NamedTuple):
    """Numbers of segments: first those of columns, then those of features, then the soma, if any.

    Attributes
    ----------
    columns : int
        Column segments, numbered from 0.
    segments : int
        All segments, the soma included; the last of them is that of adjacent tokens.
    branches : int
        Dendritic branches of a neuron.
    soma : bool
        Whether the last segment is a soma.
    """

    columns: int = 4
    segments: int = 9
    branches: int = 1
    soma: bool = True

    @property
    def last(self) -> int:
        """Number of the segment of adjacent tokens."""
        return self.segments - 1

    @classmethod
    def of(cls, specification: Specification) -> SegmentLayout:
        """Return the layout that a network was trained for."""
        columns, last = specification.column_segments, specification.last_segment
        soma = last == columns + specification.feature_segments
        return cls(columns=columns, segments=last + 1, branches=specification.branches, soma=soma)

    def require_soma(self, needed: bool) -> None:
        """Raise an OptionError if the requested dynamics are not those of these segments."""
        if self.soma != needed:
            has, takes = ("a soma", "LifOptions") if self.soma else ("no soma", "LegacyOptions")
            raise OptionError(f"dynamics for {self._other} with a network of {has}", takes, "choose the network's own")

    @property
    def _other(self) -> str:
        return "no soma" if self.soma else "a soma"
