"""Division of a simulated training into batches, rounds and regions, and the tasks that these take."""

from __future__ import annotations

from dataclasses import dataclass

from giaann_dask.cluster import region_budget
from giaann_dask.errors import require_at_least, require_one_of
from giaann_dask.spec import PLACEMENTS, PlacementKind, Specification
from giaann_dask.training.training_options import EXCHANGES, Exchange, Order, TrainingOptions
from simulation.hardware import Hardware

BLOCK_TASKS = 4
"""Tasks of a block of text."""
CHAIN = 6
"""Tasks of a round that run one after another."""
COMMIT_TASKS = 4
"""Tasks of a region in a commit: pack, measure, write, open."""
DECODED_BYTES = 12
"""Decoded bytes of a connection."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfiguration:
    """Division of a training into batches, rounds and regions.

    Parameters
    ----------
    batch_sequences, accumulate, rounds_in_flight : int
        As in `TrainingOptions`.
    order : {"corpus", "random", "least-overlap"}
        Selection.
    placement : {"hash", "balanced", "co-occurrence"}
        Of columns in regions.
    regions : int
        Most regions that are not split for their size.
    exchange : {"auto", "tasks", "workers"}
        As in `TrainingOptions`.
    """

    batch_sequences: int = 8192
    accumulate: int = 1
    rounds_in_flight: int = 4
    order: Order = "corpus"
    placement: PlacementKind = "hash"
    regions: int = Specification().regions
    exchange: Exchange = "auto"

    def __post_init__(self) -> None:
        require_at_least(1, self, "batch_sequences", "accumulate", "rounds_in_flight", "regions")
        require_one_of("placement", self.placement, PLACEMENTS)
        require_one_of("exchange", self.exchange, EXCHANGES)


def region_limit(hardware: Hardware) -> int:
    """Return the decoded bytes from which a region is split: as many as a storage worker can add up, at most."""
    limits = (region_budget(kind.memory_bytes) for kind in hardware.storing())
    return max(1, min(TrainingOptions().region_bytes, *limits))
