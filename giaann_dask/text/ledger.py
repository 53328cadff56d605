"""Record which parts of text have been counted, by content, so that no text is counted twice.

An interrupted run resumes after its last commit because of the ledger. A part that occurs twice in the input is
counted twice; if the ledger has one entry for it, it is skipped once. So after reading an input, a network contains
that input exactly once, however often it is read. The entries are stored in a Zarr group.

Does not cover: dividing text into parts (`reading`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.storage import read_arrays, update_values
from giaann_dask.text.tokens import Part

_ARRAYS = ("ledger_identity", "ledger_sequences", "ledger_complete")


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Entry of a part that has been read completely or partially.

    Attributes
    ----------
    identity : bytes
        16 bytes from `identify`.
    sequences : int
        Sequences of the part that have been counted.
    complete : bool
        Whether these are all sequences of the part.
    """

    identity: bytes
    sequences: int
    complete: bool


async def write_entries(group: zarr.AsyncGroup, entries: Sequence[LedgerEntry]) -> None:
    """Make the ledger in a Zarr group have some entries, the first of which it has; those may have grown."""
    identity = np.frombuffer(b"".join(entry.identity for entry in entries), np.uint8)
    values: tuple[npt.NDArray[Any], ...] = (
        identity.reshape(-1, 16),
        np.array([entry.sequences for entry in entries], np.int64),
        np.array([entry.complete for entry in entries], np.bool_),
    )
    await asyncio.gather(*(update_values(group, *each) for each in zip(_ARRAYS, values, strict=True)))


def read_entries(group: zarr.Group) -> list[LedgerEntry]:
    """Return the entries of the ledger in a Zarr group.

    Raises
    ------
    StoreDamagedError
        If the ledger is missing.
    """
    identity, sequences, complete = read_arrays(group, _ARRAYS).values()
    rows = zip(identity, sequences.tolist(), complete.tolist(), strict=True)
    return [LedgerEntry(part.tobytes(), counted, whole) for part, counted, whole in rows]


def identify(part: Part, tagger: str) -> bytes:
    """Return the identity of a part and its tagger: the same text counts as new with another tagger."""
    digest = hashlib.blake2b(part.fingerprint(), digest_size=16)
    digest.update(tagger.encode())
    return digest.digest()


class Ledger:
    """Ledger entries in the order in which their parts were first read.

    Parameters
    ----------
    entries : iterable of LedgerEntry
        Entries of the parts that have been read.

    Examples
    --------
    >>> ledger = Ledger([LedgerEntry(b"a", 3, False)])
    >>> ledger.record(0, LedgerEntry(b"a", 5, True))
    >>> ledger.entries
    [LedgerEntry(identity=b'a', sequences=5, complete=True)]
    """

    def __init__(self, entries: Iterable[LedgerEntry] = ()) -> None:
        self.entries = list(entries)

    def record(self, position: int | None, entry: LedgerEntry) -> None:
        """Replace the entry at a position, or append one when the position is None."""
        if position is None:
            self.entries.append(entry)
        else:
            self.entries[position] = entry

    def cursor(self) -> LedgerCursor:
        """Return a cursor that matches the parts of an input against the current entries."""
        return LedgerCursor(self.entries)


class LedgerCursor:
    """Match the parts of one input, in order, against the entries of a ledger.

    Parameters
    ----------
    entries : list of LedgerEntry
        Entries to match; each is matched at most once.
    """

    def __init__(self, entries: list[LedgerEntry]) -> None:
        self._positions: defaultdict[bytes, deque[int]] = defaultdict(deque)
        for position, entry in enumerate(entries):
            self._positions[entry.identity].append(position)
        self._entries = list(entries)

    def match(self, identity: bytes) -> tuple[int, LedgerEntry] | None:
        """Return the next unmatched entry of that identity and its position, or None."""
        positions = self._positions.get(identity)
        if not positions:
            return None
        position = positions.popleft()
        return position, self._entries[position]
