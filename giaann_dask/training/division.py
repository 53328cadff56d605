"""Divide the sequences of some blocks into the batches of one or more rounds.

The number of rounds and batches is known before anything is encoded. `selection` assigns sequences to batches.

Blocks are read in one piece, so they are divided further only where batches are to be much smaller.
Batches of one sequence are the published scheme: a round has one sequence per compute worker, chosen
from a window. It does not carry over to larger batches: where a batch takes the same place of many
such rounds, already with four sequences in a batch the batches overlap no less, and touch a quarter
more columns, than when sequences that share columns are put into one batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from giaann_dask.training.selection import ColumnTouches, SelectionOptions, assign_batches, choose_rounds


@dataclass(frozen=True)
class Division:
    """Rounds of some blocks.

    Attributes
    ----------
    rounds : int
        Rounds, one after another.
    width : int
        Batches of each, trained at the same time.
    single : bool
        Whether a batch is one sequence.
    """

    rounds: int
    width: int
    single: bool = False

    @property
    def batches(self) -> int:
        """Batches of all rounds; round r has the numbers from ``r * width`` on."""
        return self.rounds * self.width


def divide(sequences: int, joined: int, width: int, batch_sequences: int) -> Division:
    """Return the rounds that some blocks are divided into.

    Parameters
    ----------
    sequences : int
        Counted sequences of the blocks; those that are not trained leave places empty.
    joined : int
        Batches of whole blocks.
    width : int
        Batches that are trained at the same time.
    batch_sequences : int
        Sequences of a batch as asked for.

    Returns
    -------
    Division
        One round of the batches as they are joined, unless batches half as large or smaller are asked
        for.

    Examples
    --------
    >>> divide(18_000, 2, 2, 8192), divide(1_800, 1, 2, 300), divide(9, 1, 2, 1)
    (Division(rounds=1, width=2, single=False), Division(rounds=3, width=2, single=False), \
Division(rounds=5, width=2, single=True))
    """
    if batch_sequences == 1:
        return Division(max(1, -(-sequences // width)), width, single=True)
    wanted = sequences // batch_sequences
    if wanted < 2 * joined:
        return Division(1, joined)
    return Division(-(-wanted // width), min(width, wanted))


def assign(touches: ColumnTouches, division: Division, options: SelectionOptions) -> npt.NDArray[np.int64]:
    """Return the batch of each sequence, numbered through the rounds.

    Parameters
    ----------
    touches : ColumnTouches
        Columns and lengths of the trained sequences.
    division : Division
        Rounds and batches; single ones have a place for each sequence.
    options : SelectionOptions
        Order, window and seed.
    """
    if not division.single:
        return assign_batches(touches, division.batches, options)
    batch = np.empty(len(touches), np.int64)
    batch[choose_rounds(touches, division.width, options)] = np.arange(len(touches))
    return batch
