"""Keep a commit of columns opened on a cluster for prediction: its regions, flags, placement and dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from giaann_dask.models.columns.flags import FlagChange, flags_of, submit_flags
from giaann_dask.models.columns.state.sequence import FlagTable
from giaann_dask.rows.health import find_fault, is_lost
from giaann_dask.rows.regions import open_regions, submit_placement
from giaann_dask.rows.row_options import RowOptions
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client, Future


class CommitHandle:
    """A commit opened on a cluster for prediction: its regions, flags, placement and dictionaries.

    Everything is kept on the workers as long as this value exists.

    Parameters
    ----------
    client : Client
        Of the cluster.
    reader : CommitReader
        The commit.
    rows : RowOptions, optional
        How tasks get at the rows of the regions.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    """

    def __init__(self, client: Client, reader: CommitReader, rows: RowOptions | None = None) -> None:
        self._client, self._reader = client, reader
        self.specification = reader.manifest().specification
        self.regions = open_regions(client, reader, rows or RowOptions())

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The saved dictionaries, from which inference starts; a copy of them may be expanded."""
        return self._reader.saved_vocabulary()

    @cached_property
    def _saved(self) -> FlagTable:
        return flags_of(self.vocabulary)

    def change(self, expanded: Vocabulary) -> FlagChange:
        """Return the difference of an expanded vocabulary's flags from the saved ones."""
        return FlagChange.between(self._saved, expanded)

    @cached_property
    def placement(self) -> Future:
        """Future of the `Placement`."""
        return submit_placement(self._client, self._reader, **self.regions.submit_kwargs)

    def flags(self, auxiliary: tuple[str, ...] = ()) -> Future:
        """Return the future of the stored flags, with the auxiliary source neurons of these kinds."""
        return submit_flags(self._client, self._reader, auxiliary, **self.regions.submit_kwargs)

    def health(self, within_s: float) -> str | None:
        """Return why rows are unavailable now; see `giaann_dask.rows.health.find_fault`."""
        return None if self.regions.keys is None else find_fault(self._client, self.regions.keys, within_s)

    def lost(self) -> bool:
        """Return whether rows will never be had again, because the cluster that held them is lost."""
        return self.regions.keys is not None and is_lost(self._client, self.regions.keys)

    def submit(
        self, task: Callable[..., object], *arguments: object, key: str, where: Mapping[str, Any] | None = None
    ) -> Future:
        """Submit a task that predicts, to a worker that can get at the rows.

        Parameters
        ----------
        task : callable
            Called with the arguments.
        *arguments
            Of the task; futures stand for their results.
        key : str
            Of the task.
        where : mapping, optional
            Arguments of `Client.submit` that name other workers, such as those with a GPU.
        """
        return self._client.submit(
            task, *arguments, key=key, **(self.regions.submit_kwargs if where is None else where)
        )
