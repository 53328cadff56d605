"""Record where the sequences of a network with an index come from: part of text, number in it, and its place.

Sequences are numbered in the order in which they are counted. A part that is read in several trainings has a range of
numbers for each. The ledger (`giaann_dask.text.ledger`) has the identities of the parts; `giaann_dask.tracing` finds
their text again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import zarr

from giaann_dask.errors import StoreDamagedError
from giaann_dask.keys import Integers
from giaann_dask.runs.postings import SequenceNumbers
from giaann_dask.runs.run import pointer_of
from giaann_dask.storage import Write, append_values, read_arrays
from giaann_dask.text.names import append_strings, string_arrays, strings_of

_PLACES, _PLACE_OF, _RANGES = "origin_places", "origin_place", "origin_ranges"
ORIGIN_ARRAYS = (*string_arrays(_PLACES), _PLACE_OF, _RANGES)
"""Names of the arrays of a network that `origin_writes` writes."""


class SequenceRange(NamedTuple):
    """Consecutive sequences of a network that come from one part of text.

    Attributes
    ----------
    part : int
        Place of the part in the ledger.
    begin : int
        Number of the first of them among the sequences of the part.
    sequences : int
        How many there are.
    """

    part: int
    begin: int
    sequences: int


class Origins:
    """Origins of the sequences of a network.

    Parameters
    ----------
    places : sequence of str
        Places that text was read from, as JSON (`giaann_dask.encoding.sources.describe_place`).
    place_of : sequence of int
        Place of each part of the ledger; -1 where none is known.
    ranges : sequence of SequenceRange
        Sequences in the order of their numbers.

    Examples
    --------
    >>> origins = Origins()
    >>> origins.record(SequenceRange(0, 0, 3), "a.txt")
    >>> origins.record(SequenceRange(1, 0, 2), "a.txt")
    >>> origins.sequences, origins.find(4), origins.places
    (5, (1, 1), ['a.txt'])
    """

    def __init__(
        self, places: Sequence[str] = (), place_of: Iterable[int] = (), ranges: Iterable[SequenceRange] = ()
    ) -> None:
        self.places, self.place_of, self.ranges = list(places), list(place_of), list(ranges)
        self._number = {place: number for number, place in enumerate(self.places)}
        self._edges: Integers | None = None

    def record(self, sequences: SequenceRange, place: str | None) -> None:
        """Append the next sequences, of which there may be none, and the place of their part."""
        self.place_of.extend([-1] * (sequences.part + 1 - len(self.place_of)))
        if place is not None and self.place_of[sequences.part] < 0:
            number = self._number.setdefault(place, len(self.places))
            if number == len(self.places):
                self.places.append(place)
            self.place_of[sequences.part] = number
        if sequences.sequences:
            self.ranges.append(sequences)
        self._edges = None

    @property
    def edges(self) -> Integers:
        """Number of the first sequence of each range and, at the end, of all; int64."""
        if self._edges is None:
            counts = np.array([each.sequences for each in self.ranges], np.int64)
            self._edges = pointer_of(counts)
        return self._edges

    @property
    def sequences(self) -> int:
        """Number of all sequences."""
        return int(self.edges[-1])

    def find(self, sequence: int) -> tuple[int, int]:
        """Return the part of a sequence, by its place in the ledger, and its number in the part."""
        at = int(np.searchsorted(self.edges, sequence, side="right")) - 1
        found = self.ranges[at]
        return found.part, found.begin + sequence - int(self.edges[at])

    def place(self, part: int) -> str | None:
        """Return the place of a part, None where none is known."""
        number = self.place_of[part] if part < len(self.place_of) else -1
        return None if number < 0 else self.places[number]

    def joined(self, other: Origins, parts: Sequence[int]) -> Origins:
        """Return these origins followed by those of another network.

        Parameters
        ----------
        other : Origins
            Of the other network.
        parts : sequence of int
            Where each of its parts is in the ledger of both.
        """
        whole = Origins(self.places, self.place_of, self.ranges)
        for part in range(len(other.place_of)):
            whole.record(SequenceRange(parts[part], 0, 0), other.place(part))
        whole.ranges.extend(each._replace(part=parts[each.part]) for each in other.ranges)
        return whole

    def since(self, before: Origins, parts: Sequence[int]) -> tuple[Origins, SequenceNumbers]:
        """Return the origins of the sequences after those of an earlier commit, and the new numbers of all.

        Parameters
        ----------
        before : Origins
            Of the earlier commit.
        parts : sequence of int
            The parts of the ledger that have such sequences, in the order of their new numbers.
        """
        number = {part: at for at, part in enumerate(parts)}
        later = Origins()
        for part in parts:
            later.record(SequenceRange(number[part], 0, 0), self.place(part))
        later.ranges.extend(each._replace(part=number[each.part]) for each in self.ranges[len(before.ranges) :])
        edges = np.array([0, before.sequences, self.sequences], np.int64)
        return later, SequenceNumbers(edges, np.array([-1, 0], np.int64))

    def arranged(self, parts: Sequence[int]) -> tuple[Origins, SequenceNumbers]:
        """Return these origins with the parts at other places of a ledger, and the new numbers of the sequences.

        Parameters
        ----------
        parts : sequence of int
            Where each part is in the other ledger, whose order sequences are numbered in.
        """
        whole = Origins()
        for part in sorted(range(len(self.place_of)), key=parts.__getitem__):
            whole.record(SequenceRange(parts[part], 0, 0), self.place(part))
        counts = np.array([each.sequences for each in self.ranges], np.int64)
        order = sorted(range(len(self.ranges)), key=lambda at: (parts[self.ranges[at].part], self.ranges[at].begin))
        whole.ranges.extend(self.ranges[at]._replace(part=parts[self.ranges[at].part]) for at in order)
        begins = np.zeros(len(order), np.int64)
        begins[order] = np.cumsum(counts[order]) - counts[order]
        return whole, SequenceNumbers(self.edges, begins)

    def without(self, removed: Sequence[int]) -> tuple[Origins, SequenceNumbers]:
        """Return the origins without some parts of the ledger, and the new numbers of the sequences."""
        gone = set(removed)
        kept = [part for part in range(len(self.place_of)) if part not in gone]
        number = {part: at for at, part in enumerate(kept)}
        ranges = [each._replace(part=number[each.part]) for each in self.ranges if each.part not in gone]
        counts = np.array([0 if each.part in gone else each.sequences for each in self.ranges], np.int64)
        begins = np.where(counts > 0, np.cumsum(counts) - counts, -1)
        rest = Origins()
        for part in kept:
            rest.record(SequenceRange(number[part], 0, 0), self.place(part))
        rest.ranges.extend(ranges)
        return rest, SequenceNumbers(self.edges, begins)


def origin_writes(origins: Origins, stored: Origins | None) -> list[Write]:
    """Return what appends origins to a group that has the first of them, and creates the arrays where none are."""
    before = Origins() if stored is None else stored
    places, parts, ranges = len(before.places), len(before.place_of), len(before.ranges)
    own = np.array(origins.ranges[ranges:], np.int64).reshape(-1, 3)
    return [
        partial(append_strings, name=_PLACES, strings=origins.places[places:]),
        partial(append_values, name=_PLACE_OF, values=np.array(origins.place_of[parts:], np.int32)),
        partial(append_values, name=_RANGES, values=own),
    ]


def read_origins(group: zarr.Group) -> Origins:
    """Return the origins in a group.

    Raises
    ------
    StoreDamagedError
        If they are missing, or contradict each other.
    """
    arrays = read_arrays(group, ORIGIN_ARRAYS)
    places, place_of = strings_of(arrays, _PLACES), arrays[_PLACE_OF].tolist()
    ranges = [SequenceRange(*each) for each in arrays[_RANGES].tolist()]
    if max(place_of, default=-1) >= len(places) or any(each.sequences < 1 or each.begin < 0 for each in ranges):
        raise StoreDamagedError("the origins of sequences contradict each other", "places that there are")
    return Origins(places, place_of, ranges)
