"""Name where readers of a commit find its runs besides the store: in the memory of a cluster's workers.

`giaann_dask.cluster` sets the place, `giaann_dask.store.commits` asks it. A process without a cluster has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from giaann_dask.store.commits import CommitReader


class TableEntries(Protocol):
    """The encoded entries of a table of a run, wherever they are."""

    def read(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the entries with these names, relative to the table; those that do not exist are left out."""


class RunSource(Protocol):
    """Runs of a commit that are in memory somewhere."""

    def entries(self, identity: str, table: str, stored: TableEntries) -> TableEntries:
        """Return the entries of a table of a run, those of the store where the run is not in memory."""


FindRuns: TypeAlias = "Callable[[CommitReader], RunSource | None]"


def _nowhere(reader: CommitReader) -> RunSource | None:
    """Return that no run is in memory."""
    return None


_find: FindRuns = _nowhere


def find_runs_by(find: FindRuns) -> None:
    """Set the function that finds the runs of all commits that are read in this process."""
    global _find  # One place for a process.
    _find = find


def find_runs(reader: CommitReader) -> RunSource | None:
    """Return where runs of a commit are in memory, None where they are not."""
    return _find(reader)
