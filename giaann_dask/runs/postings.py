"""Pack places of neurons in the training sequences into postings: an inverted index in the form of a run.

A posting is an entry of a `giaann_dask.runs.run.Run` whose source is a neuron (profile ``contexts``: the key of a word
or of an ending), whose target is a sequence and a position in it, and whose strength holds what the increments of a
pair of tokens depend on besides. Each place is there once, so that merging runs joins their postings, and splitting,
packing and committing them works as for connections. They are packed with the differences of sequences (``gaps``).
Where a row is divided among regions, its postings are divided by groups of sequences (`placement.SequencePart`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import StrengthOverflowError
from giaann_dask.keys import Integers, pack_target, unpack_target
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packed_rows import RowPart, RowReader
from giaann_dask.runs.placement import SEQUENCE_BITS, SEQUENCE_MASK, Placement
from giaann_dask.runs.run import Run, narrow_strength, pointer_of
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

    def select(self, chosen: npt.NDArray[np.bool_] | Integers | slice) -> Postings:
        """Return some of the places."""
        return Postings(*(column[chosen] for column in self))

    def between(self, low: int, high: int) -> Postings:
        """Return the places in sequences from one number to another, not included; they are sorted by sequence."""
        return self.select(slice(*np.searchsorted(self.sequence, (low, high)).tolist()))


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


class PostingsPart(NamedTuple):
    """Some successive postings of one key in one run, which are not decoded yet.

    Attributes
    ----------
    rows : RowReader
        Reads the run.
    key : int
        The neuron, word or ending.
    part : RowPart
        Part of its row.
    """

    rows: RowReader
    key: int
    part: RowPart

    @property
    def targets(self) -> int:
        """Number of targets: of places that differ by more than the segment."""
        return self.part.end - self.part.begin

    @property
    def sequences(self) -> tuple[int, int]:
        """The first and the last sequence that it may have."""
        first, last = self.part.first, self.part.last
        # Sequences begin again where positions reach the bits above them.
        alike = first >> SEQUENCE_BITS == last >> SEQUENCE_BITS
        return (first & SEQUENCE_MASK, last & SEQUENCE_MASK) if alike else (0, SEQUENCE_MASK)


def find_postings(readers: Sequence[RowReader], key: int, limit: int, size: int) -> list[PostingsPart]:
    """Return the postings of a key in some runs: one part of each, or parts of a size if the targets exceed a limit."""
    found = [PostingsPart(rows, key, part) for rows in readers for part in rows.row_parts(key)]
    if sum(part.targets for part in found) > limit:
        found = [PostingsPart(rows, key, part) for rows in readers for part in rows.row_parts(key, size)]
    return found


def join_postings(parts: Sequence[PostingsPart], low: int, high: int) -> Postings:
    """Return the places in sequences from one number to another, not included, decoding only parts that may have some.

    Parameters
    ----------
    parts : sequence of PostingsPart
        Of one key; they are sorted by sequence and position in the result.
    low, high : int
        Numbers of sequences.
    """
    runs = []
    for part in parts:
        first, last = part.sequences
        if first < high and last >= low:
            runs.append(part.rows.part(part.key, part.part))
    run = merge_runs(runs)
    return read_postings(run.target, run.strength).between(low, high)


def sequence_ranges(parts: Sequence[PostingsPart], limit: int) -> Iterator[tuple[int, int]]:
    """Yield successive ranges of all sequences, ends not included; the parts of each have so many targets, if possible.

    Ranges end where a part ends, so the parts of a range may have more targets if they overlap.
    """
    first, last = np.array([part.sequences for part in parts], np.int64).reshape(-1, 2).T
    targets = np.array([part.targets for part in parts], np.int64)
    ends = np.unique(np.append(last, SEQUENCE_MASK)) + 1
    order = np.argsort(first)
    # Targets of parts that begin before each end.
    begun = pointer_of(targets[order])[np.searchsorted(first[order], ends)]
    low, at = 0, 0
    while at < len(ends):
        ended = int(targets[last < low].sum())
        at = max(at + 1, int(np.searchsorted(begun, ended + limit, side="right")))
        yield low, int(ends[at - 1])
        low = int(ends[at - 1])


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
