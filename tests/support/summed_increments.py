"""Increments of batches as connections, for tests that compare these."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from giaann_dask.increments.connections import connect_batch
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RegionRun
from giaann_dask.spec import Specification
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.training.tasks import add_runs


def connect_summed(
    blocks: Sequence[EncodedBlock], specification: Specification, placement: Placement, device: torch.device | None
) -> dict[int, RegionRun]:
    """Return the increments of a batch of sequences by region, with their pairs summed."""
    increments = connect_batch(blocks, specification, placement, device)
    return {region: add_runs([run]) for region, run in increments.items()}
