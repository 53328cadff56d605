"""Score text by n-gram models for comparison: plain backoff, and modified Kneser-Ney smoothing.

Both use the counts of profile ``contexts`` on the same tokens, and the same scoring code. No library is used: the
counts exist already, and NLTK's `KneserNeyInterpolated` has a single discount instead of three and answers one query at
a time. The smoothed model is the chain of `contexts.tables` without further evidence.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import require_option
from giaann_dask.models.contexts.scores import LogLinearModel, PoolingOptions
from giaann_dask.models.contexts.tables import PRIOR_COUNTS, PooledTables
from giaann_dask.models.words.score_report import MAXIMUM_ORDER
from giaann_dask.models.words.stream import NONE, TokenStream


def kneser_ney(tables: PooledTables, order: int = MAXIMUM_ORDER) -> LogLinearModel:
    """Return an interpolated n-gram model with modified Kneser-Ney smoothing.

    Parameters
    ----------
    tables : PooledTables
        What was counted.
    order : int
        Words of the longest n-gram. Lower orders than `MAXIMUM_ORDER` keep the continuation counts of
        their longest contexts, which is a little worse than token counts there.

    Raises
    ------
    OptionError
        If the order is not from 1 to `MAXIMUM_ORDER`.
    """
    return LogLinearModel(tables, smoothing(order))


def smoothing(order: int = MAXIMUM_ORDER) -> PoolingOptions:
    """Return how evidence is pooled by the model that `kneser_ney` returns; the chain is all of it."""
    _require_order(order)
    return PoolingOptions(chain=order - 1, remembered_tokens=0)


def backoff_matches(tables: PooledTables, stream: TokenStream, order: int = MAXIMUM_ORDER) -> npt.NDArray[np.bool_]:
    """Return at which tokens plain backoff is right.

    The longest context that was ever seen predicts the word that most often followed it; of equals the
    one that is most frequent altogether.

    Parameters
    ----------
    tables : PooledTables
        What was counted.
    stream : TokenStream
        Text to predict.
    order : int
        Words of the longest n-gram.

    Returns
    -------
    ndarray
        Bool, shape ``(tokens,)``.
    """
    _require_order(order)
    rows = tables.find_rows(stream)[:, : order - 1]
    # Words are numbered by falling count, so that number 0 is what an empty context predicts.
    predicted = np.zeros(len(stream), np.int64)
    for kind in range(rows.shape[1]):
        found = np.flatnonzero(rows[:, kind] != NONE)
        distinct, which = np.unique(rows[found, kind], return_inverse=True)
        best = np.array([_most_frequent(tables, row) for row in distinct.tolist()], np.int64)
        if len(found):
            predicted[found] = best[which]
    number = tables.word_numbers(stream.keys)
    matches: npt.NDArray[np.bool_] = predicted == number[stream.index]
    return matches


def _most_frequent(tables: PooledTables, row: int) -> int:
    """Return the word that most often followed a context."""
    entries = slice(int(tables.pointer[row]), int(tables.pointer[row + 1]))
    word = tables.word[entries]
    # Evidence is the logarithm of 1 + count / prior; single precision tells counts apart up to a million.
    prior = PRIOR_COUNTS * tables.share[word]
    count = np.rint(np.expm1(tables.evidence[entries].astype(np.float64)) * prior)
    return int(word[np.argmax(count)])


def _require_order(order: int) -> None:
    require_option(1 <= order <= MAXIMUM_ORDER, "order", order, f"1 to {MAXIMUM_ORDER}")
