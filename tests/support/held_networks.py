"""Networks of tests whose regions are held by workers of a cluster, as tasks that open a commit hold them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from distributed import Client

from giaann_dask.rows.protocol import RowOptions, RowProjection
from giaann_dask.rows.remote import RegionKeys, RemoteRows
from giaann_dask.runs.packing import PackedRegionRun, pack
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run

_COUNT = itertools.count()


def rows_of(run: Run, chosen: np.ndarray) -> Run:
    """The rows at some places of a run."""
    counts = run.pointer[chosen + 1] - run.pointer[chosen]
    entries = np.arange(counts.sum()) + np.repeat(run.pointer[chosen] - np.cumsum(counts) + counts, counts)
    pointer = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Run(run.source[chosen], pointer, run.target[entries], run.strength[entries])


def placement_within(run: Run, budget_bytes: int) -> Placement:
    """Two regions, divided until none takes more bytes than the budget or has more than one row."""
    placement = Placement(2)
    size = 12 * np.diff(run.pointer)
    while True:
        region = placement.regions_of(run.source)
        large = [r for r in placement.live() if size[region == r].sum() > budget_bytes and (region == r).sum() > 1]
        if not large:
            return placement
        inside = run.source[region == large[0]]
        placement = placement.split(large[0], int(inside[len(inside) // 2]))


class HeldNetwork:
    """A run whose regions are held by some workers in turn, two runs each, for as long as this is kept.

    Parameters
    ----------
    client : Client
        Of a cluster on which the row service is installed.
    run : Run
        The whole network.
    budget_bytes : int
        Of a region.
    workers : sequence of str, optional
        Addresses of those that hold regions; all by default.
    """

    def __init__(self, client: Client, run: Run, budget_bytes: int, workers: Sequence[str] = ()) -> None:
        self.client, self.placement = client, placement_within(run, budget_bytes)
        held_by = itertools.cycle(workers or sorted(client.scheduler_info(n_workers=-1)["workers"]))
        region = self.placement.regions_of(run.source)
        self._futures = []
        self.keys: dict[int, tuple[str, ...]] = {}
        for each in self.placement.live():
            inside = np.flatnonzero(region == each)
            parts = [rows_of(run, inside[start::2]) for start in range(2)]
            runs = [PackedRegionRun(pack(part), pack(Run.empty())) for part in parts]
            futures = client.scatter(runs, hash=False, workers=[next(held_by)])
            self._futures.append(futures)
            self.keys[each] = tuple(future.key for future in futures)

    def asked(self, **options: Any) -> RemoteRows:
        """Its rows, asked for by this process, without strengths."""
        regions = RegionKeys(f"held {next(_COUNT)}", self.keys, RowOptions(**options))
        return RemoteRows.of_client(self.client, self.placement, regions, projection=RowProjection(strengths=False))
