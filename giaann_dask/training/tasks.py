"""The tasks of training: pure functions of immutable values, named as the dashboard shows them.

Covers: what runs on workers. Each of them may run twice and then returns the same bytes. Does not
cover: which tasks there are and what they depend on (`rounds`, `trainer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from giaann_dask.dask_types import register
from giaann_dask.device import select_device
from giaann_dask.network.connections import connect_batch
from giaann_dask.network.merging import count_union, merge_runs
from giaann_dask.network.packing import PackedRun, pack, unpack
from giaann_dask.network.region import Placement
from giaann_dask.network.run import Run
from giaann_dask.network.store import NetworkStore
from giaann_dask.spec import Specification
from giaann_dask.text.segmentation import EncodedBlock

register()


@dataclass(frozen=True)
class RunSize:
    """Size of a run, or of several.

    Attributes
    ----------
    rows, connections, nbytes : int
        Source neurons, connections, and bytes in memory.
    """

    rows: int
    connections: int
    nbytes: int


def connect(blocks: Sequence[EncodedBlock], specification: Specification, device: str) -> dict[int, Run]:
    """Return the increments of a batch of sequences by region."""
    placement = Placement.of(specification)
    return connect_batch(blocks, specification, placement, select_device(device))


def measure_increments(increments: dict[int, Run]) -> RunSize:
    """Return the size of a batch's increments."""
    runs = increments.values()
    return RunSize(sum(len(r.source) for r in runs), sum(map(len, runs)), sum(r.nbytes for r in runs))


def route(increments: dict[int, Run], region: int) -> Run:
    """Return a batch's increments for one region."""
    return increments.get(region) or Run.empty()


def integrate(*increments: Run) -> Run:
    """Add up the increments of a round for one region."""
    return merge_runs(increments)


def compact(*runs: Run | PackedRun) -> Run:
    """Add up runs of one region into one."""
    return merge_runs([decode(run) for run in runs])


def decode(run: Run | PackedRun) -> Run:
    """Return the decoded form of a run."""
    return unpack(run) if isinstance(run, PackedRun) else run


def pack_run(run: Run | PackedRun) -> PackedRun:
    """Return the encoded form of a run, as it is held and stored."""
    return run if isinstance(run, PackedRun) else pack(run)


def measure_run(run: Run | PackedRun) -> RunSize:
    """Return the size of a run."""
    if isinstance(run, PackedRun):
        return RunSize(run.rows, run.connections, run.nbytes)
    return RunSize(len(run.source), len(run), run.nbytes)


def count_connections(*runs: Run | PackedRun) -> int:
    """Return the number of distinct connections of a region's runs."""
    if len(runs) == 1:
        return measure_run(runs[0]).connections
    return count_union([decode(run) for run in runs])


def open_run(path: str, commit: str, identity: str) -> PackedRun:
    """Read a run of a commit, so that the lineage of what follows begins at the store."""
    return NetworkStore(path).open(commit).run(identity)
