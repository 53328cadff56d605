"""Connections of a trained network, pooled over all columns into counts of words by distance.

Covers: reading the feature segments of profile ``v1`` back as how often one word followed another at a
distance, whatever the columns. Does not cover: training (`pair_sums`), contexts of several words, which
such a network does not hold (`context_counts`), and probabilities (`giaann_dask.inference.best.tables`).

A feature segment but the first one stands for exactly one distance, whose every pair adds the same
strength, so the strength of a connection on it is a multiple of that, and the multiple is the count. The
neuron of a concept is read as the word that names its column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import SpecificationError
from giaann_dask.increments.context_counts import ContextCounts, counts_of_pairs
from giaann_dask.increments.contexts import SINGLE, source_key, word_key
from giaann_dask.keys import pack_target, unpack_neuron, unpack_target
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification

Integers = npt.NDArray[np.int64]


def pool_connections(
    runs: Iterable[Run], specification: Specification, concepts: Sequence[str], features: Sequence[str]
) -> ContextCounts:
    """Return how often each word followed each word at each distance that has a segment of its own.

    Parameters
    ----------
    runs : iterable of Run
        Connections of all regions; one at a time is held.
    specification : Specification
        Of the network.
    concepts, features : sequence of str
        Names of its columns and features.

    Returns
    -------
    ContextCounts
        Contexts of one word, and as how often a word occurs at all how often it followed another at
        distance 1: the first word of a sentence is not among them.

    Raises
    ------
    SpecificationError
        If strengths are no multiples of a count: scaled by part of speech, limited pair by pair or
        weakened by permanence.
    """
    spec = specification
    if spec.pos_factors or spec.limit_scope == "pair" or spec.permanence_decay:
        raise SpecificationError("the network's strengths are no plain sums", "every pair of a distance alike")
    names = _Names(concepts, features)
    words = {word_key(name): name for name in (*concepts, *features[1:])}
    parts = [_pool_run(run, spec, names) for run in runs]
    source, target, count = (np.concatenate(part) for part in zip(*parts, strict=True)) if parts else [_none()] * 3
    return counts_of_pairs(source, target, count, words)


class _Names:
    """Keys of the words that neurons stand for."""

    def __init__(self, concepts: Sequence[str], features: Sequence[str]) -> None:
        self.concept = np.array([word_key(name) for name in concepts], np.int64)
        self.feature = np.array([word_key(name) for name in features], np.int64)

    def of(self, neuron: Integers) -> Integers:
        """Return the keys of the words of neurons."""
        column, feature = unpack_neuron(neuron)
        return np.where(feature == 0, self.concept[column], self.feature[feature])


def _pool_run(run: Run, spec: Specification, names: _Names) -> tuple[Integers, Integers, Integers]:
    """Return sources, targets and counts of one region, some of them more than once."""
    segment, neuron, _ = unpack_target(run.target)
    distance = spec.segments - segment
    increments = spec.increments()
    source = names.of(np.repeat(run.source, np.diff(run.pointer)))
    found = [(_none(), _none(), _none())]
    for gap, kind in SINGLE.items():
        if gap >= spec.feature_segments:
            continue
        chosen = distance == gap
        count, left = np.divmod(run.strength[chosen].astype(np.int64), increments[gap])
        if left.any():
            raise SpecificationError(
                f"a strength at distance {gap} is no multiple of {increments[gap]}", "the specification of the network"
            )
        word = names.of(neuron[chosen])
        found.append((source_key(kind, [source[chosen]]), pack_target(kind, word, 0), count))
        if gap == 1:
            found.append((source_key(0, []) + np.zeros_like(word), pack_target(0, word, 0), count))
    return tuple(np.concatenate(part) for part in zip(*found, strict=True))  # type: ignore[return-value]


def _none() -> Integers:
    return np.zeros(0, np.int64)
