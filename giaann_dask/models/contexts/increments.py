"""Compute the increments of profile ``best``: counts of contexts by region, from blocks of raw words.

Contexts end with their sentence, so sentences can be counted in any order and in any blocks. `contexts` defines the
contexts, and `counting` counts them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from giaann_dask.keys import Integers
from giaann_dask.models.contexts.counting import count_rows
from giaann_dask.models.contexts.kinds import TokenStream, ending_of, word_key
from giaann_dask.models.contexts.places import index_words
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RegionRun, Run, divide_rows
from giaann_dask.spec import Specification
from giaann_dask.spec_profiles import CONTEXT_NAMES
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.noun_names import plain_name
from giaann_dask.text.segmentation import EncodedBlock


def stream_tokens(blocks: Sequence[EncodedBlock], features: Sequence[str] = ()) -> TokenStream:
    """Return the tokens of blocks, the sequences in their order.

    Parameters
    ----------
    blocks : sequence of EncodedBlock
        Sequences of another status than ``CANDIDATE`` are left out.
    features : sequence of str
        Words of the dictionary, which tokens without a surface are named by; blocks of raw words (see
        `giaann_dask.text.blocks`) have a surface for every token.

    Returns
    -------
    TokenStream
        Its words in order of first appearance; documents as the blocks number them.
    """
    number: dict[str, int] = {}
    none = np.zeros(0, np.int64)
    columns: tuple[list[Integers], list[Integers], list[Integers]] = ([none], [none], [none])
    for block in blocks:
        bare = block.surface < 0
        named, spelled = np.unique(block.feature[bare], return_inverse=True)
        # With a dictionary, surfaces are the names of nouns.
        surfaces = map(plain_name, block.surfaces) if features else block.surfaces
        names = (*surfaces, *(features[feature] for feature in named.tolist()))
        local = np.array([number.setdefault(word, len(number)) for word in names], np.int64)
        surface = block.surface.astype(np.int64)
        surface[bare] = len(block.surfaces) + spelled
        lengths = np.diff(block.offsets)
        chosen = np.repeat(block.status == CANDIDATE, lengths)
        place = np.arange(len(block.surface)) - np.repeat(block.offsets[:-1], lengths)
        document = np.repeat(block.document.astype(np.int64), lengths)
        for column, values in zip(columns, (local[surface[chosen]], place[chosen], document[chosen]), strict=True):
            column.append(values)
    index, place, document = (np.concatenate(column) for column in columns)
    # A block names all its words, though its last sentences may lie beyond a limit.
    used, first, index = np.unique(index, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    known = tuple(number)
    words = tuple(known[at] for at in used[order].tolist())
    keys = np.array([word_key(word) for word in words], np.int64)
    endings = np.array([word_key(ending_of(word)) for word in words], np.int64)
    return TokenStream(words, keys, endings, rank[index], place, document)


def connect_contexts(
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
