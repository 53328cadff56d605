"""Record which parts of text have been counted, by content, so that no text is counted twice.

A part is a record, or up to `giaann_dask.text.read_options.ReadOptions.part_characters` of a longer one or of a file.
An interrupted run resumes after its last commit because of the ledger. What it has is not counted again, whatever else
is read, in whatever order. A part that occurs more than once in the inputs is counted once, unless copies are asked
for, which have identities of their own. The entries are stored in a Zarr group.

Does not cover: dividing text into parts (`reading`).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.storage import read_arrays, update_values
from giaann_dask.text.tokens import Part

IDENTITY_BYTES = 11
"""Bytes of an identity: of ten million documents, two have one by chance with a probability of 2e-13."""
_IDENTITY = re.compile(f"[0-9a-f]{{{2 * IDENTITY_BYTES}}}")
_ARRAYS = ("ledger_identity", "ledger_sequences", "ledger_complete")


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Entry of a part that has been read completely or partially.

    Attributes
    ----------
    identity : bytes
        `IDENTITY_BYTES` bytes from `identify`.
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
        identity.reshape(-1, IDENTITY_BYTES),
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


def is_identity(name: str) -> bool:
    """Return whether a name is an identity in hexadecimal digits, and not that of a file."""
    return _IDENTITY.fullmatch(name) is not None and not os.path.exists(name)


def identify(part: Part, tagger: str) -> bytes:
    """Return the identity of a part and its tagger: the same text counts as new with another tagger."""
    digest = hashlib.blake2b(part.fingerprint(), digest_size=IDENTITY_BYTES)
    digest.update(tagger.encode())
    return digest.digest()


def identify_copy(identity: bytes, number: int) -> bytes:
    """Return the identity of the n-th copy of a part, counted from 1; the first one has that of the part."""
    if number == 1:
        return identity
    return hashlib.blake2b(identity + number.to_bytes(8, "little"), digest_size=IDENTITY_BYTES).digest()


def copies_of(identity: bytes, counted: Container[bytes]) -> list[bytes]:
    """Return the identity of a part, and those of its further copies that were counted."""
    found = [identity]
    while (copy := identify_copy(identity, len(found) + 1)) in counted:
        found.append(copy)
    return found


class Ledger:
    """Ledger entries in the order in which their parts were first read, and by identity.

    Parameters
    ----------
    entries : iterable of LedgerEntry
        Entries of the parts that have been read.

    Examples
    --------
    >>> ledger = Ledger([LedgerEntry(b"a", 3, False)])
    >>> ledger.record(LedgerEntry(b"a", 5, True)), ledger.record(LedgerEntry(b"b", 1, True))
    (0, 1)
    >>> ledger.find(b"a"), b"c" in ledger
    (LedgerEntry(identity=b'a', sequences=5, complete=True), False)
    """

    def __init__(self, entries: Iterable[LedgerEntry] = ()) -> None:
        self.entries = list(entries)
        self._number = {entry.identity: number for number, entry in enumerate(self.entries)}

    def __contains__(self, identity: object) -> bool:
        """Return whether a part is counted, at least in part."""
        return identity in self._number

    def number(self, identity: bytes) -> int:
        """Return the number of a part that is counted."""
        return self._number[identity]

    def find(self, identity: bytes) -> LedgerEntry:
        """Return the entry of a part; an entry with nothing counted where there is none."""
        number = self._number.get(identity)
        return LedgerEntry(identity, 0, False) if number is None else self.entries[number]

    def record(self, entry: LedgerEntry) -> int:
        """Replace the entry of a part, or append one; return its number."""
        number = self._number.setdefault(entry.identity, len(self.entries))
        if number < len(self.entries):
            self.entries[number] = entry
        else:
            self.entries.append(entry)
        return number
