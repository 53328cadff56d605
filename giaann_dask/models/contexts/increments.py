"""Compute the increments of profile ``contexts``: counts of contexts by region, from blocks of raw words.

Contexts end with their sentence, so sentences can be counted in any order and in any blocks. `contexts` defines the
contexts, and `counting` counts them.
"""

from __future__ import annotations

from collections.abc import Sequence

from giaann_dask.models.contexts.counting import count_rows
from giaann_dask.models.contexts.specification import CONTEXT_NAMES
from giaann_dask.models.words.places import index_words
from giaann_dask.models.words.stream import stream_tokens
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RegionRun, Run, divide_rows
from giaann_dask.spec import Specification
from giaann_dask.text.segmentation import EncodedBlock


def count_batch(
    blocks: Sequence[EncodedBlock], specification: Specification, placement: Placement
) -> dict[int, RegionRun]:
    """Return the increments of a batch of sentences of raw words by region.

    Parameters
    ----------
    blocks : sequence of EncodedBlock
        Sentences to count, each once.
    specification : Specification
        Says which kinds of contexts are counted.
    placement : Placement
        Assigns contexts to regions.

    Returns
    -------
    dict of int to RegionRun
        Counts by region, as `giaann_dask.models.contexts.counting.ContextCounts` has them; no neuron has a
        strength of its own. Regions that are not touched are absent.
    """
    kinds = [CONTEXT_NAMES.index(name) for name in specification.contexts]
    stream = stream_tokens(blocks)
    run = count_rows(stream, kinds)
    counts = divide_rows(run, placement.regions_of(run.source))
    if not specification.trace:
        return {r: RegionRun(counts[r], Run.empty()) for r in counts}
    places, none = index_words(blocks, stream, placement), Run.empty()
    return {r: RegionRun(counts.get(r, none), none, places.get(r, none)) for r in sorted(counts.keys() | places.keys())}
