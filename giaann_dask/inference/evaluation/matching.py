"""Decide whether a prediction is correct: the rule of section 8, "Match".

Covers: comparing predicted neurons with the tokens of encoded sequences by their words, the best
prediction alone or the best few. Does not cover: making predictions (`session`), collecting them in
a task (`evaluation.recording`), and what they add up to (`evaluation.accuracy`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from giaann_dask.inference.rows.cache import RowStatistics
from giaann_dask.keys import unpack_neuron
from giaann_dask.text.vocabulary import Vocabulary

NO_PREDICTION = -1


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Predictions for the tokens of some sequences, as neuron keys.

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
    part : ndarray
        Part of speech of the token: its place in `giaann_dask.spec.PARTS_OF_SPEECH` counted from 1, 0
        where it is not known; uint8.
    candidates : ndarray
        How many neurons could have been predicted; int64.
    runners_up : ndarray
        The next best of them, best first, -1 where there are fewer and where nothing was predicted;
        int64, shape ``(steps, ranks - 1)``.
    tokens : int
        Tokens of the sequences, seed tokens included.
    stopped : int
        Sequences that ended before their last token.
    rows : RowStatistics or None
        How rows were come by; None where all were here.
    probability : ndarray or None
        That of each token (see `evaluation.code_length`), float64; None where it was not asked for.
    """

    sequence: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    surface: tuple[str, ...]
    part: npt.NDArray[np.uint8]
    candidates: npt.NDArray[np.int64]
    runners_up: npt.NDArray[np.int64]
    tokens: int
    stopped: int
    rows: RowStatistics | None = None
    probability: npt.NDArray[np.float64] | None = None


def match_ranks(predictions: Predictions, vocabulary: Vocabulary, *, by_name: bool = False) -> npt.NDArray[np.int64]:
    """Return the rank of the first right candidate of each step.

    A candidate's word is the lemma of its column for the prime concept neuron, else its feature's word. It is right if
    it equals the token's word; for a noun also if it is the concept itself, so that other inflections match through
    their lemma. The column of any other token does not have to be right.

    Parameters
    ----------
    predictions : Predictions
        Steps of the prediction phase, with the runners-up of each.
    vocabulary : Vocabulary
        Dictionaries, expanded by the sequences.
    by_name : bool
        Whether a noun's word is its concept, as in profile ``v2``, and not the form it has in the text.

    Returns
    -------
    ndarray of int64
        1 for a right prediction, 0 where none of the candidates kept is right; shape ``(steps,)``.
    """
    rank = _match(predictions.predicted, predictions, vocabulary, by_name).astype(np.int64)
    for place in range(predictions.runners_up.shape[1]):
        open_yet = np.where(rank == 0, predictions.runners_up[:, place], NO_PREDICTION)
        rank[_match(open_yet, predictions, vocabulary, by_name)] = place + 2
    return rank


def _match(
    predicted: npt.NDArray[np.int64], predictions: Predictions, vocabulary: Vocabulary, by_name: bool
) -> npt.NDArray[np.bool_]:
    """Return which of some neurons, one for each step or -1 for none, are right."""
    found_column, found_feature = unpack_neuron(np.maximum(predicted, 0))
    column, feature = unpack_neuron(predictions.target)
    made = predicted != NO_PREDICTION
    noun, prime = feature == 0, found_feature == 0
    # A word is one feature, and a lemma one column; only a word of the one kind and one of the other are compared.
    right: npt.NDArray[np.bool_] = made & np.where(noun, prime & (found_column == column), found_feature == feature)
    for i in np.flatnonzero(made & ~right & (noun | prime)).tolist():
        word = vocabulary.concepts[found_column[i]] if prime[i] else vocabulary.features[found_feature[i]]
        concept = vocabulary.concepts[column[i]] if by_name else predictions.surface[i]
        right[i] = word == (concept if noun[i] else vocabulary.features[feature[i]])
    return right


def target_names(predictions: Predictions, vocabulary: Vocabulary) -> list[str]:
    """Return the word of each step's token: the form that a noun has in the text, or a feature's name."""
    column, feature = unpack_neuron(predictions.target)
    pairs = zip(column.tolist(), feature.tolist(), predictions.surface, strict=True)
    return [vocabulary.features[f] if f else surface or vocabulary.concepts[c] for c, f, surface in pairs]
