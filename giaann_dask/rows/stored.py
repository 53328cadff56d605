"""Read rows of a commit from the store when they are requested, so that opening costs what is read.

A region is decoded as a whole once its rows have cost as much, or the whole commit is opened in the background
meanwhile, so that the first answer of a server or a batch costs what it reads. `source` has rows of decoded regions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from threading import Lock

from giaann_dask.cluster.regions import open_region, region_places
from giaann_dask.errors import ClusterError
from giaann_dask.rows.source import RowSource, RunRows, join_row
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.run import Row, Run
from giaann_dask.storage import reading
from giaann_dask.store.commits import CommitReader

_LOG = logging.getLogger(__name__)
# What a row costs besides decoding, in values that could be decoded meanwhile.
_ROW_VALUES = 1 << 14
# Bytes of decoded frames that a process keeps between prompts on one commit.
KEPT_BYTES = 64 << 20


class StoredRows(RowSource):
    """Rows of the regions of a commit, read in this process.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    whole : bool
        Whether a region is decoded as a whole once its rows have cost as much, so that reading costs at most twice the
        better way; otherwise memory stays that of the frames that readers keep.
    region_rows : int
        What reading a region costs, in rows.

    Attributes
    ----------
    placement : Placement
        Where neurons belong.
    """

    def __init__(self, reader: CommitReader, *, whole: bool = True, region_rows: int = 12) -> None:
        self.placement = reader.placement()
        self._divided = self.placement.divided()
        most = region_rows if whole else None
        self._regions = {region: _StoredRegion(reader, place, most) for region, place in region_places(reader)}

    def row(self, neuron: int) -> Row | None:
        """Return the row of a neuron, or None without connections; see `RowSource.row`."""
        if neuron in self._divided:
            return join_row(self._regions[region].row(neuron) for region in self._divided[neuron])
        return self._regions[self.placement.region_of(neuron)].row(neuron)

    @property
    def kept_bytes(self) -> int:
        """Bytes of decoded frames that are kept for further rows."""
        return sum(region.kept_bytes for region in self._regions.values())

    def release_beyond(self, nbytes: int) -> None:
        """Let decoded frames go where they take more bytes; what is needed of them again is read again."""
        if self.kept_bytes > nbytes:
            for region in self._regions.values():
                region.release()


class _StoredRegion:
    """Runs of a region, of which rows are read, or the merged run once it is decoded.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    place : tuple of (str, str, list of str)
        Arguments of `open_region`.
    region_rows : int or None
        What reading the region as a whole costs, in rows; None where that is not done.
    """

    def __init__(self, reader: CommitReader, place: tuple[str, str, list[str]], region_rows: int | None) -> None:
        self._reader, self._place, self._region_rows = reader, place, region_rows
        self._lock = Lock()
        self._rows: list[RowReader] | None = None
        self._read = 0
        self._run: Run | None = None

    def row(self, neuron: int) -> Row | None:
        """Return the row of a neuron, or None without connections."""
        if self._run is None:
            with self._lock:
                if self._run is None and self._costs_whole():
                    self._run, self._rows = open_region(*self._place), None
                if self._run is None:
                    self._read += 1
                    with reading(f"network {self._reader.path}"):
                        parts = [rows.between(neuron, neuron + 1) for rows in self._readers()]
                    return merge_runs(parts).row(neuron)
        return self._run.row(neuron)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the decoded frames that readers keep."""
        return sum(rows.kept_bytes for rows in self._rows or ())

    def release(self) -> None:
        """Let decoded frames go."""
        with self._lock:
            for rows in self._rows or ():
                rows.release()

    def _costs_whole(self) -> bool:
        """Return whether the rows have cost as much as decoding the region does."""
        if self._region_rows is None:
            return False
        readers = self._readers()
        more = sum(rows.values - rows.decoded for rows in readers)
        return self._read * _ROW_VALUES >= more + self._region_rows * _ROW_VALUES

    def _readers(self) -> list[RowReader]:
        """Return the readers of the runs, opened when they are first needed."""
        if self._rows is None:
            with reading(f"network {self._reader.path}"):
                self._rows = [self._reader.rows(identity) for identity in self._place[2]]
        return self._rows


def open_in_background(opening: Callable[[], None], what: str) -> threading.Thread:
    """Start a thread that opens what predictions shall use; an error is logged, as they do not need it.

    Parameters
    ----------
    opening : callable
        Opens it, and puts it in the place of the rows of the store.
    what : str
        What is opened, for the log and the name of the thread.
    """

    def run() -> None:
        try:
            opening()
        # Whatever it is. A client may be closed by one who has got the answers.
        except Exception as error:
            level = logging.INFO if isinstance(error, ClusterError) else logging.WARNING
            _LOG.log(level, "predictions still read rows from the store, its %s cannot be opened: %s", what, error)

    # A daemon, so that a process whose work is done does not wait for what nobody will read.
    thread = threading.Thread(target=run, name=f"giaann-{what}", daemon=True)
    thread.start()
    return thread


class OpeningRows(RowSource):
    """Rows of a commit whose regions are opened in the background.

    Parameters
    ----------
    stored : StoredRows
        Reads rows until then, and on where the regions cannot be opened.
    open_regions : callable
        Returns the rows of all regions, the same ones; called in a thread of its own.

    Attributes
    ----------
    source : StoredRows or RunRows
        What answers now.
    opening : Thread
        Ends when the regions are opened, or cannot be.
    """

    def __init__(self, stored: StoredRows, open_regions: Callable[[], RunRows]) -> None:
        self.source: StoredRows | RunRows = stored
        self.opening = open_in_background(lambda: self._replace(open_regions()), "regions")

    def _replace(self, rows: RunRows) -> None:
        self.source = rows

    def row(self, neuron: int) -> Row | None:
        """Return the row of a neuron, or None without connections; see `RowSource.row`."""
        return self.source.row(neuron)

    def rows(self, neurons: Sequence[int]) -> dict[int, Row | None]:
        """Return the rows of distinct neurons by neuron, as `row` does."""
        return self.source.rows(neurons)
