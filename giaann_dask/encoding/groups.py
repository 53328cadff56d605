"""Groups: the units of text that one task reads together.

Covers: how many units make a group, and what the ledger has to record of them. Does not cover: which
units there are (`sources`) and what becomes of a group (`stream`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from giaann_dask.encoding.sources import CorpusRange, Unit, can_join
from giaann_dask.text.ledger import LedgerEntry

# A corpus is read so much more quickly than text.
CORPUS_BLOCK = 4


@dataclass(frozen=True, kw_only=True)
class GroupLimits:
    """How large a group may be; a single unit may be larger.

    Attributes
    ----------
    characters : int
        Text, about; of a corpus `CORPUS_BLOCK` times as much.
    sequences : int or None
        Sequences of a corpus; those of text are not known before it is read.
    """

    characters: int
    sequences: int | None = None


@dataclass
class Group:
    """Units that one task reads.

    Attributes
    ----------
    units : list of Unit
        In the order of the input.
    skips : list of int
        Sequences of each that the network has already.
    positions : list of (int or None)
        Where the ledger has each unit; None for a new one.
    read : int
        Characters of the inputs up to the end of the group.
    """

    units: list[Unit] = field(default_factory=list)
    skips: list[int] = field(default_factory=list)
    positions: list[int | None] = field(default_factory=list)
    read: int = 0

    @property
    def weight(self) -> int:
        """Characters of the units."""
        return sum(unit.weight for unit in self.units)

    def takes(self, unit: Unit, skip: int, limits: GroupLimits) -> bool:
        """Return whether a unit may be added; to an empty group every one may."""
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

    def rest(self) -> Group:
        """Return the group without its first unit."""
        return Group(self.units[1:], self.skips[1:], self.positions[1:], self.read)

    def ledger_updates(
        self, part_sequences: tuple[int, ...], sequences: int
    ) -> tuple[tuple[int | None, LedgerEntry], ...]:
        """Return the ledger entries when the first new sequences of the group count.

        Parameters
        ----------
        part_sequences : tuple of int
            Sequences of each unit, those that are skipped included.
        sequences : int
            How many new ones count.
        """
        updates: list[tuple[int | None, LedgerEntry]] = []
        left = sequences
        for unit, skip, position, total in zip(self.units, self.skips, self.positions, part_sequences, strict=True):
            taken = min(max(total - skip, 0), left)
            left -= taken
            done = skip + taken
            if done or total == 0:
                updates.append((position, LedgerEntry(unit.identity, done, done >= total)))
        return tuple(updates)
