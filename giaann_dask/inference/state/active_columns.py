"""Compute the activation of concept columns.

Covers: the activation of every concept column of a state, and joining what parts of a divided state say of
theirs. Does not cover: names of columns (`giaann_dask.serving`, the command line).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from giaann_dask.inference.state.activation import ActivationState
from giaann_dask.keys import NEURON_MASK
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS


@dataclass(frozen=True, slots=True, eq=False)
class ActiveColumns:
    """Concept columns with some activation.

    Attributes
    ----------
    column : ndarray of int64
        Numbers of the columns, each once.
    activation : ndarray of float64
        Sum over all entries of each.
    """

    column: npt.NDArray[np.int64]
    activation: npt.NDArray[np.float64]

    @classmethod
    def of(cls, state: ActivationState) -> ActiveColumns:
        """Return all lit columns of a state, ascending."""
        if not len(state):
            return cls(np.zeros(0, np.int64), np.zeros(0))
        column = ((state.key.cpu().numpy() >> BRANCH_BITS) & NEURON_MASK) >> FEATURE_BITS
        return cls._summed(column, state.value.cpu().numpy().astype(np.float64))

    @classmethod
    def joined(cls, parts: Sequence[ActiveColumns]) -> ActiveColumns:
        """Return the columns of several parts, ascending; one that is in several parts has their sum."""
        return cls._summed(
            np.concatenate([part.column for part in parts]), np.concatenate([part.activation for part in parts])
        )

    @classmethod
    def _summed(cls, column: npt.NDArray[np.int64], activation: npt.NDArray[np.float64]) -> ActiveColumns:
        found, place = np.unique(column, return_inverse=True)
        total = np.bincount(place, weights=activation, minlength=len(found)).astype(np.float64, copy=False)
        return cls(found[total > 0], total[total > 0])

    def strongest(self, count: int) -> ActiveColumns:
        """Return those with the largest activation, the largest first, ties in the order of columns."""
        return self._chosen(self._by_activation()[:count])

    def needed(self, count: int) -> ActiveColumns:
        """Return what a part has to say so that as many can be chosen of all: its strongest, its first and last.

        Parts follow each other, so that only the first and last column can be in another one, too.
        """
        last = len(self.column) - 1
        return self._chosen(np.union1d(self._by_activation()[:count], [0, last])) if last >= 0 else self

    def _by_activation(self) -> npt.NDArray[np.int64]:
        return np.argsort(-self.activation, kind="stable")

    def _chosen(self, places: npt.NDArray[np.int64]) -> ActiveColumns:
        return ActiveColumns(self.column[places], self.activation[places])
