"""Answer rows from the store while the regions of a commit are opened, and from these afterwards.

So the first answer of a server or a batch costs what it reads. `stored` reads rows from the store, `source` has those
of opened regions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from giaann_dask.errors import ClusterError
from giaann_dask.inference.rows.source import RunRows
from giaann_dask.inference.rows.stored import StoredRows
from giaann_dask.runs.run import Row

_LOG = logging.getLogger(__name__)


class OpeningRows:
    """Rows of a commit whose regions are opened in the background; a `giaann_dask.inference.rows.source.RowSource`.

    Parameters
    ----------
    stored : StoredRows
        Reads rows until then, and on where the regions cannot be opened.
    open_regions : callable
        Returns the rows of all regions, the same ones; called in a thread of its own.
    """

    def __init__(self, stored: StoredRows, open_regions: Callable[[], RunRows]) -> None:
        self._rows: StoredRows | RunRows = stored
        # A daemon, so that a process whose work is done does not wait for regions that nobody will read.
        self._opening = threading.Thread(target=self._open, args=(open_regions,), name="giaann-regions", daemon=True)
        self._opening.start()

    def _open(self, open_regions: Callable[[], RunRows]) -> None:
        try:
            self._rows = open_regions()
        # Whatever it is: predictions do not need the regions. A client may be closed by one who has got the answers.
        except Exception as error:
            level = logging.INFO if isinstance(error, ClusterError) else logging.WARNING
            _LOG.log(level, "rows are still read from the store, their regions cannot be opened: %s", error)

    def row(self, neuron: int) -> Row | None:
        """Return the row of a neuron, or None without connections.

        Raises
        ------
        StoreDamagedError
            If it cannot be read.
        """
        return self._rows.row(neuron)

    def rows(self, neurons: Sequence[int]) -> dict[int, Row | None]:
        """Return the rows of distinct neurons by neuron, as `row` does."""
        return self._rows.rows(neurons)

    def prefetch(self, neurons: Iterable[int]) -> None:
        """Do nothing, because rows are read when they are requested."""

    @property
    def own_figures(self) -> None:
        """Return None, because no row is requested from another process."""
