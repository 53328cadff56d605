"""Select the candidate that a step predicts under profile ``v2``.

Covers: the tests that modes ask of candidates (sections 7g and 9 of the contract of profile ``v2``), the
best of those that pass, and the order of equal ones: the first in (column, feature) order.
Does not cover: where candidates and modes come from (`giaann_dask.inference.v2.session`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.inference.state.sequence import FlagTable, Mode
from giaann_dask.inference.v2.options import CandidateSelection
from giaann_dask.keys import Integers, unpack_neuron
from giaann_dask.spec import FEATURE_BITS

Floats = npt.NDArray[np.float32]


class Selected(NamedTuple):
    """The candidates that were left, and the best of them.

    Attributes
    ----------
    neuron, score : ndarray
        Neuron keys, ascending, int64, and their values, float32. There may be none.
    best : int or None
        Place of the one to predict; None where there is none, or it does not pass.
    """

    neuron: Integers
    score: Floats
    best: int | None


def passing(
    neuron: Integers, source: int, mode: Mode | None, flags: FlagTable, number: int, options: CandidateSelection
) -> npt.NDArray[np.bool_] | None:
    """Return which neurons a mode lets follow a source, None for all.

    Parameters
    ----------
    neuron : ndarray
        Neuron keys, int64.
    source : int
        Neuron key of the source.
    mode : {"delimiter", "internal"} or None
        What the source's feature asks for.
    flags : FlagTable
        Stored flags, read where delimiters are enforced.
    number : int
        Of the sequence.
    options : CandidateSelection
        Which test.
    """
    if not len(neuron) or mode is None or (mode == "delimiter" and not options.enforce_delimiter):
        return None
    column, feature = unpack_neuron(neuron)
    own: npt.NDArray[np.bool_] = column == source >> FEATURE_BITS
    if mode == "delimiter":
        return ~own | flags.delimit(feature, number)
    return own if options.test == "column" else own | (feature == 0)


def select(
    neuron: Integers, score: Floats, passes: npt.NDArray[np.bool_] | None, options: CandidateSelection
) -> Selected:
    """Return the best candidate, as far as the options test them; without a test all pass.

    Examples
    --------
    >>> neuron, score, passes = np.array([3, 5, 7]), np.float32([1, 2, 2]), np.array([True, False, True])
    >>> select(neuron, score, passes, CandidateSelection()).best, select(
    ...     neuron, score, passes, CandidateSelection.reference()
    ... ).best
    (1, None)
    """
    if options.filtered and passes is not None:
        neuron, score = neuron[passes], score[passes]
    if not len(neuron):
        return Selected(neuron, score, None)
    # The first of equal maxima.
    best = int(score.argmax())
    return Selected(neuron, score, best if options.filtered or passes is None or passes[best] else None)
