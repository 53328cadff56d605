"""Choose words by their probability: the most probable ones, or drawn ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def most_probable(chance: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the most probable words, best first, equal ones by number.

    Examples
    --------
    >>> most_probable(np.array([0.1, 0.6, 0.3]), 2).tolist()
    [1, 2]
    """
    count = min(count, len(chance))
    likely = np.argpartition(-chance, count - 1)[:count]
    return likely[np.lexsort((likely, -chance[likely]))]


def choose_word(chance: npt.NDArray[np.float64], temperature: float, draws: np.random.Generator) -> int:
    """Return the number of the most probable word, the first of equals, or of one that is drawn.

    Parameters
    ----------
    chance : ndarray
        Probability of each word, not all 0; float64, shape ``(words,)``.
    temperature : float
        0 takes the most probable word, 1 draws by probability.
    draws : numpy.random.Generator
        Source of random numbers.

    Examples
    --------
    >>> choose_word(np.array([0.1, 0.6, 0.3]), 0.0, np.random.default_rng(0))
    1
    """
    if not temperature:
        return int(np.argmax(chance))
    # In logarithms, so that a low temperature does not make all of them 0, and relative to the largest before the
    # division, so that the lowest leaves the most probable words, whose logarithms are then 0.
    with np.errstate(divide="ignore", over="ignore"):
        scaled = np.log(chance / chance.max()) / temperature
    ladder = np.cumsum(np.exp(scaled))
    return int(np.searchsorted(ladder, draws.random() * ladder[-1], side="right"))
