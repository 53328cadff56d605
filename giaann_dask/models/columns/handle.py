"""Keep a commit of columns opened on a cluster for prediction: its regions, flags, placement and dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from giaann_dask.models.columns.flags import FlagChange, flags_of, submit_flags
from giaann_dask.models.columns.state.sequence import FlagTable
from giaann_dask.rows.regions import RegionHandles, submit_placement
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
    regions : RegionHandles
        Its regions on the cluster.
    """

    def __init__(self, client: Client, reader: CommitReader, regions: RegionHandles) -> None:
        self._client, self._reader, self.regions = client, reader, regions
        self.specification = reader.manifest().specification

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
