"""Score text by n-gram models for comparison: plain backoff, and modified Kneser-Ney smoothing.

Both use the counts of profile ``contexts`` on the same tokens, and the same scoring code. No library is used: the
counts exist already, and NLTK's `KneserNeyInterpolated` has a single discount instead of three and answers one query at
a time. The smoothed model is the chain of `contexts.tables` without further evidence.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from giaann_dask.models.contexts.scores import PoolingOptions
from giaann_dask.models.contexts.tables import PRIOR_COUNTS, PooledTables
from giaann_dask.models.words.score_report import MAXIMUM_ORDER
from giaann_dask.models.words.stream import NONE, TokenStream

# Pooling of evidence that is an interpolated n-gram model with modified Kneser-Ney smoothing: the chain is all of it.
KNESER_NEY = PoolingOptions(chain=MAXIMUM_ORDER - 1, remembered_tokens=0)


def backoff_matches(tables: PooledTables, stream: TokenStream) -> npt.NDArray[np.bool_]:
    """Return at which tokens plain backoff is right.

    The longest context that was ever seen predicts the word that most often followed it; of equals the
    one that is most frequent altogether.

    Parameters
    ----------
    tables : PooledTables
        What was counted.
    stream : TokenStream
        Text to predict.

    Returns
    -------
    ndarray
        Bool, shape ``(tokens,)``.
    """
    rows = tables.find_rows(stream)[:, : MAXIMUM_ORDER - 1]
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
