"""When a prediction is right: the rule of section 8, "Match", and what it adds up to.

Covers: comparing predicted neurons with the tokens of encoded sequences by their words.
Does not cover: making predictions (`session`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from giaann_dask.network.keys import unpack_neuron
from giaann_dask.text.vocabulary import Vocabulary

NO_PREDICTION = -1


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What was predicted for the tokens of some sequences, without words.

    Attributes
    ----------
    sequence : ndarray
        Number of each step's sequence; int64, shape ``(steps,)``.
    position : ndarray
        Index of the predicted token in its sequence; int64.
    predicted : ndarray
        Predicted neuron key, -1 for none; int64.
    target : ndarray
        Neuron key of the token; int64.
    surface : tuple of str
        The token's word where it is a noun, else empty.
    tokens : int
        Tokens of the sequences, seed tokens included.
    stopped : int
        Sequences that ended before their last token.
    """

    sequence: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    surface: tuple[str, ...]
    tokens: int
    stopped: int


def match_predictions(predictions: Predictions, vocabulary: Vocabulary) -> npt.NDArray[np.bool_]:
    """Return which predictions are right.

    A prediction's word is the lemma of its column for the prime concept neuron, else its feature's
    word. It is right if it equals the token's word; for a noun also if it is the concept itself,
    so that other inflections match through their lemma. The column of any other token does not
    have to be right.

    Parameters
    ----------
    predictions : Predictions
        Steps of the prediction phase.
    vocabulary : Vocabulary
        Dictionaries, expanded by the sequences.

    Returns
    -------
    ndarray of bool
        Shape ``(steps,)``.
    """
    predicted_column, predicted_feature = unpack_neuron(np.maximum(predictions.predicted, 0))
    column, feature = unpack_neuron(predictions.target)
    made = predictions.predicted != NO_PREDICTION
    right = np.zeros(len(made), np.bool_)
    for i in np.flatnonzero(made):
        prime = predicted_feature[i] == 0
        word = _word(vocabulary, int(predicted_column[i]), int(predicted_feature[i]))
        if feature[i] == 0:
            same_concept = bool(prime) and predicted_column[i] == column[i]
            right[i] = same_concept or word == predictions.surface[i]
        else:
            right[i] = word == vocabulary.features[int(feature[i])]
    return right


def _word(vocabulary: Vocabulary, column: int, feature: int) -> str:
    return vocabulary.features[feature] if feature else vocabulary.concepts[column]


def join(parts: Sequence[Predictions]) -> Predictions:
    """Return the predictions of several tasks as one."""
    empty = [np.zeros(0, np.int64)]
    return Predictions(
        sequence=np.concatenate(empty + [p.sequence for p in parts]),
        position=np.concatenate(empty + [p.position for p in parts]),
        predicted=np.concatenate(empty + [p.predicted for p in parts]),
        target=np.concatenate(empty + [p.target for p in parts]),
        surface=tuple(word for p in parts for word in p.surface),
        tokens=sum(p.tokens for p in parts),
        stopped=sum(p.stopped for p in parts),
    )
