"""Pack places of neurons in the training sequences into postings: an inverted index in the form of a run.

A posting is an entry of a `giaann_dask.runs.run.Run` whose source is a neuron (profile ``contexts``: the key of a word
or of an ending), whose target is a sequence and a position in it, and whose strength holds what the increments of a
pair of tokens depend on besides. Each place is there once, so that merging runs joins their postings, and splitting,
packing and committing them works as for connections. They are packed with the differences of sequences (``gaps``).
Where a row is divided among regions, its postings are divided by groups of sequences (`placement.SequencePart`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import StrengthOverflowError
from giaann_dask.keys import Integers, pack_target, unpack_target
from giaann_dask.runs.placement import SEQUENCE_BITS, SEQUENCE_MASK, Placement
from giaann_dask.runs.run import Run, narrow_strength
from giaann_dask.spec import MAXIMUM_BRANCHES, MAXIMUM_SEGMENTS, NEURON_BITS

# Sequences are numbered by the lower bits of a target's neuron. A position takes the bits of the branch and of the
# segment, and those of long sentences of profile contexts the other bits of the neuron.
_POSITION_LOW = MAXIMUM_BRANCHES * MAXIMUM_SEGMENTS
_MAXIMUM_POSITION = _POSITION_LOW << (NEURON_BITS - SEQUENCE_BITS)


class Postings(NamedTuple):
    """Places of one neuron or of several.

    Attributes
    ----------
    sequence, position : ndarray
        Number of the sequence in the network, and position of the token in it; int64, one of each for every place.
    attributes : ndarray
        What the posting holds besides (`giaann_dask.models.columns.connections`), not negative; int64.
    """

    sequence: Integers
    position: Integers
    attributes: Integers

    def select(self, chosen: npt.NDArray[np.bool_] | Integers) -> Postings:
        """Return some of the places."""
        return Postings(*(column[chosen] for column in self))


def make_postings(source: Integers, places: Postings) -> Run:
    """Return the run of some places, given in any order.

    Parameters
    ----------
    source : ndarray
        Neuron, word or ending at each place; int64.
    places : Postings
        The places; each with a source once.

    Raises
    ------
    StrengthOverflowError
        If a position or the number of a sequence has more bits than there are.

    Examples
    --------
    >>> places = Postings(np.array([3, 0]), np.array([200, 5]), np.array([7, 0]))
    >>> run = make_postings(np.array([9, 9]), places)
    >>> [column.tolist() for column in read_postings(run.target, run.strength)]
    [[0, 3], [5, 200], [0, 7]]
    """
    most = int(places.position.max(initial=0)), int(places.sequence.max(initial=0))
    if most[0] >= _MAXIMUM_POSITION or most[1] > SEQUENCE_MASK:
        raise StrengthOverflowError(
            f"a sequence of {most[0] + 1:,} tokens, or number {most[1]:,}",
            f"at most {_MAXIMUM_POSITION:,} tokens, and {SEQUENCE_MASK:,} sequences, in an indexed network",
            "divide such text into sentences, or train without an index",
        )
    high, low = places.position // _POSITION_LOW, places.position % _POSITION_LOW
    neuron = (high << SEQUENCE_BITS) | places.sequence
    target = pack_target(low // MAXIMUM_BRANCHES, neuron, low % MAXIMUM_BRANCHES)
    order = np.lexsort((target, source))
    source = source[order]
    rows = np.flatnonzero(np.concatenate([np.ones(min(1, len(source)), np.bool_), source[1:] != source[:-1]]))
    # Strengths are positive.
    return Run(source[rows], np.append(rows, len(source)), target[order], narrow_strength(places.attributes[order] + 1))


def read_postings(target: Integers, strength: npt.NDArray[np.signedinteger]) -> Postings:
    """Return the places of some entries of a run of postings, sorted by sequence and position.

    Parameters
    ----------
    target, strength : ndarray
        Of the entries, as in the run.
    """
    segment, neuron, branch = unpack_target(target)
    high, sequence = neuron >> SEQUENCE_BITS, neuron & SEQUENCE_MASK
    position = high * _POSITION_LOW + segment * MAXIMUM_BRANCHES + branch
    order = np.lexsort((position, sequence))
    return Postings(sequence[order], position[order], strength[order].astype(np.int64) - 1)


def renumber_postings(run: Run, numbers: SequenceNumbers) -> Run:
    """Return postings with other numbers of sequences, without those that have none.

    Examples
    --------
    >>> run = make_postings(np.array([5, 5, 6]), Postings(*np.array([[0, 1, 1], [2, 2, 3], [0, 0, 0]])))
    >>> moved = renumber_postings(run, SequenceNumbers(np.array([0, 1, 2]), np.array([-1, 7])))
    >>> moved.source.tolist(), read_postings(moved.target, moved.strength).sequence.tolist()
    ([5, 6], [7, 7])
    """
    source = np.repeat(run.source, np.diff(run.pointer))
    segment, neuron, branch = unpack_target(run.target)
    old, high = neuron & SEQUENCE_MASK, neuron >> SEQUENCE_BITS
    new = numbers.of(old)
    kept = new >= 0
    position = (high * _POSITION_LOW + segment * MAXIMUM_BRANCHES + branch)[kept]
    attributes = run.strength[kept].astype(np.int64) - 1
    return make_postings(source[kept], Postings(new[kept], position, attributes))


def last_sequence(run: Run) -> int:
    """Return the largest number of a sequence in postings, -1 where there are none."""
    return int((unpack_target(run.target)[1] & SEQUENCE_MASK).max(initial=-1))


class SequenceNumbers(NamedTuple):
    """New numbers of ranges of sequences.

    Attributes
    ----------
    edges : ndarray
        Range r has the sequences ``edges[r]:edges[r + 1]``; int64, shape ``(ranges + 1,)``.
    begins : ndarray
        New number of the first sequence of each range, -1 for those that are left out; int64.
    """

    edges: Integers
    begins: Integers

    def of(self, sequence: Integers) -> Integers:
        """Return the new numbers of sequences, -1 for those that are left out."""
        at = np.searchsorted(self.edges, sequence, side="right") - 1
        begins = self.begins[at]
        return np.where(begins < 0, -1, begins + sequence - self.edges[at])


def divide_postings(source: Integers, places: Postings, placement: Placement) -> dict[int, Run]:
    """Return the postings of some keys by the region that each belongs to."""
    region = placement.regions_of(source)
    found = {}
    for each in np.unique(region).tolist():
        chosen = region == each
        found[each] = make_postings(source[chosen], places.select(chosen))
    return found
