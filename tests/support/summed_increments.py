"""Increments of batches as connections, for tests that compare these."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from giaann_dask.models.columns.connections import connect_batch
from giaann_dask.runs.device_sums import sum_pairs_on
from giaann_dask.runs.pair_tables import PairRegionRun
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RegionRun
from giaann_dask.runs.target_sets import run_of_blocks
from giaann_dask.spec import Specification
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.training.tasks import add_runs


def connect_summed(
    blocks: Sequence[EncodedBlock],
    specification: Specification,
    placement: Placement,
    device: torch.device | None = None,
) -> dict[int, RegionRun]:
    """Return the increments of a batch of sequences by region, with their pairs summed, compiled without a device."""
    increments = connect_batch(blocks, specification, placement)
    return {region: sum_run(run, device) for region, run in increments.items()}


def sum_run(run: RegionRun | PairRegionRun, device: torch.device | None = None) -> RegionRun:
    """Return a run with its pairs summed, compiled without a device."""
    if device is None or not isinstance(run, PairRegionRun):
        return add_runs([run])
    blocks = sum_pairs_on(device, [run.connections]).blocks()
    return RegionRun(run_of_blocks(list(blocks)), run.neurons, run.postings)
