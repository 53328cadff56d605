"""The ledger: exactly which parts of which text are in a network or corpus.

Covers: remembering parts by their content, so that text is never counted twice and an
interrupted run goes on where its last commit was; and keeping the entries in a Zarr group. Does not
cover: how parts are cut (`reading`).

A part that occurs twice in the input is counted twice; a part of the input that the ledger holds
once is left out once. So reading an input brings a network to contain that input, however often
it is read.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import zarr

from giaann_dask.storage import append_values, read_array
from giaann_dask.text.tokens import Part


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One part that has been read, or has been begun.

    Attributes
    ----------
    identity : bytes
        16 bytes from `identify`.
    sequences : int
        Sequences of the part that have been counted.
    complete : bool
        Whether these are all.
    """

    identity: bytes
    sequences: int
    complete: bool


def append_entries(group: zarr.Group, entries: Sequence[LedgerEntry]) -> None:
    """Append entries to the ledger that a Zarr group holds, creating it when it is not there."""
    identity = np.frombuffer(b"".join(entry.identity for entry in entries), np.uint8)
    append_values(group, "ledger_identity", identity.reshape(-1, 16))
    append_values(group, "ledger_sequences", np.array([entry.sequences for entry in entries], np.int64))
    append_values(group, "ledger_complete", np.array([entry.complete for entry in entries], np.bool_))


def read_entries(group: zarr.Group) -> list[LedgerEntry]:
    """Return the entries of the ledger that a Zarr group holds.

    Raises
    ------
    StoreDamagedError
        If it is missing.
    """
    identity = read_array(group, "ledger_identity")
    sequences = read_array(group, "ledger_sequences").tolist()
    complete = read_array(group, "ledger_complete").tolist()
    return [LedgerEntry(i.tobytes(), s, c) for i, s, c in zip(identity, sequences, complete, strict=True)]


def identify(part: Part, tagger: str) -> bytes:
    """Return the identity of a part as read by a tagger: the same text tagged in another way is new."""
    digest = hashlib.blake2b(part.fingerprint(), digest_size=16)
    digest.update(tagger.encode())
    return digest.digest()


class Ledger:
    """Entries in the order in which they were first read.

    Parameters
    ----------
    entries : iterable of LedgerEntry
        What has been read so far.

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
        """Return a fresh matching of an input against the present entries."""
        return LedgerCursor(self.entries)


class LedgerCursor:
    """Matches the parts of one input, in order, against what has been read.

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
