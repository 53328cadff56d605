"""Read the postings of neurons from a commit, and compute what each sequence added to a connection.

Only the chunks are read that hold the postings of the neurons asked for. Each model has the rule by which these make a
connection.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from giaann_dask.errors import OptionError
from giaann_dask.keys import Integers
from giaann_dask.models import model_of
from giaann_dask.models.results import ConnectionKey
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.postings import Postings, read_postings
from giaann_dask.storage import reading
from giaann_dask.store.commits import CommitReader

# Bytes of postings that are kept; what is kept is dropped together.
_KEPT_BYTES = 1 << 26


class SequenceShares(NamedTuple):
    """Shares of sequences in a connection.

    Attributes
    ----------
    sequence : ndarray
        Numbers of the sequences that added something, ascending; int64.
    units : ndarray
        Strength units of each; of models of words counts; int64, of the same shape. Their sum is the stored strength.
    """

    sequence: Integers
    units: Integers


def require_index(reader: CommitReader) -> None:
    """Raise an `OptionError` where a network has no index."""
    if not reader.manifest().specification.trace:
        raise OptionError(
            f"network {reader.path} has no index of its sequences",
            "one that was trained with trace, or indexed afterwards",
            f"index it with its text: giaann-dask index {reader.path} TEXT..., or giaann_dask.index in Python",
            names=("trace",),
        )


class TraceIndex:
    """The index of a commit, read on demand.

    Parameters
    ----------
    reader : CommitReader
        A commit of a network that is trained with ``trace``.

    Raises
    ------
    OptionError
        If the network has no index.
    """

    def __init__(self, reader: CommitReader) -> None:
        require_index(reader)
        self._specification = reader.manifest().specification
        self._reader, self._placement = reader, reader.placement()
        self._runs: dict[int, list[str]] = {}
        for run in reader.manifest().runs:
            self._runs.setdefault(run.region, []).append(run.identity)
        self._rows: dict[str, RowReader] = {}
        self._postings: dict[int, Postings] = {}
        self._kept_bytes = 0

    def postings(self, key: int) -> Postings:
        """Return all places of a neuron, of a word or of an ending, in the order of the sequences."""
        found = self._postings.get(key)
        if found is None:
            found = self._read(key)
            nbytes = sum(column.nbytes for column in found)
            if self._kept_bytes + nbytes > _KEPT_BYTES:
                self._postings, self._kept_bytes = {}, 0
                for rows in self._rows.values():
                    rows.release()
            self._postings[key] = found
            self._kept_bytes += nbytes
        return found

    def _read(self, key: int) -> Postings:
        region = int(self._placement.regions_of(np.array([key], np.int64))[0])
        parts = []
        with reading(f"network {self._reader.path}"):
            for identity in self._runs.get(region, ()):
                rows = self._rows.get(identity)
                if rows is None:
                    rows = self._rows[identity] = self._reader.rows(identity, "postings")
                parts.append(rows.between(key, key + 1))
        run = merge_runs(parts)
        return read_postings(run.target, run.strength)

    def shares(self, connection: ConnectionKey) -> SequenceShares:
        """Return what each sequence added to a connection."""
        model = model_of(self._specification)
        return SequenceShares(*model.shares(self.postings, connection, self._specification))
