"""Open a commit in the background while its predictions come from rows of the store.

So the first answer of a server or a batch costs what it reads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from giaann_dask.errors import ClusterError
from giaann_dask.rows.source import RowSource, RunRows
from giaann_dask.rows.stored import StoredRows
from giaann_dask.runs.run import Row

_LOG = logging.getLogger(__name__)


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
    """

    def __init__(self, stored: StoredRows, open_regions: Callable[[], RunRows]) -> None:
        self._rows: StoredRows | RunRows = stored
        self._opening = open_in_background(lambda: self._replace(open_regions()), "regions")

    def _replace(self, rows: RunRows) -> None:
        self._rows = rows

    def row(self, neuron: int) -> Row | None:
        """Return the row of a neuron, or None without connections; see `RowSource.row`."""
        return self._rows.row(neuron)

    def rows(self, neurons: Sequence[int]) -> dict[int, Row | None]:
        """Return the rows of distinct neurons by neuron, as `row` does."""
        return self._rows.rows(neurons)
