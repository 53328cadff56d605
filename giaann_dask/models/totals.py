"""Define what the lengths and pairs of sequences imply for the totals of their counts, and what a model checks by it.

Strengths that are moved from one connection to another one of the same segment are not found by totals, only by
counting the text again (`giaann_dask.islands.auditing`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from giaann_dask.errors import BundleError
from giaann_dask.keys import unpack_target
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.spec import MAXIMUM_SEGMENTS, Specification
from giaann_dask.text.blocks import CANDIDATE, STATUS_NAMES
from giaann_dask.text.segmentation import EncodedBlock

_HALF = 32
# Sequences of a group at most, and tokens: its text is counted in the memory of one worker.
_MOST = 1 << 31
LARGEST_STRENGTH = (1 << 63) - 1
"""Strength units that a connection can have."""


@dataclass(frozen=True, kw_only=True)
class GroupCounts:
    """Counts of a group of parts of text, which determine the totals of its strengths.

    Attributes
    ----------
    by_status : tuple of int
        Counted sequences by status, in the order of `giaann_dask.text.blocks.STATUS_NAMES`.
    lengths : tuple of (int, int)
        Length in tokens, ascending, and number of the trained sequences of that length.
    pairs : tuple of (int, int, int)
        Column segment (the number of column segments where a pair lies too far apart for any), index of the increment
        in `giaann_dask.models.columns.scaling.increment_table`, and number of such pairs of tokens; ascending. Empty
        in models of words.
    """

    by_status: tuple[int, ...]
    lengths: tuple[tuple[int, int], ...]
    pairs: tuple[tuple[int, int, int], ...] = ()

    @property
    def sequences(self) -> int:
        """Counted sequences, trained or not."""
        return sum(self.by_status)

    @property
    def tokens(self) -> int:
        """Tokens of the trained sequences."""
        return sum(length * number for length, number in self.lengths)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> GroupCounts:
        """Rebuild stored counts; raise a ValueError, TypeError or KeyError where they are none."""
        by_status = tuple(stored["by_status"])
        lengths, pairs = (tuple(map(tuple, stored[name])) for name in ("lengths", "pairs"))
        rows: Sequence[tuple[int, ...]] = [by_status, *lengths, *pairs]
        if any(type(value) is not int or not 0 <= value < 1 << 48 for row in rows for value in row):
            raise ValueError("numbers of another kind")
        intact = len(by_status) == len(STATUS_NAMES) and all(row[-1] for row in (*lengths, *pairs))
        intact = intact and {*map(len, lengths)} <= {2} and {*map(len, pairs)} <= {3}
        ascending = all(a[:-1] < b[:-1] for rows in (lengths, pairs) for a, b in pairwise(rows))
        if not (intact and ascending and all(length >= 1 for length, *_ in lengths)):
            raise ValueError("counts that contradict each other")
        return cls(by_status=by_status, lengths=lengths, pairs=pairs)


class Totals(ABC):
    """Totals that the counts of a group of text imply for a network of a specification.

    Parameters
    ----------
    specification : Specification
        Of the network.
    """

    def __init__(self, specification: Specification) -> None:
        self.specification = specification

    def count_group(self, blocks: Sequence[EncodedBlock]) -> GroupCounts:
        """Count the sequences of blocks by status and length, and their pairs of tokens by distance and columns."""
        status = np.concatenate([block.status for block in blocks])
        lengths = np.concatenate([np.diff(block.offsets)[block.status == CANDIDATE] for block in blocks])
        by_status = tuple(np.bincount(status, minlength=len(STATUS_NAMES)).tolist())
        of_length = np.bincount(lengths)
        found = tuple((length, int(of_length[length])) for length in np.flatnonzero(of_length).tolist())
        return GroupCounts(by_status=by_status, lengths=found, pairs=self.count_pairs(blocks))

    def check_counts(self, counts: GroupCounts, sequences: int) -> None:
        """Check that the counts of a group agree with each other and with the sequences in its ledger.

        Raises
        ------
        BundleError
            If they do not.
        """
        require(max(counts.sequences, counts.tokens) < _MOST, f"less than {_MOST:,} sequences and tokens")
        require(counts.sequences == sequences, "as many sequences as its ledger has")
        lengths = sum(number for _, number in counts.lengths)
        require(lengths == counts.by_status[CANDIDATE], "a length for each sequence")
        self.check_pairs(counts)

    def check_run(self, run: RegionRun, counts: GroupCounts, sizes: tuple[int, int]) -> None:
        """Check the keys, strengths and totals of a group's increments.

        Parameters
        ----------
        run : RegionRun
            Increments of the whole group.
        counts : GroupCounts
            Checked by `check_counts`.
        sizes : tuple of (int, int)
            Concepts and features, with the prime concept feature.

        Raises
        ------
        BundleError
            If they are not what some text of these counts could give.
        """
        for table in (run.connections, run.neurons):
            require(not len(table) or int(table.strength.min()) > 0, "positive strengths")
            require(bool(np.all(np.diff(table.pointer) > 0)), "neurons that have connections")
        totals = self.expected(counts)
        require(totals_of(run.connections) == totals, f"totals of strengths by segment {_named(totals)}")
        self.check_keys(run, counts, sizes)

    def count_pairs(self, blocks: Sequence[EncodedBlock]) -> tuple[tuple[int, int, int], ...]:
        """Return the pairs of `GroupCounts`; none where lengths are enough."""
        return ()

    def check_pairs(self, counts: GroupCounts) -> None:
        """Raise a `BundleError` if the pairs are not those that the lengths imply."""
        require(not counts.pairs, f"no pairs in profile {self.specification.profile}")

    @abstractmethod
    def expected(self, counts: GroupCounts) -> list[int]:
        """Return the total strength of all connections of a group by segment.

        Returns
        -------
        list of int
            Strength units, one for each of `MAXIMUM_SEGMENTS` segments.
        """

    @abstractmethod
    def bound(self, tokens: int) -> int:
        """Return strength units that no connection and no neuron of a network of so many trained tokens exceeds."""

    @abstractmethod
    def check_keys(self, run: RegionRun, counts: GroupCounts, sizes: tuple[int, int]) -> None:
        """Raise a `BundleError` if increments have keys or strengths that no text gives; see `check_run`."""


def totals_of(run: Run) -> list[int]:
    """Return the total strength by segment, exactly: sums of halves cannot overflow."""
    segment = unpack_target(run.target)[0]
    strength = run.strength.astype(np.int64)
    totals = np.zeros((2, MAXIMUM_SEGMENTS), np.int64)
    np.add.at(totals[0], segment, strength >> _HALF)
    np.add.at(totals[1], segment, strength & ((1 << _HALF) - 1))
    return [(high << _HALF) + low for high, low in totals.T.tolist()]


def _named(totals: Sequence[int]) -> str:
    return ", ".join(f"{segment}: {total}" for segment, total in enumerate(totals) if total)


def require(holds: bool, expected: str) -> None:
    """Raise a `BundleError` where something does not hold."""
    if not holds:
        raise BundleError("increments that no text can have", expected)
