"""Name segments by their distances, and neurons by column and feature."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import unpack_neuron
from giaann_dask.models.base import NameTable
from giaann_dask.spec import Specification
from giaann_dask.text.vocabulary import Vocabulary


class NeuronNames:
    """Names of the neurons of a network of columns.

    Parameters
    ----------
    specification : Specification
        Of the network.
    vocabulary : Vocabulary
        Its dictionaries.
    """

    def __init__(self, specification: Specification, vocabulary: Vocabulary) -> None:
        self._specification, self._vocabulary = specification, vocabulary

    @cached_property
    def segments(self) -> list[str]:
        """See `ConnectionNames.segments`."""
        return segment_names(self._specification)

    def source(self, segment: int, key: int) -> str:
        """See `ConnectionNames.source`."""
        return self.target(key)

    def target(self, key: int) -> str:
        """Return a neuron as column and feature; its column alone for the prime concept neuron."""
        column, feature = (int(part) for part in unpack_neuron(key))
        concept = self._vocabulary.concepts[column]
        return concept if feature == 0 else f"{concept}/{self._vocabulary.features[feature]}"

    def of_arrays(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, NameTable]:
        """Return the concepts and words of both ends; the word of a prime concept neuron is the noun of its column."""
        names: dict[str, NameTable] = {}
        concepts, features = self._vocabulary.concepts, self._vocabulary.features
        words = [*features, *concepts]
        for end in ("src", "tgt"):
            column, feature = arrays[f"{end}_col"], arrays[f"{end}_feat"]
            names[f"{end}_col_name"] = (concepts, column)
            names[f"{end}_feat_name"] = (words, np.where(feature == 0, column + len(features), feature))
        return names


def segment_names(specification: Specification) -> list[str]:
    """Return a name for every segment.

    Examples
    --------
    >>> segment_names(Specification())[1:4]
    ['1 column before', 'same column', '5 or more tokens before']
    """
    columns, features = specification.column_segments, specification.feature_segments
    names = [_distance(columns - 1 - at, "column", specification.column_catch_all and at == 0) for at in range(columns)]
    names += [_distance(features - at, "token", specification.feature_catch_all and at == 0) for at in range(features)]
    return names + ["soma"] * (specification.segments - len(names))


def _distance(steps: int, what: str, catch_all: bool) -> str:
    if steps == 0:
        return "any column" if catch_all else f"same {what}"
    if catch_all:
        return f"{steps} or more {what}s before"
    return f"{steps} {what}{'s' if steps > 1 else ''} before"
