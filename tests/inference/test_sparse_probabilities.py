"""A sparse answer of a model says what the vector over all words would."""

from __future__ import annotations

import numpy as np
import pytest

from giaann_dask.models.words.predictor import choose_word, most_probable, words_above
from giaann_dask.models.words.seen_words import SeenWords

COUNTS = np.array([9.0, 5.0, 5.0, 2.0, 1.0, 1.0, 1.0])
SEEN = SeenWords(COUNTS, (), total=float(COUNTS.sum()))


@pytest.mark.parametrize(
    ("words", "values", "rest"),
    [([], [], 0.04), ([6, 0], [0.3, 0.01], 0.02), ([1], [0.1], 0.02), ([3, 4], [0.05, 0.0], 0.025), ([2], [0.5], 0.0)],
)
def test_a_sparse_answer_is_that_of_the_vector(words: list[int], values: list[float], rest: float) -> None:
    sparse = SEEN.sparse(words, values, rest)
    dense = rest * COUNTS
    dense[words] = values
    assert sparse.valid()
    assert sparse.total == pytest.approx(dense.sum())
    assert sparse.dense().tolist() == [sparse[word] for word in range(len(COUNTS))] == dense.tolist()
    for count in range(1, 9):
        assert most_probable(sparse, count).tolist() == np.argsort(-dense, kind="stable")[:count].tolist()
    for word in range(len(COUNTS)):
        assert words_above(sparse, word) == words_above(dense, word), word
    assert choose_word(sparse, 0.0, None) == choose_word(dense, 0.0, None)
    drawn = [choose_word(each, 0.8, np.random.default_rng(3)) for each in (sparse, dense)]
    assert drawn[0] == drawn[1]
    assert sparse.without([0, 6]).dense().tolist() == (dense * [0, 1, 1, 1, 1, 1, 0]).tolist()


@pytest.mark.parametrize(
    ("words", "values", "rest"),
    [([0, 0], [0.1, 0.1], 0.0), ([7], [0.1], 0.0), ([-1], [0.1], 0.0), ([1], [-0.1], 0.0), ([1], [np.nan], 0.0)],
)
def test_answers_that_are_none(words: list[int], values: list[float], rest: float) -> None:
    assert not SEEN.sparse(words, values, rest).valid()
    assert not SEEN.sparse([0], [0.1], -1.0).valid()
    assert not SEEN.sparse([0, 1], [0.1], 0.0).valid()
