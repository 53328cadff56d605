"""Find the places of the trained tokens of blocks, and divide their postings among regions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import Postings, make_postings
from giaann_dask.runs.run import Run
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.segmentation import EncodedBlock


def places_of(block: EncodedBlock) -> tuple[Integers, Integers, npt.NDArray[np.bool_]]:
    """Return sequence and position of each trained token of a block, and which tokens of the block these are."""
    lengths = np.diff(block.offsets)
    trained = np.repeat(block.status == CANDIDATE, lengths)
    sequence = np.repeat(block.first_sequence + np.arange(len(block)), lengths)
    place = np.arange(int(block.offsets[-1])) - np.repeat(block.offsets[:-1], lengths)
    return sequence[trained], place[trained], trained


def divide_postings(source: Integers, places: Postings, placement: Placement) -> dict[int, Run]:
    """Return the postings of some keys by the region that each belongs to."""
    region = placement.regions_of(source)
    found = {}
    for each in np.unique(region).tolist():
        chosen = region == each
        found[each] = make_postings(source[chosen], places.select(chosen))
    return found
