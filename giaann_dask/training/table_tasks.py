"""Define the tasks about runs of all regions of an owner: as those in `tasks`, with one table for all of them.

Each may run more than once and then returns the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from giaann_dask.cluster.locality import count_used
from giaann_dask.cluster.regions import open_run
from giaann_dask.cluster.sharing import naming_worker
from giaann_dask.cluster.written_runs import WRITTEN
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.run import RunSize
from giaann_dask.store.run_io import write_runs
from giaann_dask.training import tasks
from giaann_dask.training.run_tables import AnyRun, Increment, RunTable


def integrate(regions: Sequence[int], *increments: dict[int, Increment], owner_anchor: int | None = None) -> RunTable:
    """Add up the increments for the regions of one owner."""
    return RunTable({region: tasks.integrate(region, *increments) for region in regions})


def measure(regions: Sequence[int], table: RunTable, owner_anchor: int | None = None) -> tuple[RunSize, ...]:
    """Return the sizes of the runs of some regions of a table."""
    return tuple(tasks.measure_run(table.runs[region]) for region in regions)


def compact(places: Mapping[int, Sequence[int]], *values: AnyRun | RunTable) -> RunTable:
    """Add up runs of several regions, in encoded form.

    Parameters
    ----------
    places : mapping of int to sequence of int
        By region, which of the values have its runs.
    *values
        Tables, and runs.
    """

    def run_of(place: int, region: int) -> AnyRun:
        value = values[place]
        return value.runs[region] if isinstance(value, RunTable) else value

    return RunTable({region: tasks.compact(*(run_of(at, region) for at in its)) for region, its in places.items()})


def pack(regions: Sequence[int], table: RunTable) -> RunTable:
    """Return the encoded form of the runs of some regions of a table."""
    return RunTable({region: tasks.pack_run(table.runs[region]) for region in regions})


def write(fork: bytes, identities: Mapping[int, str], attempt: str, table: RunTable) -> bytes:
    """Write the runs of some regions of a table that are not empty, in one go, as `tasks.write_stored` writes one."""
    found: dict[str, PackedRegionRun] = {}
    for region, identity in identities.items():
        run = table.runs[region]
        assert isinstance(run, PackedRegionRun), "runs are written in their packed form"
        if not tasks.measure_run(run).empty:
            found[identity] = run
    if not found:
        return b""
    count_used(list(found.values()))
    with naming_worker():
        written = write_runs(fork, found)
    for identity, packed in found.items():
        WRITTEN.keep(attempt, identity, packed)
    return written


def open_stored(
    path: str, commit: str, identities: Mapping[int, str], attempt: str, owner_anchor: int | None = None
) -> RunTable:
    """Read runs of a commit, or take over what this process has written; see `giaann_dask.cluster.regions.open_run`."""
    return RunTable({region: open_run(path, commit, name, attempt) for region, name in identities.items()})
