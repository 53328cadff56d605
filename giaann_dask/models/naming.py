"""Name the segments and the ends of connections: for comparisons, data frames, reports and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

# Names, and the place among them of every value, -1 for none.
NameTable: TypeAlias = tuple[Sequence[str], npt.NDArray[np.integer[Any]]]


class ConnectionNames(Protocol):
    """Names of what the keys of a network's connections stand for."""

    @property
    def segments(self) -> Sequence[str]:
        """Name of every segment."""
        ...  # pragma: no cover

    def source(self, segment: int, key: int) -> str:
        """Return the name of a source, as the target receives it on a segment."""
        ...  # pragma: no cover

    def target(self, key: int) -> str:
        """Return the name of a target."""
        ...  # pragma: no cover

    def of_arrays(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, NameTable]:
        """Return the names of values of coordinate arrays, by the names of new columns."""
        ...  # pragma: no cover
