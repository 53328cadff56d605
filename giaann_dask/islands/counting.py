"""Count the increments of groups of parts of text on a cluster, as members of a bundle and to audit one.

A group is counted with the dictionaries of its bundle, which begin with the base's, and without regions, so that its
increments depend on its text and the island alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.errors import BundleError
from giaann_dask.models import totals_of
from giaann_dask.models.totals import GroupCounts
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.spec import Specification
from giaann_dask.text.segmentation import EncodedBlock, encode_block
from giaann_dask.text.tagging import tag_block
from giaann_dask.text.tokens import Part
from giaann_dask.text.vocabulary import Vocabulary, summarise
from giaann_dask.training import tasks


@dataclass(frozen=True, eq=False)
class CountedGroup:
    """Increments of a group of parts of text, packed, and the counts that determine their totals."""

    run: PackedRegionRun
    counts: GroupCounts


def count_block_apart(block: EncodedBlock, specification: Specification) -> CountedGroup:
    """Return the increments of the sequences of one block (a task)."""
    found = tasks.count_batch([block], Placement(1), specification, ())
    run = found.get(0) or RegionRun(Run.empty(), Run.empty())
    return CountedGroup(tasks.pack_run(run), totals_of(specification).count_group([block]))


def count_again(
    parts: Sequence[Part], sources: SourceOptions, names: Vocabulary
) -> tuple[CountedGroup, tuple[int, ...]]:
    """Count parts of text as packing a bundle does, and return the sequences of each part, too (a task).

    Parameters
    ----------
    parts : sequence of Part
        The text.
    sources : SourceOptions
        How it is tagged and filtered, and the specification of the network.
    names : Vocabulary
        Dictionaries of the bundle.

    Raises
    ------
    BundleError
        If the text has names that the dictionaries lack.
    """
    block = tag_block(parts, (0,) * len(parts), sources.tagger, sources.ever_pos, sources.filter)
    vocabulary = names.copy()
    mapping = vocabulary.extend(summarise(block))
    if len(vocabulary.concepts) > len(names.concepts):
        raise BundleError("text with columns that it does not name", "names of all columns")
    if len(vocabulary.features) > len(names.features):
        raise BundleError("text with words that it does not name", "names of all words")
    encoded = encode_block(block, mapping, sources.specification)
    return count_block_apart(encoded, sources.specification), block.part_sequences


def equal_runs(one: PackedRegionRun, other: PackedRegionRun) -> bool:
    """Return whether two packed runs hold the same connections and strengths, however they are compressed."""
    for first, second in zip(tasks.decode(one)[:2], tasks.decode(other)[:2], strict=True):
        for name in ("source", "pointer", "target", "strength"):
            if not np.array_equal(getattr(first, name), getattr(second, name)):
                return False
    return True
