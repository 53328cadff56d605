"""The tasks of training: pure functions of immutable values, named as the dashboard shows them.

Covers: what runs on workers. Each of them may run twice and then returns the same bytes. Does not
cover: which tasks there are and what they depend on (`rounds`, `trainer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register
from giaann_dask.device import one_thread, select_device
from giaann_dask.network.connections import connect_batch
from giaann_dask.network.merging import count_union, merge_runs
from giaann_dask.network.packing import PackedRegionRun, pack, unpack
from giaann_dask.network.region import Placement
from giaann_dask.network.run import RegionRun, Run
from giaann_dask.network.store import NetworkStore
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import CANDIDATE, NO_DELIMITER
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.training.division import Division, assign
from giaann_dask.training.selection import ColumnTouches, SelectionOptions, join_touches, touches_of

register()


@dataclass(frozen=True)
class RunSize:
    """Size of a run, or of several.

    Attributes
    ----------
    neurons, connections, nbytes : int
        Neurons, connections, and bytes in memory.
    """

    neurons: int
    connections: int
    nbytes: int


def connect(blocks: Sequence[EncodedBlock], specification: Specification, device: str) -> dict[int, RegionRun]:
    """Return the increments of a batch of sequences by region."""
    placement = Placement.of(specification)
    with one_thread():
        return connect_batch(blocks, specification, placement, select_device(device))


def touch(block: EncodedBlock) -> ColumnTouches:
    """Return the concept columns of each trained sequence of a block."""
    return touches_of([block])


def select(parts: Sequence[ColumnTouches], division: Division, options: SelectionOptions) -> npt.NDArray[np.int64]:
    """Return the batch of each trained sequence of some blocks, in order."""
    return assign(join_touches(parts), division, options)


def connect_selected(
    blocks: Sequence[EncodedBlock],
    batch: npt.NDArray[np.int64],
    number: int,
    specification: Specification,
    device: str,
) -> dict[int, RegionRun]:
    """Return the increments of the sequences of some blocks that were selected for one batch."""
    chosen, start = [], 0
    for block in blocks:
        trained = np.flatnonzero(block.status == CANDIDATE)
        others = batch[start : start + len(trained)] != number
        start += len(trained)
        status = block.status.copy()
        status[trained[others]] = NO_DELIMITER
        chosen.append(replace(block, status=status))
    return connect(chosen, specification, device)


def accumulate(*increments: dict[int, RegionRun]) -> dict[int, RegionRun]:
    """Add up the increments of several batches where they were computed, before they travel."""
    regions = sorted({region for part in increments for region in part})
    return {region: add_runs([part[region] for part in increments if region in part]) for region in regions}


def route(increments: dict[int, RegionRun], region: int) -> RegionRun:
    """Return a batch's increments for one region."""
    return increments.get(region) or RegionRun(Run.empty(), Run.empty())


def integrate(*increments: RegionRun) -> RegionRun:
    """Add up the increments of a round for one region."""
    return add_runs(increments)


def compact(*runs: RegionRun | PackedRegionRun) -> RegionRun:
    """Add up runs of one region into one."""
    return add_runs([decode(run) for run in runs])


def add_runs(runs: Sequence[RegionRun]) -> RegionRun:
    """Return the sum of runs of one region."""
    return RegionRun(merge_runs([run.connections for run in runs]), merge_runs([run.neurons for run in runs]))


def decode(run: RegionRun | PackedRegionRun) -> RegionRun:
    """Return the decoded form of a run."""
    if isinstance(run, PackedRegionRun):
        return RegionRun(unpack(run.connections), unpack(run.neurons))
    return run


def pack_run(run: RegionRun | PackedRegionRun) -> PackedRegionRun:
    """Return the encoded form of a run, as it is held and stored."""
    if isinstance(run, PackedRegionRun):
        return run
    return PackedRegionRun(pack(run.connections), pack(run.neurons))


def measure_run(run: RegionRun | PackedRegionRun) -> RunSize:
    """Return the size of a run."""
    nbytes = run.connections.nbytes + run.neurons.nbytes
    if isinstance(run, PackedRegionRun):
        return RunSize(run.neurons.rows, run.connections.connections, nbytes)
    return RunSize(len(run.neurons.source), len(run.connections), nbytes)


def count_region(*runs: RegionRun | PackedRegionRun) -> RunSize:
    """Return how many distinct neurons and connections a region's runs have together, and their bytes."""
    sizes = [measure_run(run) for run in runs]
    if len(runs) == 1:
        return sizes[0]
    decoded = [decode(run) for run in runs]
    neurons = np.unique(np.concatenate([run.neurons.source for run in decoded]))
    connections = count_union([run.connections for run in decoded])
    return RunSize(len(neurons), connections, sum(size.nbytes for size in sizes))


def open_run(path: str, commit: str, identity: str) -> PackedRegionRun:
    """Read a run of a commit, so that the lineage of what follows begins at the store."""
    return NetworkStore(path).open(commit).run(identity)
