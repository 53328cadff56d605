"""Define which segments of a network are of columns, of features and the soma, for the steps of profile ``v2``."""

from __future__ import annotations

from typing import NamedTuple

from giaann_dask.errors import OptionError
from giaann_dask.spec import Specification


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
