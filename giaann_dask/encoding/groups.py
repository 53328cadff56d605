"""Group units of text for the tasks that read them, and compute their ledger entries.

Does not cover: the units (`sources`) and processing groups (`stream`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from giaann_dask.encoding.sources import CorpusRange, Unit, can_join
from giaann_dask.text.ledger import LedgerEntry

# Factor of the group size for corpora, which are read that much faster than text.
CORPUS_BLOCK = 4


@dataclass(frozen=True, kw_only=True)
class GroupLimits:
    """Size limits of a group; a single unit may exceed them.

    Attributes
    ----------
    characters : int
        Approximate size of text; `CORPUS_BLOCK` times as much for a corpus.
    sequences : int or None
        Maximum number of sequences of a corpus; that of text is unknown before reading.
    """

    characters: int
    sequences: int | None = None


@dataclass
class Group:
    """Units that one task reads together.

    Attributes
    ----------
    units : list of Unit
        In the order of the input.
    skips : list of int
        Number of sequences of each unit that are already in the network.
    positions : list of (int or None)
        Position of each unit in the ledger; None for a new one.
    read : int
        Characters of the inputs up to the end of the group.
    """

    units: list[Unit] = field(default_factory=list)
    skips: list[int] = field(default_factory=list)
    positions: list[int | None] = field(default_factory=list)
    read: int = 0

    @property
    def weight(self) -> int:
        """Sum of the units' weights in characters."""
        return sum(unit.weight for unit in self.units)

    def accepts(self, unit: Unit, skip: int, limits: GroupLimits) -> bool:
        """Return whether a unit may be added; an empty group accepts any unit."""
        if not self.units:
            return True
        if not can_join(self.units, self.skips, unit, skip):
            return False
        weight, corpus = self.weight + unit.weight, isinstance(unit.content, CorpusRange)
        if not corpus or limits.sequences is None:
            return weight <= (CORPUS_BLOCK if corpus else 1) * limits.characters
        ranges = [each.content for each in (*self.units, unit) if isinstance(each.content, CorpusRange)]
        sequences = sum(each.stop - each.start for each in ranges) - sum(self.skips) - skip
        return weight <= CORPUS_BLOCK * limits.characters and sequences <= limits.sequences

    def without_first(self) -> Group:
        """Return the group without its first unit."""
        return Group(self.units[1:], self.skips[1:], self.positions[1:], self.read)

    def ledger_updates(
        self, part_sequences: tuple[int, ...], sequences: int
    ) -> tuple[tuple[int | None, LedgerEntry], ...]:
        """Return the ledger entries after the first new sequences of the group have been counted.

        Parameters
        ----------
        part_sequences : tuple of int
            Sequences of each unit, including skipped ones.
        sequences : int
            Number of new sequences that are counted.
        """
        updates: list[tuple[int | None, LedgerEntry]] = []
        left = sequences
        for unit, skip, position, total in zip(self.units, self.skips, self.positions, part_sequences, strict=True):
            counted = min(max(total - skip, 0), left)
            left -= counted
            done = skip + counted
            if done or total == 0:
                updates.append((position, LedgerEntry(unit.identity, done, done >= total)))
        return tuple(updates)
